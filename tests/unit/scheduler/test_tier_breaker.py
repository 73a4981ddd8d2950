"""When a failing tier goes off, and how it comes back."""

from __future__ import annotations

import pytest

from scheduler.kv_transfer import BlockOutcome, TransferKind
from scheduler.tier_breaker import FIRST_OFF_S, MAX_FAILURES, MAX_OFF_S, TierBreaker

READ, WRITE = TransferKind.READ, TransferKind.WRITE
DONE, FAILED = BlockOutcome.DONE, BlockOutcome.FAILED


def run(breaker: TierBreaker, outcome: BlockOutcome, times: int = 1) -> None:
    for _ in range(times):
        breaker.begin(READ, b"a")
        breaker.end(READ, b"a", outcome)
        breaker.check()


def open_breaker(now_s: float = 100.0) -> TierBreaker:
    breaker = TierBreaker()
    breaker.observe(now_s)
    run(breaker, FAILED, MAX_FAILURES)
    assert not breaker.is_on
    return breaker


def test_one_success_forgives_all() -> None:
    breaker = TierBreaker()
    for _ in range(10):
        run(breaker, FAILED, MAX_FAILURES - 1)
        run(breaker, DONE)
    assert breaker.is_on and breaker.num_openings == 0


@pytest.mark.parametrize("outcome", [BlockOutcome.CORRUPT, BlockOutcome.ABSENT, BlockOutcome.FULL])
def test_other_ends_say_nothing_of_the_tier(outcome: BlockOutcome) -> None:
    breaker = TierBreaker()
    run(breaker, outcome, 100)
    assert breaker.is_on
    run(breaker, FAILED, MAX_FAILURES - 1)
    run(breaker, outcome, 100)
    assert breaker.is_on
    run(breaker, FAILED)
    assert not breaker.is_on


def test_off_until_the_time_is_over_then_a_single_trial() -> None:
    breaker = open_breaker(100.0)
    assert not breaker.may_begin
    with pytest.raises(ValueError, match="off until 130 s"):
        breaker.begin(READ, b"b")
    breaker.observe(100.0 + FIRST_OFF_S - 0.001)
    assert not breaker.may_begin
    breaker.observe(100.0 + FIRST_OFF_S)
    assert breaker.may_begin and not breaker.is_on
    breaker.begin(WRITE, b"b")
    assert not breaker.may_begin and not breaker.is_on, "one block decides"
    with pytest.raises(ValueError, match="trial is under way"):
        breaker.begin(READ, b"c")
    breaker.end(WRITE, b"b", DONE)
    assert breaker.is_on and breaker.may_begin


def test_failed_trials_double_the_time_up_to_a_limit() -> None:
    breaker, now_s, off_s = open_breaker(0.0), 0.0, FIRST_OFF_S
    for _ in range(10):
        breaker.observe(now_s + off_s - 0.001)
        assert not breaker.may_begin
        now_s += off_s
        breaker.observe(now_s)
        run(breaker, FAILED)
        off_s = min(2 * off_s, MAX_OFF_S)
    assert off_s == MAX_OFF_S and breaker.num_openings == 11
    breaker.observe(now_s + MAX_OFF_S)
    run(breaker, DONE)
    run(breaker, FAILED, MAX_FAILURES)
    breaker.observe(now_s + MAX_OFF_S + FIRST_OFF_S)
    assert breaker.may_begin, "after a success it starts with the shortest time"


def test_a_trial_that_says_nothing_is_followed_by_another() -> None:
    breaker = open_breaker(0.0)
    breaker.observe(FIRST_OFF_S)
    run(breaker, BlockOutcome.ABSENT)
    assert not breaker.is_on and breaker.may_begin


@pytest.mark.parametrize("outcome", [DONE, FAILED])
def test_what_began_before_decides_nothing(outcome: BlockOutcome) -> None:
    breaker = open_breaker(0.0)
    breaker.end(READ, b"late", outcome)
    assert not breaker.is_on
    breaker.observe(FIRST_OFF_S)
    breaker.begin(READ, b"trial")
    breaker.end(WRITE, b"trial", outcome)
    assert not breaker.is_on and not breaker.may_begin, "another kind of operation on the same block"
    breaker.end(READ, b"trial", DONE)
    assert breaker.is_on


def test_time_does_not_run_backwards() -> None:
    breaker = open_breaker(100.0)
    breaker.observe(100.0 + FIRST_OFF_S)
    breaker.observe(3.0)
    assert breaker.may_begin
