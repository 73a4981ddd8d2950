"""Deadlines whatever comes when: they never move back, they add up to the targets, and late streams catch up."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler.token_deadlines import MAX_MISSES, TokenDeadlines

TICK_S = 1 / 1024
"""Times are multiples of this, so that sums of them are exact."""


@dataclasses.dataclass
class Ticks:
    """A request's targets and its tokens: the gaps between them, and how often each was put off before it came."""

    tpot: int
    stall: int | None
    egress: int
    gaps: list[int]
    puts_off: list[list[int]]


@st.composite
def streams(draw: st.DrawFn) -> Ticks:
    tpot = draw(st.integers(8, 40))
    stall = draw(st.one_of(st.none(), st.integers(tpot, 4 * tpot)))
    gaps = draw(st.lists(st.integers(1, 3 * tpot), min_size=2, max_size=40))
    puts_off = [draw(st.lists(st.integers(1, 3 * tpot), max_size=2)) if draw(st.booleans()) else [] for _ in gaps]
    return Ticks(tpot, stall, draw(st.integers(0, 7)), gaps, puts_off)


def _deadlines(stream: Ticks, first_s: float) -> TokenDeadlines:
    stall_s = None if stream.stall is None else stream.stall * TICK_S
    return TokenDeadlines(first_s, stream.tpot * TICK_S, stall_s, stream.egress * TICK_S)


@settings(max_examples=200, deadline=None)
@given(streams())
def test_deadlines_are_those_of_the_definition_and_never_move_back(stream: Ticks) -> None:
    """Against the definition in whole ticks, told from the history of all tokens."""
    deadlines = _deadlines(stream, 100.0)
    now = 0
    deadlines.emitted(0.0)
    history, missed = [0], 0
    anchor = 0
    for k, (gap, puts_off) in enumerate(zip(stream.gaps, stream.puts_off, strict=True), start=1):
        caps = [] if stream.stall is None else [history[-1] + stream.stall]
        due = min([anchor + k * stream.tpot, *caps]) - stream.egress
        assert Fraction(deadlines.next_s) == Fraction(due, 1024)
        # A token that is put off cannot be out before: it comes after the latest of those times.
        earliest = [now + wait for wait in puts_off]
        for time in earliest:
            before_s = deadlines.next_s
            deadlines.rebase(time * TICK_S)
            assert deadlines.next_s == max(before_s, time * TICK_S)
        now = max([now + gap, *earliest])
        deadlines.emitted(now * TICK_S)
        is_missed = now > due
        assert is_missed or all(time <= due for time in earliest)
        missed += is_missed
        if is_missed or anchor > 0:
            anchor = max(0, now - k * stream.tpot)
        assert deadlines.num_misses == missed
        last_due_s = max([due * TICK_S, *(time * TICK_S for time in earliest)])
        assert deadlines.next_s > last_due_s, "the next token is due before this one was"
        history.append(now)
        deadlines.check()


@settings(max_examples=200, deadline=None)
@given(streams(), st.data())
def test_without_misses_both_targets_are_met(stream: Ticks, data: st.DataObject) -> None:
    """Invariant 12: whatever a stream gains and spends, from the first token to the last."""
    deadlines = _deadlines(stream, 1.0)
    times = [0.0]
    deadlines.emitted(0.0)
    for _ in stream.gaps:
        room = round((deadlines.next_s - times[-1]) / TICK_S)
        times.append(times[-1] + data.draw(st.integers(1, room)) * TICK_S)
        deadlines.emitted(times[-1])
    assert deadlines.num_misses == 0
    assert (times[-1] - times[0]) / (len(times) - 1) <= stream.tpot * TICK_S
    if stream.stall is not None:
        assert max(b - a for a, b in itertools.pairwise(times)) <= stream.stall * TICK_S


@settings(max_examples=200, deadline=None)
@given(streams(), st.integers(1, 4))
def test_a_stream_that_runs_ahead_again_meets_its_target_after_all(stream: Ticks, gain: int) -> None:
    """After any misses: steps a little faster than the target lead back to the line of the first token."""
    deadlines = _deadlines(dataclasses.replace(stream, stall=None), 1.0)
    now, k = 0, 0
    deadlines.emitted(0.0)
    for gap in stream.gaps:
        now, k = now + gap, k + 1
        deadlines.emitted(now * TICK_S)
    num_misses = deadlines.num_misses
    behind = max(0, now - k * stream.tpot)
    gap = stream.tpot - stream.egress - gain if stream.tpot > stream.egress + gain else 1
    for _ in range(behind + 1):
        now, k = now + gap, k + 1
        deadlines.emitted(now * TICK_S)
    assert deadlines.num_misses == num_misses and not deadlines.is_lost
    assert now <= k * stream.tpot
    assert deadlines.next_s == pytest.approx(((k + 1) * stream.tpot - stream.egress) * TICK_S, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(streams(), st.integers(1, 20))
def test_a_stream_that_is_always_too_slow_is_lost_soon_and_for_good(stream: Ticks, excess: int) -> None:
    deadlines = _deadlines(dataclasses.replace(stream, stall=None), 1.0)
    now = 0
    deadlines.emitted(0.0)
    for num_late in range(1, 20):
        now += stream.tpot + excess
        deadlines.emitted(now * TICK_S)
        assert deadlines.is_lost == (num_late > MAX_MISSES)
        # Each time it is due one TPOT after the last token: it asks for no more than one that is on time.
        assert deadlines.next_s == (now + stream.tpot - stream.egress) * TICK_S
