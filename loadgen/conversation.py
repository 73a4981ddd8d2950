"""Turns that wait for the answers to the turns before them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from loadgen.trace import RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """A first request, and the turns that come after it or one another; usually a chain, in a trace also a tree."""

    first: PlannedRequest
    later: tuple[PlannedRequest, ...] = ()

    def after(self, planned: PlannedRequest) -> tuple[PlannedRequest, ...]:
        """The turns that wait for the answer to `planned`."""
        return tuple(turn for turn in self.later if turn.after == planned.trace_id) if self.later else ()

    def num_after(self, planned: PlannedRequest) -> int:
        """Turns that wait for it, or for one that waits for it."""
        num, waiting = 0, list(self.after(planned))
        while waiting:  # no recursion: a recorded conversation may have thousands of turns
            num += 1
            waiting += self.after(waiting.pop())
        return num


def conversations(requests: Iterable[PlannedRequest]) -> Iterator[Conversation]:
    """Requests in their order, each with the turns that follow it there."""
    turns: list[PlannedRequest] = []
    for planned in requests:
        if turns and planned.after is None:
            yield Conversation(turns[0], tuple(turns[1:]))
            turns = []
        turns.append(planned)
    if turns:
        yield Conversation(turns[0], tuple(turns[1:]))


def goes_on(before: RequestTrace) -> bool:
    """Whether there is an answer to go on from: whole, or left by its reader. Nobody goes on after a refusal."""
    return before.end is TraceEnd.COMPLETED or before.is_left


def due_s(planned: PlannedRequest, answered_s: float, started_s: float) -> float:
    """The intended send time of a turn: the end of the answer before it plus the time to think. Without that time it
    is its own place in the schedule, or the end of that answer where this is later."""
    if planned.think_s is not None or planned.offset_s is None:
        return answered_s + (planned.think_s or 0.0)
    return max(answered_s, started_s + planned.offset_s)


def with_history(planned: PlannedRequest, before: RequestTrace) -> PlannedRequest:
    """The turn with all that was said before it."""
    if planned.is_whole:
        return planned
    return dataclasses.replace(planned, history=(*before.planned.history, (before.planned.prompt, before.answer)))
