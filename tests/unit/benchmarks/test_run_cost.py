"""Costs of a run: ratios, what lies between measured loads, and the prediction that is made of them."""

from __future__ import annotations

import pytest

from benchmarks.run_cost import OneStepCost, RunCost, ShapeTimes, interpolate, predict, scaled_to
from benchmarks.streamed_rig import cap_for_ratio
from engine.profile_grid import StepShape
from offload.placement import Placement
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.step_times import ComputeTimes
from offload.transfer import Direction
from tests.offload_shapes import make_shape

NUM_LAYERS = 10
LAYER_S = 1e-3


def cost(link_bytes_s: float = 1e9, slowdown: float = 1.0) -> RunCost:
    decode = {
        batch: ShapeTimes(StepShape(batch, 1, 128), NUM_LAYERS * LAYER_S * factor, 2e-3 * factor, 1.2)
        for batch, factor in ((1, 1.0), (8, 2.0), (32, 5.0))
    }
    prefill = {128: ShapeTimes(StepShape(1, 128, 128), 0.05, 2e-3, 1.1)}
    return RunCost(NUM_LAYERS, decode, prefill, {True: slowdown, False: slowdown}, link_bytes_s, restart_s=0.0)


def test_the_cap_gives_the_ratio_wanted() -> None:
    cap = cap_for_ratio(7_000_000, 250e-6, 13.8)
    assert 7_000_000 / cap / 250e-6 == pytest.approx(13.8)


@pytest.mark.parametrize(("at", "expected"), [(0, 1.0), (1, 1.0), (2, 3.0), (3, 5.0), (4, 5.5), (5, 6.0), (7, 7.0)])
def test_straight_between_points_and_along_the_last_two_beyond(at: float, expected: float) -> None:
    assert interpolate({1: 1.0, 3: 5.0, 5: 6.0}, at) == pytest.approx(expected)


def test_a_single_point_is_what_everything_costs() -> None:
    assert interpolate({8: 3.0}, 1) == interpolate({8: 3.0}, 100) == 3.0


def test_measured_loads_cost_what_was_measured() -> None:
    for batch, factor in ((1, 1.0), (8, 2.0), (32, 5.0)):
        load = StepLoad.decode(batch, 128)
        assert cost().quiet_layer_s(load, Quantile.P50) == pytest.approx(LAYER_S * factor)
        assert cost().step_s(load) == pytest.approx((NUM_LAYERS * LAYER_S + 2e-3) * factor)
    assert cost().quiet_layer_s(StepLoad(128, 1, 128), Quantile.P50) == pytest.approx(0.005)


def test_copies_slow_layers_and_leave_the_head_alone() -> None:
    load, slow = StepLoad.decode(8, 128), cost(slowdown=1.1)
    assert slow.layer_s(load, Quantile.P50) == pytest.approx(1.1 * slow.quiet_layer_s(load, Quantile.P50))
    one = OneStepCost.of(slow, load)
    assert one.layer_s(load, Quantile.P50) == pytest.approx(1.1 * one.quiet_layer_s(load, Quantile.P50))
    assert one.head_s(8, Quantile.P50) == pytest.approx(4e-3)
    assert one.link_bytes_per_s(Direction.H2D, Quantile.P95) == 1e9


def test_p95_is_the_worst_factor_of_its_phase() -> None:
    load = StepLoad.decode(8, 128)
    assert cost().layer_s(load, Quantile.P95) == pytest.approx(1.2 * cost().layer_s(load, Quantile.P50))


def test_a_believed_cost_is_of_computation_alone() -> None:
    load = StepLoad.decode(8, 128)
    one = OneStepCost.of(cost(), load)
    believed = one.believed(0.5)
    assert believed.layer_s(load, Quantile.P50) == pytest.approx(one.layer_s(load, Quantile.P50) / 2)
    assert believed.link_bytes_s == one.link_bytes_s


def test_scaling_keeps_proportions() -> None:
    times = scaled_to(ComputeTimes((1.0, 2.0), 1.0, 0.0), 4.0, 6.0)
    assert times == ComputeTimes((1.5, 3.0), 1.5, 0.0)


def test_a_prediction_without_copies_is_the_quiet_step_and_one_of_all_layers_is_the_links() -> None:
    shape = make_shape((10 * 1024 * 1024,) * NUM_LAYERS)
    load, placement = StepLoad.decode(8, 128), Placement(shape, 2)
    link_bytes_s = shape.mean_layer_bytes / (20 * LAYER_S)
    slow = cost(link_bytes_s, slowdown=1.2)
    assert predict(slow, load, placement, 2).step_s == pytest.approx(slow.step_s(load))
    everything = predict(slow, load, placement, NUM_LAYERS)
    assert everything.step_s == pytest.approx(NUM_LAYERS * 20 * LAYER_S, rel=0.02)
    assert predict(slow, load, placement, 2, 2 * slow.step_s(load)).step_s == pytest.approx(2 * slow.step_s(load))
    assert everything.link_busy_share == pytest.approx(1.0)
