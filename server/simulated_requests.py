"""What a simulated engine said, as the records that verdicts are made of: the same as of a served request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from engine.messages import AddGroup, ChoiceDelta, GroupRefused, StepOutputs
from engine.simulation.simulator import SimulatedTurn
from scheduler.output import RefusalReason
from scheduler.slo import SLO
from server.request_record import End, RequestRecord


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Every offered request, and what the engine counted."""

    records: tuple[RequestRecord, ...]
    duration_s: float
    num_turns: int
    num_preemptions: int


def observe(requests: Sequence[AddGroup], turns: Iterable[SimulatedTurn]) -> SimulatedRun:
    """Run a simulation to its end and note what becomes of each request.

    Tokens are handed over at the end of the step that made them: encoding, sending and the socket take no time.
    """
    records = {request.group_id: _record(request) for request in requests}
    last: SimulatedTurn | None = None
    num_turns = 0
    for turn in turns:
        last, num_turns = turn, num_turns + 1
        _take_in(turn.outputs, turn.now_s, records)
    return SimulatedRun(
        tuple(records.values()),
        0.0 if last is None else last.now_s,
        num_turns,
        0 if last is None else last.outputs.stats.num_preemptions,
    )


def _record(request: AddGroup) -> RequestRecord:
    slo = SLO(requested=request.slo.requested, granted=request.slo.granted)
    record = RequestRecord(request.group_id, slo, request.arrival_s, num_choices=1)
    record.num_prompt_tokens = sum(map(len, request.prompts))
    return record


def _take_in(outputs: StepOutputs, now_s: float, records: dict[str, RequestRecord]) -> None:
    for admitted in outputs.admitted:
        records[admitted.group_id].admitted(admitted, now_s)
    for refused in outputs.refused:
        _refuse(records[refused.group_id], refused, now_s)
    for delta in outputs.deltas:
        _take_in_delta(records[delta.group_id], delta, now_s)


def _refuse(record: RequestRecord, refused: GroupRefused, now_s: float) -> None:
    end = End.EXPIRED if refused.reason == RefusalReason.EXPIRED.value else End.REFUSED
    record.finish(end, now_s, refused.reason)


def _take_in_delta(record: RequestRecord, delta: ChoiceDelta, now_s: float) -> None:
    if delta.token_ids:
        record.token(delta.choice, now_s, len(delta.token_ids))
    if delta.finish_reason is not None:
        record.choice_finished(delta.choice, delta.finish_reason)
        record.finish(End.FAILED if delta.finish_reason == "error" else End.COMPLETED, now_s)
