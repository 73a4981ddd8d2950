"""k follows the need: up at once, down after a while, and never beyond what the classes served allow."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.plan import ClassPlan, OffloadPlan
from offload.residency_controller import (
    HOLD_S,
    LATE_HOLD_S,
    SPARE_TO_RAISE,
    ResidencyChange,
    ResidencyController,
    ResidencyNeed,
)

BLOCKS = (10, 20, 30, 40, 50)
"""At k = 2..6."""
TPOT_S = (0.02, 0.03, 0.04, 0.05, 0.06)
"""Likewise, as the plan says."""
NUM_SLOTS = 2


def make_plan(**limits: int | None) -> OffloadPlan:
    classes = tuple(
        ClassPlan(name, limit is not None, limit is None, limit, 1.0, 0.1, 1.0, 0.1, "")
        for name, limit in limits.items()
    )
    return OffloadPlan(
        "interval", 2, "layer", (100,) * 8, None, 2, 6, 2, 100, 200, 0, BLOCKS[0], 160, 0, 800, 512, 0.1, 0.0, 0.5,
        classes, {}, 10, BLOCKS, TPOT_S,
    )  # fmt: skip


def need(num_blocks: int, *classes: str) -> ResidencyNeed:
    return ResidencyNeed(num_blocks, classes)


def promised(
    tpot_s: float, decode_s: float | None = None, *, is_late: bool = False, num_blocks: int = 45
) -> ResidencyNeed:
    """A promise to a request of a class that bears every k, and by default a need for the most layers."""
    return ResidencyNeed(num_blocks, ("standard",), tpot_s, decode_s, is_late)


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


@pytest.mark.parametrize(
    ("tpot_s", "decode_s", "expected"),
    [
        (1.0, None, 6),
        (0.0631, None, 5),  # 6 layers take 60 ms, and a twentieth of the promise is to be left
        (0.0632, None, 6),
        (0.05, 0.02, 4),
        (0.05, 0.0476, None),  # what runs is that slow already
        (0.02, None, None),
    ],
)
def test_no_more_layers_are_streamed_than_the_tightest_promise_bears(
    tpot_s: float, decode_s: float | None, expected: int | None
) -> None:
    change = ResidencyController(make_plan(standard=6)).decide(2, promised(tpot_s, decode_s), 0.0)
    assert change == (None if expected is None else ResidencyChange(expected, "memory"))


def test_the_promise_of_a_request_does_not_take_back_what_is_streamed_while_it_is_kept() -> None:
    controller = ResidencyController(make_plan(standard=6))
    assert controller.decide(6, promised(0.03, 0.029), 0.0) is None
    assert controller.decide(6, promised(0.03, 0.029, num_blocks=35), 0.0) is None, "less need waits as ever"
    assert controller.decide(6, promised(0.03, 0.029, num_blocks=35), HOLD_S) == ResidencyChange(5, "idle")


def test_layers_come_back_at_once_where_requests_are_late_whatever_the_need() -> None:
    controller = ResidencyController(make_plan(standard=6))
    late = promised(0.05, 0.06, is_late=True)
    assert [controller.decide(k, late, 0.0) for k in (6, 5, 4, 3)] == [
        ResidencyChange(k - 1, "late") for k in (6, 5, 4, 3)
    ]
    assert controller.decide(NUM_SLOTS, late, 0.0) is None, "layers that all have a slot cost no time"


def test_a_k_at_which_requests_were_late_is_left_alone_for_a_while() -> None:
    controller = ResidencyController(make_plan(standard=6))
    assert controller.decide(6, promised(0.08, 0.09, is_late=True), 1.0) == ResidencyChange(5, "late")
    in_time = promised(0.08, 0.07)
    assert controller.decide(5, in_time, 1.0) is None
    assert controller.decide(4, in_time, 2.0) == ResidencyChange(5, "memory"), "up to the one below"
    assert controller.decide(5, promised(0.2, 0.07), 2.0) == ResidencyChange(6, "memory"), "it binds the tight only"
    assert controller.decide(5, need(45, "standard"), 2.0) == ResidencyChange(6, "memory"), "or nobody"
    assert controller.decide(5, in_time, 0.99 + LATE_HOLD_S) is None
    assert controller.decide(5, in_time, 1.0 + LATE_HOLD_S) == ResidencyChange(6, "memory")


def test_another_plan_forgets_who_was_late() -> None:
    controller = ResidencyController(make_plan(standard=6))
    controller.decide(6, promised(0.08, 0.09, is_late=True), 1.0)
    controller.adopt(make_plan(standard=6))
    assert controller.decide(5, promised(0.08, 0.07), 1.0) == ResidencyChange(6, "memory")


@given(
    compute_s=st.floats(0.005, 0.08),
    s_per_layer=st.floats(0.004, 0.02),
    history=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([None, 0.03, 0.05, 0.08, 0.2]), st.integers(1, 60)),
        min_size=1,
        max_size=6,
    ),
)
def test_a_machine_that_is_not_as_planned_is_late_rarely_and_k_does_not_flap(
    compute_s: float, s_per_layer: float, history: list[tuple[int, float | None, int]]
) -> None:
    """Decodes take max(computing, copies) on a machine that the plan has wrong; every step is judged by that."""

    def step_s(k: int) -> float:
        return max(compute_s, s_per_layer * k if k > NUM_SLOTS else 0.0)

    controller = ResidencyController(make_plan(standard=6))
    k, now_s = 2, 0.0
    for num_blocks, tpot_s, num_steps in history:
        late_s: dict[int, float] = {}  # by k, under one promise
        for _ in range(num_steps):
            is_late = tpot_s is not None and step_s(k - 1) < step_s(k) > tpot_s
            decode_s = None if tpot_s is None else step_s(k)
            change = controller.decide(k, ResidencyNeed(num_blocks, ("standard",), tpot_s, decode_s, is_late), now_s)
            if is_late and k > NUM_SLOTS:
                assert change == ResidencyChange(k - 1, "late"), "one layer a step, at once"
                assert now_s - late_s.get(k, -LATE_HOLD_S) >= LATE_HOLD_S, "back where they were late a moment ago"
                late_s[k] = now_s
            elif tpot_s is not None and change is not None and change.streamed_layers > k:
                bound_s = (1.0 - SPARE_TO_RAISE) * tpot_s
                assert TPOT_S[change.streamed_layers - 2] <= bound_s and step_s(k) <= bound_s
            k = k if change is None else change.streamed_layers
            now_s += 0.4


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
