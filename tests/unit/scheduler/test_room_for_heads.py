"""Nobody yields for nothing: to a waiting request only if it starts, and no step is empty for those that can wait."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.class_shares import ClassShares
from scheduler.config import PolicyName, SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLO, SLOClasses
from tests.latency_builders import make_coefficients
from tests.scheduler_builders import BLOCK_SIZE, make_scheduler, make_spec, result_of, step, tokens_of


@pytest.mark.parametrize("policy", ["priority", "edf", "deadline"])
def test_the_request_that_room_was_made_for_starts_though_a_victim_is_due_before_it(policy: PolicyName) -> None:
    """By deadline over all classes, the victim is the first of those that wait as soon as it has yielded."""
    scheduler = make_scheduler(20, scheduler_policy=policy, max_num_seqs=1)
    scheduler.add((make_spec("low", 8, 50, slo_class="standard", arrival_s=0.0),), 0.0)
    step(scheduler, 0.0)
    scheduler.add((make_spec("high", 8, 4, slo_class="interactive", arrival_s=2.5),), 2.5)
    output, _ = step(scheduler, 2.5)
    assert output.preempted == ("low",)
    assert tokens_of(output) == {"high": 8}


@pytest.mark.parametrize("names", [("late", "next"), ("late",)])
def test_nobody_yields_to_a_request_that_cannot_be_in_time(names: tuple[str, ...]) -> None:
    """It goes behind all that can, so that not it, but nobody might start in the place of the victim."""
    classes = SLOClasses(tuple(dataclasses.replace(c, when_infeasible="queue") for c in DEFAULT_CLASSES))
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=1, block_size=BLOCK_SIZE)
    scheduler = Scheduler(config, classes, 400, 1600, LatencyModel(make_coefficients()))
    scheduler.add((make_spec("low", 8, 30, slo_class="batch"),), 0.0)
    step(scheduler, 0.1)
    for name in names:  # 300 tokens at 1 ms each and more, due in 0.43 s
        scheduler.add((make_spec(name, 300, 4, slo_class="realtime", arrival_s=0.1),), 0.1)
    for now_s in (0.2, 0.3, 0.4):
        output, _ = step(scheduler, now_s)
        assert output.preempted == () and tokens_of(output) == {"low": 1}


def test_the_request_that_room_was_made_for_starts_though_a_class_is_owed_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = make_scheduler(40, scheduler_policy="deadline", max_num_seqs=2, max_num_batched_tokens=4)
    monkeypatch.setattr(ClassShares, "owed", lambda _: "standard")
    scheduler.add((make_spec("decode", 4, 50, slo_class="batch"),), 0.0)
    step(scheduler, 0.0)
    scheduler.add((make_spec("prompt", 40, 4, slo_class="standard"),), 0.0)
    output, _ = step(scheduler, 0.0)
    assert tokens_of(output) == {"decode": 1, "prompt": 3}
    scheduler.add((make_spec("high", 4, 4, slo_class="realtime"),), 0.0)
    output, _ = step(scheduler, 0.4)
    assert output.preempted == ("decode",) and tokens_of(output) == {"high": 4}


def test_tokens_that_are_not_due_are_computed_if_whoever_is_due_lacks_a_block() -> None:
    """The one that is due is the newest: it yields itself, and nobody else would be part of the step."""
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4, block_size=BLOCK_SIZE, max_step_s=0.001)
    scheduler = Scheduler(config, SLOClasses(), 6, 20, LatencyModel(make_coefficients()))
    tight = SLO("batch", "batch", tpot_s=0.06)
    scheduler.add((make_spec("loose", 8, 8, slo_class="batch"),), 0.0)
    scheduler.add((make_spec("tight", 7, 8, slo=tight, arrival_s=0.01),), 0.01)
    outputs = [step(scheduler, 0.1 + 0.001 * index)[0] for index in range(8)]
    assert [tokens_of(o) for o in outputs[2:7]] == [{"tight": 1}] * 5
    assert outputs[7].preempted == ("tight",) and tokens_of(outputs[7]) == {"loose": 1}


def test_a_prompt_gets_the_time_of_a_decode_that_lacks_a_block() -> None:
    """The decode alone would take all the time there is; it yields itself, and the step is the prompt's."""
    config = SchedulerConfig(
        max_num_batched_tokens=32, max_num_seqs=4, block_size=BLOCK_SIZE, max_step_s=0.001, scheduler_policy="priority"
    )
    classes = SLOClasses(tuple(dataclasses.replace(c, when_infeasible="queue") for c in DEFAULT_CLASSES))
    scheduler = Scheduler(config, classes, 33, 132, LatencyModel(make_coefficients()))
    scheduler.add((make_spec("prompt", 120, 2, slo_class="realtime"),), 0.0)
    step(scheduler, 0.0)
    urgent = SLO("realtime", "realtime", ttft_s=0.1)
    scheduler.add((make_spec("stream", 8, 8, slo=urgent, arrival_s=0.02),), 0.02)
    assert tokens_of(step(scheduler, 0.1)[0]) == {"stream": 8}
    for index in range(1, 6):
        now_s = 0.1 + index * 0.03 - config.egress_s - 0.0245  # a step of the stream takes 24 ms
        output = scheduler.schedule(now_s, NO_LINK)
        if index < 5:
            assert tokens_of(output) == {"stream": 1}
        assert output.predicted_s is not None
        scheduler.update(output, result_of(output), now_s + output.predicted_s)
    assert output.preempted == ("stream",) and list(tokens_of(output)) == ["prompt"]


def test_nobody_yields_where_its_prefix_would_be_lost_beyond_the_border() -> None:
    """The blocks that the first one of a class would share with the victim go to nobody once they are free."""
    scheduler = make_scheduler(20, scheduler_policy="priority", max_num_seqs=2, max_num_batched_tokens=64)
    scheduler.add((make_spec("filler", 40, 9, slo_class="realtime"),), 0.0)
    step(scheduler, 0.0)
    scheduler.add((make_spec("low", 25, 9, slo_class="batch", prompt="p"),), 0.0)
    step(scheduler, 0.0)
    scheduler.abort(("filler",), 0.0)
    scheduler.add((make_spec("other", 4, 9, slo_class="realtime"),), 0.0)
    step(scheduler, 0.0)
    scheduler.add((make_spec("head", 25, 9, slo_class="realtime", prompt="p"),), 0.0)
    output = scheduler.schedule(0.0, LinkSnapshot(num_blocks=5))
    assert output.preempted == () and set(tokens_of(output)) == {"low", "other"}
    scheduler.update(output, result_of(output), 0.0)
    output, _ = step(scheduler, 0.0)
    assert output.preempted == ("low",) and set(tokens_of(output)) == {"head", "other"}, "without a border it does"
