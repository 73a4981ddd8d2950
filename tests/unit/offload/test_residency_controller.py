"""k follows the need: up at once, down after a while, and never beyond what the classes served allow."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.plan import ClassPlan, OffloadPlan
from offload.residency_controller import HOLD_S, ResidencyChange, ResidencyController, ResidencyNeed

BLOCKS = (10, 20, 30, 40, 50)
"""At k = 2..6."""


def make_plan(**limits: int | None) -> OffloadPlan:
    classes = tuple(
        ClassPlan(name, limit is not None, limit is None, limit, 1.0, 0.1, 1.0, 0.1, "")
        for name, limit in limits.items()
    )
    return OffloadPlan(
        "interval", 2, "layer", (100,) * 8, None, 2, 6, 2, 100, 200, 0, BLOCKS[0], 160, 0, 800, 512, 0.1, 0.0, 0.5,
        classes, {}, 10, BLOCKS,
    )  # fmt: skip


def need(num_blocks: int, *classes: str) -> ResidencyNeed:
    return ResidencyNeed(num_blocks, classes)


def test_need_is_met_at_once_by_as_many_layers_as_it_takes() -> None:
    controller = ResidencyController(make_plan(standard=6))
    assert controller.decide(2, need(9, "standard"), 0.0) is None
    assert controller.decide(2, need(10, "standard"), 0.0) == ResidencyChange(3, "memory"), "one to spare"
    assert controller.decide(2, need(33, "standard"), 0.0) == ResidencyChange(5, "memory")
    assert controller.decide(2, need(10_000, "standard"), 0.0) == ResidencyChange(6, "memory"), "the most there is"


def test_a_layer_comes_back_once_less_was_enough_for_a_while() -> None:
    controller = ResidencyController(make_plan(standard=6))
    assert controller.decide(5, need(1), 0.0) is None
    assert controller.decide(5, need(1), HOLD_S * 0.9) is None
    assert controller.decide(5, need(1), HOLD_S) == ResidencyChange(4, "idle")
    assert controller.decide(4, need(1), HOLD_S) is None, "the next one waits as long again"
    assert controller.decide(4, need(1), 2 * HOLD_S) == ResidencyChange(3, "idle")


def test_need_that_comes_and_goes_moves_nothing_down() -> None:
    controller = ResidencyController(make_plan(standard=6))
    for tick in range(100):
        blocks = 1 if tick % 2 else 33
        assert controller.decide(5, need(blocks), tick * HOLD_S * 0.6) is None


def test_a_class_that_would_miss_its_target_is_heard_at_once() -> None:
    controller = ResidencyController(make_plan(interactive=3, standard=6))
    assert controller.decide(5, need(1, "standard"), 0.0) is None
    assert controller.decide(5, need(1, "interactive"), 0.0) == ResidencyChange(4, "class")
    assert controller.decide(3, need(45, "interactive"), 0.0) is None, "the class's limit holds against need"
    assert controller.decide(3, need(45, "standard"), 0.0) == ResidencyChange(6, "memory")


@pytest.mark.parametrize("closed", ["realtime", "standard"])
def test_a_class_that_cannot_be_met_is_not_asked(closed: str) -> None:
    controller = ResidencyController(make_plan(**{closed: None}))
    assert controller.decide(2, need(45, closed), 0.0) == ResidencyChange(6, "memory")


def test_another_plan_starts_afresh() -> None:
    controller = ResidencyController(make_plan(standard=6))
    controller.decide(5, need(1), 0.0)
    controller.adopt(dataclasses.replace(make_plan(standard=6), kv_blocks_by_k=(100,) * 5))
    assert controller.decide(5, need(1), HOLD_S) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 80), st.sets(st.sampled_from(["interactive", "standard"])), st.floats(0.0, 0.5)),
        max_size=60,
    )
)
def test_k_stays_within_the_plan_and_comes_down_slowly(history: list[tuple[int, set[str], float]]) -> None:
    controller = ResidencyController(make_plan(interactive=3, standard=6))
    k, now_s = 2, 0.0
    last_idle_s = -HOLD_S
    for num_blocks, classes, wait_s in history:
        now_s += wait_s
        change = controller.decide(k, ResidencyNeed(num_blocks, classes), now_s)
        if change is None:
            continue
        assert 2 <= change.streamed_layers <= 6
        assert change.streamed_layers > k or change.streamed_layers == k - 1
        if change.reason == "idle":
            assert now_s - last_idle_s >= HOLD_S
            last_idle_s = now_s
        if change.reason == "memory":
            assert BLOCKS[change.streamed_layers - 3] <= num_blocks * 1.05 + 1, "one layer less would have done"
        k = change.streamed_layers
