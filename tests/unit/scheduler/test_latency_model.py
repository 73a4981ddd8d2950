"""Predictions of a step: its parts, what is learned from and what is not, and bad coefficients."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest

from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients, StepKind
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from scheduler.output import ScheduledRequest
from scheduler.ramp import Ramp
from scheduler.request import FinishReason
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from scheduler.step_features import StepFeatures
from tests.latency_builders import STREAMING, decodes, make_coefficients, teach
from tests.scheduler_builders import make_spec, result_of


def test_features_are_counted_from_a_step() -> None:
    scheduled = (
        ScheduledRequest("a", 1, 99, 0, (), True),
        ScheduledRequest("b", 1, 299, 0, (), True),
        ScheduledRequest("c", 10, 20, 0, (), False),
        ScheduledRequest("d", 4, 0, 0, (), True),
    )
    features = StepFeatures.of(scheduled)
    assert features == StepFeatures(14, 2, 400, 300, 10 * 25.0 + 4 * 2.0, 3)
    assert features.num_rows == 16 and features.skew_tokens == 100.0
    assert decodes().with_chunk(10, 20, samples=False).with_chunk(4, 0, samples=True) == StepFeatures.of(scheduled[2:])


def test_a_step_is_the_sum_of_its_parts() -> None:
    features = StepFeatures(14, 2, 400, 300, 258.0, 3)
    layers_s = 0.02 + 8e-4 + 8 * 2e-4 + 14 * 5e-4 + 2e-4 + 400e-6 + 258 * 2e-7 + 100e-6
    expected_s = layers_s + 0.002 + 1e-4 + 2 * 5e-5 + 1e-3
    assert LatencyModel(make_coefficients()).mean_s(features, NO_LINK) == pytest.approx(expected_s)


def test_the_link_decides_where_it_is_slower_than_the_step() -> None:
    model = LatencyModel(make_coefficients())
    quiet_s = model.mean_s(decodes(100), NO_LINK)
    beside_s = model.mean_s(decodes(100), STREAMING)
    assert beside_s == pytest.approx((quiet_s - 0.001 - 0.0021) * 1.2 + 0.0021 + 0.001)
    slow = LinkSnapshot(h2d=LinkDirection(1e8, 0.8e8), num_streamed_layers=10)
    assert model.mean_s(decodes(100), slow) == pytest.approx(0.2 + 0.001)
    assert model.p95_s(decodes(100), slow) == pytest.approx((0.25 + 0.001) * 1.1)
    assert model.mean_s(decodes(100), LinkSnapshot(num_streamed_layers=10)) == pytest.approx(beside_s)


def test_feasibility_is_judged_by_the_prior_until_steps_say_more() -> None:
    model = LatencyModel(make_coefficients())
    step = decodes(100, 100)
    assert model.p95_s(step, NO_LINK) == pytest.approx(1.1 * model.mean_s(step, NO_LINK))
    teach(model, step, 1.0, 30)
    assert model.p95_s(step, NO_LINK) == pytest.approx(model.mean_s(step, NO_LINK))
    for index in range(64):
        teach(model, step, 1.3 if index % 10 == 0 else 1.0, 1)
    assert model.p95_s(step, NO_LINK) > 1.2 * model.mean_s(step, NO_LINK)


def test_the_correction_of_one_kind_leaves_the_others() -> None:
    model = LatencyModel(make_coefficients())
    chunk = StepFeatures().with_chunk(128, 0, samples=True)
    before_s, decode_s = model.mean_s(chunk, NO_LINK), model.mean_s(decodes(100), NO_LINK)
    teach(model, chunk, 1.5, 60)
    assert model.mean_s(chunk, NO_LINK) == pytest.approx(1.5 * before_s, rel=0.01)
    assert model.mean_s(decodes(100), NO_LINK) == decode_s


def test_nothing_is_learned_from_first_uses_swaps_and_moves() -> None:
    model, step = LatencyModel(make_coefficients()), decodes(100)
    swapping = LinkSnapshot(h2d=LinkDirection(queued_kv_load_bytes=1))
    storing = LinkSnapshot(d2h=LinkDirection(queued_kv_store_bytes=1))
    frozen = [model.begin(step, link) for link in (NO_LINK, swapping, storing)]
    moved = LinkSnapshot(num_streamed_layers=3)
    frozen += [model.begin(step, moved), model.begin(decodes(*[9] * 40), moved)]
    assert all(prediction.is_frozen for prediction in frozen)
    before_s = model.mean_s(step, NO_LINK)
    for prediction in frozen:
        model.observe(prediction, 9.0)
    assert model.mean_s(step, NO_LINK) == before_s
    learning = model.begin(step, moved)
    assert not learning.is_frozen
    model.observe(learning, 9.0)
    model.begin(step, LinkSnapshot(num_streamed_layers=4))
    assert model.mean_s(step, NO_LINK) == before_s, "the placement moved within that step"
    model.begin(step, moved)
    model.observe(model.begin(step, moved), 9.0)
    model.begin(step, moved)
    assert model.mean_s(step, NO_LINK) > before_s


@pytest.mark.parametrize("factor", [1.4, 0.7])
def test_a_drift_widens_the_margin_and_passes(factor: float) -> None:
    model, step = LatencyModel(make_coefficients()), decodes(100)
    teach(model, step, 1.0, 40)
    assert model.margin == 1.0
    widest = 1.0
    for _ in range(6):
        teach(model, step, factor, 1)
        widest = max(widest, model.margin)
        model.check()
    assert widest > 1.2
    teach(model, step, factor, 400)
    assert model.margin == pytest.approx(1.0, abs=0.01)


def test_kinds_follow_the_tokens_of_prefill() -> None:
    kind_of = make_coefficients().kind_of
    assert [kind_of(tokens) for tokens in (0, 1, 64, 65)] == [
        StepKind.DECODE, StepKind.MIXED, StepKind.MIXED, StepKind.PREFILL,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sync_s": -1e-9}, "sync_s"),
        ({"s_per_decode": math.nan}, "s_per_decode"),
        ({"s_per_skew_token": 3e-6}, "s_per_skew_token"),
        ({"decode_slowdown": 0.9}, "factor"),
        ({"p95_factors": (1.0, 0.5, 1.0)}, "factor"),
        ({"prefill_step_tokens": 0}, "prefill_step_tokens"),
        ({"rows": Ramp(0.0, (8.5,), (1e-4,))}, "half row"),
    ],
)
def test_coefficients_that_could_fall_are_refused(changed: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make_coefficients(**changed)


@pytest.mark.parametrize(
    ("knots", "slopes"), [((), ()), ((1.0,), (1.0, 2.0)), ((2.0, 2.0), (1.0, 1.0)), ((0.0,), (1.0,)), ((1.0,), (-1.0,))]
)
def test_a_ramp_that_could_fall_is_refused(knots: tuple[float, ...], slopes: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        Ramp(0.0, knots, slopes)


def test_coefficients_go_through_msgpack_unchanged() -> None:
    coefficients = make_coefficients()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(coefficients), type=LatencyCoefficients) == coefficients


def _scheduler(model: LatencyModel | None) -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4, block_size=4)
    return Scheduler(config, SLOClasses(), 64, 200, model)


def test_a_scheduler_predicts_its_steps_and_learns_from_them() -> None:
    model = LatencyModel(make_coefficients())
    scheduler, now_s = _scheduler(model), 10.0
    scheduler.add((make_spec("a", 16, 60),), now_s)
    first = scheduler.schedule(now_s, NO_LINK)
    assert first.predicted_s == model.mean_s(StepFeatures.of(first.scheduled), NO_LINK)
    now_s += 1.0
    scheduler.update(first, result_of(first), now_s)
    for _ in range(40):
        output = scheduler.schedule(now_s, NO_LINK)
        scheduler.update(output, result_of(output), now_s + 0.05)
        scheduler.check()
        now_s += 0.06
    assert output.predicted_s == pytest.approx(0.05, rel=0.05)


def test_a_failed_step_teaches_nothing_and_an_idle_one_is_not_predicted() -> None:
    model = LatencyModel(make_coefficients())
    scheduler = _scheduler(model)
    assert scheduler.schedule(9.0, NO_LINK).predicted_s is None
    before = dataclasses.replace(make_coefficients())
    scheduler = _scheduler(model)
    for name in ("a", "b"):
        scheduler.add((make_spec(name, 16, 9),), 10.0)
        output = scheduler.schedule(10.0, NO_LINK)
        result = result_of(output, errors=(name,))
        assert result.results[0].finish_reason is FinishReason.ERROR
        scheduler.update(output, result, 19.0)
    features = decodes().with_chunk(16, 0, samples=True)
    assert model.mean_s(features, NO_LINK) == LatencyModel(before).mean_s(features, NO_LINK)
    assert _scheduler(None).schedule(9.0, NO_LINK).predicted_s is None


def test_a_step_scheduled_beside_another_teaches_nothing() -> None:
    model = LatencyModel(make_coefficients())
    scheduler = _scheduler(model)
    scheduler.add((make_spec("a", 4, 60),), 10.0)
    outputs = [scheduler.schedule(10.0, NO_LINK)]
    for step in range(12):  # always one in flight
        outputs.append(scheduler.schedule(10.0 + step, NO_LINK))
        output = outputs.pop(0)
        scheduler.update(output, result_of(output), 11.0 + step)
    fresh = LatencyModel(make_coefficients())
    assert model.mean_s(decodes(100), NO_LINK) == fresh.mean_s(decodes(100), NO_LINK)
