"""The margin follows the promises that are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.promise_margin import (
    CALM_PROMISES,
    FIRST_MARGIN,
    MAX_MARGIN,
    MIN_BROKEN,
    SETTLE_PROMISES,
    STEP,
    PromiseMargin,
)


def test_broken_promises_widen_the_margin_up_to_a_bound() -> None:
    margin = PromiseMargin()
    for _ in range(MIN_BROKEN):
        assert margin.value == FIRST_MARGIN
        margin.ended(is_kept=False)
    for _ in range(SETTLE_PROMISES):
        assert margin.value == 2 * FIRST_MARGIN, "these were made before the margin was raised"
        margin.ended(is_kept=False)
    for _ in range(1000):
        margin.ended(is_kept=False)
    assert margin.value == MAX_MARGIN
    assert (margin.num_kept, margin.num_broken) == (0, 1000 + MIN_BROKEN + SETTLE_PROMISES)


def test_a_few_broken_of_many_are_what_was_promised() -> None:
    margin = PromiseMargin()
    for index in range(10_000):
        margin.ended(is_kept=index % 250 != 0)  # 0.4 %: neither too many nor none
        margin.refused()
    assert margin.value == FIRST_MARGIN
    for index in range(3000):
        margin.ended(is_kept=index % 50 != 0)
    assert margin.value > FIRST_MARGIN


def test_kept_promises_narrow_it_only_where_somebody_was_refused() -> None:
    margin = PromiseMargin()
    for _ in range(5000):
        margin.ended(is_kept=True)
    assert margin.value == FIRST_MARGIN
    margin.refused()
    for _ in range(CALM_PROMISES):
        margin.ended(is_kept=True)
    assert margin.value == FIRST_MARGIN - STEP
    for _ in range(100 * CALM_PROMISES):
        margin.refused()
        margin.ended(is_kept=True)
    assert margin.value == 0.0


@given(st.lists(st.sampled_from(["kept", "broken", "refused"]), max_size=300))
def test_it_stays_within_bounds_and_equal_histories_give_equal_margins(events: list[str]) -> None:
    margins = PromiseMargin(), PromiseMargin()
    for event in events * 3:
        for margin in margins:
            if event == "refused":
                margin.refused()
            else:
                margin.ended(is_kept=event == "kept")
            margin.check()
    assert margins[0].value == margins[1].value
