"""Deadlines of one request's tokens: anchored at its first, capped by the stall, put off once they cannot be kept."""

from __future__ import annotations

import pytest

from scheduler.token_deadlines import MAX_MISSES, TokenDeadlines


def test_the_first_token_anchors_the_others_wherever_it_comes() -> None:
    for first_s in (0.25, 1.0):
        deadlines = TokenDeadlines(1.0, 0.5, None, 0.0)
        assert deadlines.next_s == 1.0
        deadlines.emitted(first_s)
        assert deadlines.next_s == first_s + 0.5
        deadlines.emitted(first_s + 0.125)  # what it gains is its own
        assert deadlines.next_s == first_s + 1.0
        assert deadlines.num_misses == 0
        deadlines.check()


def test_a_stall_caps_what_a_stream_may_save_up() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, 0.75, 0.0)
    deadlines.emitted(1.0)
    deadlines.emitted(1.125)
    assert deadlines.next_s == 1.875
    deadlines.emitted(1.875)
    assert deadlines.next_s == 2.5


def test_the_egress_is_taken_off_every_deadline() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, 0.75, 0.0625)
    assert deadlines.next_s == 1.0 - 0.0625
    deadlines.start(0.75)
    assert deadlines.next_s == 0.75 - 0.0625
    deadlines.emitted(0.5)
    assert deadlines.next_s == 1.0 - 0.0625
    deadlines.emitted(0.625)
    assert deadlines.next_s == 1.375 - 0.0625


def test_a_late_token_moves_the_anchor_and_what_is_gained_moves_it_back() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, None, 0.0)
    deadlines.emitted(1.0)
    deadlines.emitted(1.75)  # a quarter late
    assert (deadlines.num_misses, deadlines.next_s) == (1, 2.25)
    deadlines.emitted(2.125)  # on time, an eighth gained
    assert (deadlines.num_misses, deadlines.next_s) == (1, 2.625)
    deadlines.emitted(2.25)  # more than the other eighth: it is on its first line, 1.0 + k / 2
    assert (deadlines.num_misses, deadlines.next_s) == (1, 3.0)
    deadlines.check()


def test_a_token_that_is_put_off_again_and_again_is_one_miss() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, None, 0.0)
    deadlines.emitted(1.0)
    for earliest_s in (1.75, 2.0, 1.5):
        deadlines.rebase(earliest_s)
    assert (deadlines.num_misses, deadlines.next_s) == (1, 2.0)
    deadlines.check()
    deadlines.emitted(2.25)
    assert (deadlines.num_misses, deadlines.next_s) == (1, 2.75)
    deadlines.check()


def test_a_request_that_stays_behind_is_lost_until_it_has_caught_up() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, None, 0.0)
    now_s = 1.0
    deadlines.emitted(now_s)
    for num_late in range(1, MAX_MISSES + 2):
        assert not deadlines.is_lost
        now_s += 0.625
        deadlines.emitted(now_s)
        assert deadlines.num_misses == num_late
    assert deadlines.is_lost
    while deadlines.is_lost:
        now_s += 0.375
        deadlines.emitted(now_s)
        deadlines.check()
    num_tokens = round((deadlines.next_s - 1.0) / 0.5)  # the next one's number on the first line
    assert now_s <= 1.0 + (num_tokens - 1) * 0.5
    assert deadlines.num_misses == MAX_MISSES + 1


def test_misses_far_apart_do_not_lose_a_request() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, None, 0.0)
    now_s = 1.0
    deadlines.emitted(now_s)
    for _ in range(3 * MAX_MISSES):
        now_s = deadlines.next_s + 0.125
        deadlines.emitted(now_s)
        now_s += 0.25
        deadlines.emitted(now_s)
        assert not deadlines.is_lost
    assert deadlines.num_misses == 3 * MAX_MISSES


def test_a_late_first_token_is_a_miss_and_the_anchor() -> None:
    deadlines = TokenDeadlines(1.0, 0.5, None, 0.0)
    deadlines.emitted(3.0)
    assert (deadlines.num_misses, deadlines.next_s, deadlines.is_lost) == (1, 3.5, False)


@pytest.mark.parametrize(
    ("tpot_s", "max_stall_s", "egress_s", "named"),
    [(0.0, None, 0.0, "tpot_s"), (0.5, -1.0, 0.0, "max_stall_s"), (0.5, None, -0.1, "egress_s")],
)
def test_targets_that_cannot_be(tpot_s: float, max_stall_s: float | None, egress_s: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TokenDeadlines(1.0, tpot_s, max_stall_s, egress_s)
