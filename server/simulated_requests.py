"""What a simulated engine said, as the records that verdicts are made of: the same as of a served request."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from engine.messages import AddGroup, ChoiceDelta, GroupRefused
from engine.simulation.simulator import SimulatedTurn
from scheduler.output import RefusalReason
from scheduler.slo import SLO
from server.request_record import End, RequestRecord

_ENDS = {"error": End.FAILED, "abort": End.CANCELLED}
"""By finish reason; every other one is an end as it should be."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Every offered request, and what the engine counted."""

    records: tuple[RequestRecord, ...]
    duration_s: float
    num_turns: int
    num_steps: int
    num_preemptions: int
    makes_promises: bool
    """The admission in force: promises, or the queues' caps alone."""
    steps_limited: Mapping[str, int]
    """Steps that left something out, by why: as `headrace_steps_limited_total` counts."""


class Observation:
    """The records of a simulation while it runs.

    Tokens are handed over at the end of the step that made them: encoding, sending and the socket take no time.
    """

    def __init__(self, requests: Sequence[AddGroup]) -> None:
        self._records = {request.group_id: _record(request) for request in requests}
        self._last: SimulatedTurn | None = None
        self._num_turns = 0
        self._num_steps = 0
        self._limited: Counter[str] = Counter()

    def take_in(self, turn: SimulatedTurn) -> list[RequestRecord]:
        """Note what a turn did; the requests that it ended."""
        self._count(turn)
        outputs, now_s = turn.outputs, turn.now_s
        for admitted in outputs.admitted:
            self._records[admitted.group_id].admitted(admitted, now_s)
        ended = []
        for refused in outputs.refused:
            record = self._records[refused.group_id]
            _refuse(record, refused, now_s)
            ended.append(record)
        for delta in outputs.deltas:
            record = self._records[delta.group_id]
            _take_in_delta(record, delta, now_s)
            if delta.finish_reason is not None:
                ended.append(record)
        return ended

    def run(self) -> SimulatedRun:
        """What was seen so far."""
        return SimulatedRun(
            tuple(self._records.values()),
            0.0 if self._last is None else self._last.now_s,
            self._num_turns,
            self._num_steps,
            0 if self._last is None else self._last.outputs.stats.num_preemptions,
            self._last is not None and self._last.outputs.stats.promise_margin is not None,
            dict(sorted(self._limited.items())),
        )

    def _count(self, turn: SimulatedTurn) -> None:
        stats = turn.outputs.stats
        if self._last is None or stats.step_id != self._last.outputs.stats.step_id:  # else it computed nothing
            self._num_steps += 1
            self._limited.update(stats.reasons)
        self._last = turn
        self._num_turns += 1


def observe(requests: Sequence[AddGroup], turns: Iterable[SimulatedTurn]) -> SimulatedRun:
    """Run a simulation to its end and note what becomes of each request."""
    observation = Observation(requests)
    for turn in turns:
        observation.take_in(turn)
    return observation.run()


def _record(request: AddGroup) -> RequestRecord:
    slo = SLO(requested=request.slo.requested, granted=request.slo.granted)
    record = RequestRecord(request.group_id, slo, request.arrival_s, num_choices=1)
    record.num_prompt_tokens = sum(map(len, request.prompts))
    return record


def _refuse(record: RequestRecord, refused: GroupRefused, now_s: float) -> None:
    end = End.EXPIRED if refused.reason == RefusalReason.EXPIRED.value else End.REFUSED
    record.finish(end, now_s, refused.reason)


def _take_in_delta(record: RequestRecord, delta: ChoiceDelta, now_s: float) -> None:
    if delta.token_ids:
        record.token(delta.choice, now_s, len(delta.token_ids))
    if delta.finish_reason is not None:
        record.choice_finished(delta.choice, delta.finish_reason)
        record.finish(_ENDS.get(delta.finish_reason, End.COMPLETED), now_s)
