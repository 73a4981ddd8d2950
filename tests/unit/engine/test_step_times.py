"""What steps of a simulated machine take: attention by parts, copies, noise; and what its scheduler believes."""

from __future__ import annotations

import math
import random

import pytest

from engine.profile_grid import ProfileLimits
from engine.simulation.sampled_cost import fit_cost
from engine.simulation.simulator import Simulator
from engine.simulation.step_times import EXACT, StepTimes, StepVariation
from engine.simulation.traffic import draw_traffic
from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.known_models import known_shape
from offload.step_cost import Quantile
from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.output import ScheduledRequest, SchedulerOutput
from scheduler.slo import SLOClasses
from scheduler.step_features import StepFeatures
from tests.offload_shapes import FlatCost
from tests.simulations import FIXED_S, HEAD_S, LAYER_S, NUM_LAYERS, LinearCost, make_machine, mix_of

LLAMA = HardwareCost.effective(find_hardware("h100"), known_shape("llama-3-8b", "bfloat16"))


def step_of(*parts: tuple[int, int]) -> SchedulerOutput:
    """Each part computes so many tokens behind so many."""
    scheduled = (ScheduledRequest(f"r{i}", n, behind, 0, (), n == 1) for i, (n, behind) in enumerate(parts))
    return SchedulerOutput(0, 0.0, tuple(scheduled))


def test_each_part_of_a_mixed_step_attends_to_its_own_context() -> None:
    """Recomputed from the roofline: matrices once for all rows; attention of the chunk and of the decodes apart."""
    shape = LLAMA.shape
    rows, chunk, behind, contexts = 300 + 3, 300, 700, (1001, 2001, 31)
    matrices_s = max(shape.mean_layer_bytes / 2.6e12, 2.0 * shape.layer_parameters * rows / 600e12)
    kv_bytes = shape.kv_bytes_per_token / shape.num_layers
    per_pair = 4.0 * shape.num_heads * shape.head_dim / 600e12
    chunk_s = max(kv_bytes * (behind + chunk) / 2.6e12, per_pair * chunk * (behind + (chunk + 1) / 2))
    decode_s = max(kv_bytes * sum(contexts) / 2.6e12, per_pair * sum(contexts))
    expected_s = 32 * (matrices_s + chunk_s + decode_s + 20e-6) + LLAMA.head_s(3, Quantile.P50) + 1e-3
    step = step_of((chunk, behind), *((1, context - 1) for context in contexts))
    assert StepTimes(LLAMA, 32).step_s(step) == pytest.approx(expected_s, rel=1e-9)


def test_a_step_takes_at_least_its_copies_and_pays_what_is_beside_them() -> None:
    cost = FlatCost(layer=1e-3, per_row=0.0, head=2e-3, fixed=1e-3, rate=1e9)
    step = step_of((1, 9))
    assert StepTimes(cost, 4, streamed_bytes=3_000_000).step_s(step) == pytest.approx(4e-3 + 2e-3 + 1e-3)
    assert StepTimes(cost, 4, streamed_bytes=9_000_000).step_s(step) == pytest.approx(9e-3 + 1e-3)
    slowed = FlatCost(layer=1e-3, per_row=0.0, head=2e-3, fixed=1e-3, rate=1e9, slowdown=1.5)
    assert StepTimes(slowed, 4, streamed_bytes=1).step_s(step) == pytest.approx(6e-3 + 2e-3 + 1e-3)
    assert StepTimes(slowed, 4).step_s(step) == pytest.approx(4e-3 + 2e-3 + 1e-3)


def test_noise_has_the_ratio_asked_for_about_an_unmoved_median() -> None:
    step = step_of((1, 9))
    exact_s = StepTimes(FlatCost(), 4).step_s(step)
    noisy, again = (StepTimes(FlatCost(), 4, variation=StepVariation(1.2, seed=5)) for _ in range(2))
    ratios = sorted(noisy.step_s(step) / exact_s for _ in range(4000))
    assert ratios[2000] == pytest.approx(1.0, abs=0.01)
    assert ratios[3800] == pytest.approx(1.2, abs=0.015)
    assert ratios == sorted(again.step_s(step) / exact_s for _ in range(4000))


