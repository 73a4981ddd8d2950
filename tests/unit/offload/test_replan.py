"""A plan judged anew at another speed: memory as it was, classes as a plan made for that speed has them."""

from __future__ import annotations

import dataclasses

import pytest

from offload.live_cost import LiveCost
from offload.plan import OffloadPlan
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.planner import plan
from offload.replan import replan
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.transfer import Direction
from tests.offload_shapes import CLASSES, MB, FlatCost, make_shape

SHAPE = make_shape()
COST = FlatCost(rate=12e9, spread=1.05)
REQUEST = PlanRequest(SHAPE.weights_bytes - 40 * MB, load=ReferenceLoad(1, 64, 64, 64), may_cut_layers=False)
JUDGED = {"classes", "predicted_step_s", "exposed_s", "link_busy_share", "tpot_s_by_k"}
"""Fields that are of a speed; all others are of memory."""


def first_plan() -> OffloadPlan:
    made = plan(SHAPE, COST, CLASSES, REQUEST)
    assert isinstance(made, OffloadPlan)
    return made


def anew(cost: FlatCost | LiveCost) -> OffloadPlan:
    return replan(first_plan(), SHAPE, cost, CLASSES, REQUEST)


def test_at_the_same_speed_it_is_the_same_plan() -> None:
    assert anew(COST) == first_plan()


@pytest.mark.parametrize("factor", [0.5, 0.1, 2.0])
def test_memory_stays_and_classes_are_those_of_a_plan_for_that_speed(factor: float) -> None:
    cost = dataclasses.replace(COST, rate=COST.rate * factor)
    before, after = first_plan(), anew(cost)
    for field in dataclasses.fields(OffloadPlan):
        if field.name not in JUDGED:
            assert getattr(after, field.name) == getattr(before, field.name), field.name
    made = plan(SHAPE, cost, CLASSES, dataclasses.replace(REQUEST, num_slots=before.num_slots))
    assert isinstance(made, OffloadPlan)
    assert (made.unit_bytes, made.min_streamed_layers) == (before.unit_bytes, before.min_streamed_layers)
    for ours, theirs in zip(after.classes, made.classes, strict=True):
        assert (ours.name, ours.is_open, ours.is_best_effort) == (theirs.name, theirs.is_open, theirs.is_best_effort)
        assert ours.floor_ttft_s == pytest.approx(theirs.floor_ttft_s)
        assert ours.floor_tpot_s == pytest.approx(theirs.floor_tpot_s)
    num_alike = min(len(made.tpot_s_by_k), len(after.tpot_s_by_k))
    assert after.tpot_s_by_k[:num_alike] == pytest.approx(made.tpot_s_by_k[:num_alike])
    if made.streamed_layers == before.streamed_layers:
        assert after.predicted_step_s == pytest.approx(made.predicted_step_s)


@pytest.mark.parametrize(("factor", "are_open"), [(1.0, [True] * 4), (0.1, [False, False, True, True])])
def test_a_drop_closes_what_may_be_closed_and_calls_the_rest_best_effort(factor: float, are_open: list[bool]) -> None:
    after = anew(dataclasses.replace(COST, rate=COST.rate * factor))
    assert [each.is_open for each in after.classes] == are_open
    for each in after.classes:
        is_met = each.max_streamed_layers is not None
        assert each.is_best_effort == (each.is_open and not is_met)
        assert f"{each.floor_tpot_s * 1e3:.0f}" in each.explanation or is_met


def test_recovery_gives_the_first_plan_again() -> None:
    slow = replan(first_plan(), SHAPE, dataclasses.replace(COST, rate=2e8), CLASSES, REQUEST)
    assert slow != first_plan()
    assert replan(slow, SHAPE, COST, CLASSES, REQUEST) == first_plan()


def test_computing_that_is_slower_than_recorded_closes_classes_too() -> None:
    """A slow clock or a busy neighbour: the same step, and nothing about the link has changed."""
    rate = COST.link_bytes_per_s(Direction.H2D, Quantile.P95)
    as_recorded, slow = anew(LiveCost(COST, rate)), anew(LiveCost(COST, rate, compute_factor=3.0))
    assert sum(c.max_streamed_layers is not None for c in slow.classes) < sum(
        c.max_streamed_layers is not None for c in as_recorded.classes
    )
    assert slow.classes[0].floor_tpot_s > 1.5 * as_recorded.classes[0].floor_tpot_s


def test_live_numbers_stand_in_for_recorded_ones() -> None:
    live, load = LiveCost(COST, 1e8, compute_factor=2.0), StepLoad.decode(4, 100)
    for quantile in Quantile:
        assert live.layer_s(load, quantile) == 2 * COST.layer_s(load, quantile)
        assert live.quiet_layer_s(load, quantile) == 2 * COST.quiet_layer_s(load, quantile)
        assert live.head_s(4, quantile) == 2 * COST.head_s(4, quantile)
        assert live.link_bytes_per_s(Direction.H2D, quantile) == 1e8
        assert live.link_bytes_per_s(Direction.D2H, quantile) == COST.link_bytes_per_s(Direction.D2H, quantile)
    assert live.fixed_s() == COST.fixed_s(), "what steps take besides is no computing of layers"