def test_a_slowdown_is_a_factor_on_every_step() -> None:
    step = step_of((40, 9), (1, 3))
    exact_s = StepTimes(FlatCost(), 4).step_s(step)
    assert StepTimes(FlatCost(), 4, variation=StepVariation(slowdown=1.25)).step_s(step) == pytest.approx(
        1.25 * exact_s
    )


@pytest.mark.parametrize("values", [{"noise": 0.9}, {"noise": math.nan}, {"slowdown": 0.0}, {"slowdown": math.inf}])
def test_a_variation_that_cannot_be_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        StepVariation(**values)


def random_step(rng: random.Random) -> SchedulerOutput:
    decodes = [(1, rng.randrange(4000)) for _ in range(rng.randint(1, 60))]
    return step_of(*decodes, *((rng.randint(16, 224), rng.randrange(3000)) for _ in range(rng.randint(0, 2))))


def test_costs_of_the_models_form_are_predicted_exactly_and_their_p95_is_their_mean() -> None:
    machine = make_machine(cost=LinearCost())
    assert machine.latency.p95_factors == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)
    model, times, rng = LatencyModel(machine.latency), StepTimes(machine.cost, NUM_LAYERS), random.Random(0)
    for _ in range(100):
        step = random_step(rng)
        features = StepFeatures.of(step.scheduled)
        assert model.mean_s(features, NO_LINK) == pytest.approx(times.step_s(step), rel=1e-9)
        assert model.p95_s(features, NO_LINK) == pytest.approx(model.mean_s(features, NO_LINK), rel=1e-9)


def test_a_rooflines_steps_are_predicted_within_some_percent() -> None:
    latency = fit_cost(LLAMA, 32, ProfileLimits(64, 512, 8192, 400_000))
    assert max(latency.p95_factors) < 1.03
    model, times, rng = LatencyModel(latency), StepTimes(LLAMA, 32), random.Random(1)
    errors = []
    for _ in range(300):
        step = random_step(rng)
        errors.append(abs(model.mean_s(StepFeatures.of(step.scheduled), NO_LINK) / times.step_s(step) - 1.0))
    assert sorted(errors)[285] < 0.05 and max(errors) < 0.1


def test_the_scheduler_of_a_simulation_predicts_its_steps_and_sees_the_link() -> None:
    machine = make_machine(num_streamed_layers=6)
    link = machine.link()
    assert (link.num_streamed_layers, link.num_resident_layers) == (6, 10)
    copies_s = machine.streamed_bytes / link.h2d.p50_bytes_per_s
    assert copies_s > NUM_LAYERS * LAYER_S + HEAD_S, "decodes are to be bound by the link"
    (request,) = draw_traffic((mix_of("batch", 8, 5),), 1, 1.0, 0, machine.max_model_len).requests
    simulator = Simulator(machine, SchedulerConfig(), SLOClasses(), EXACT)
    stats = [turn.outputs.stats for turn in simulator.run([request])]
    for one in stats:
        assert one.step_s == pytest.approx(copies_s + FIXED_S)
        assert one.predicted_s == pytest.approx(one.step_s)
    blind = Simulator(machine, SchedulerConfig(), SLOClasses(), predicts_steps=False)
    assert {turn.outputs.stats.predicted_s for turn in blind.run([request])} == {None}


def test_a_misprediction_is_learned() -> None:
    machine = make_machine()
    (request,) = draw_traffic((mix_of("batch", 8, 80),), 1, 1.0, 0, machine.max_model_len).requests
    simulator = Simulator(machine, SchedulerConfig(), SLOClasses(), StepVariation(slowdown=1.25))
    stats = [turn.outputs.stats for turn in simulator.run([request])]
    ratios = [one.step_s / one.predicted_s for one in stats if one.predicted_s is not None]
    assert ratios[1] == pytest.approx(1.25, rel=0.01)
    assert ratios[-1] == pytest.approx(1.0, rel=0.02)
