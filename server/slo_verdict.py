"""Was a request served as its class demands? The one place where the definitions of the metrics are code.

- TTFT: from the moment the body was read to the first token handed to the socket, against the target in force for
  the request's uncached prompt tokens. A choice that ends without a token (`max_tokens` 0) is timed to its end.
- TPOT: (t_last - t_first) / (n - 1) over the n tokens of a choice; undefined, and so never late, for n = 1.
- Stall: the longest gap between two chunks of tokens. A client's own TPOT target above the class's longest stall
  raises that limit too: a stall shorter than the pace asked for is none.
- End to end: from the moment the body was read to the last token, judged where the client set a deadline.

A request of several choices is judged by the worst of them. Meeting a target exactly is meeting it. Of several misses
the first of late_ttft, late_e2e, late_tpot, late_stall is the outcome: the order in which a user notices them.

The outcome is judged against the class asked for; whether a promise was kept against the class granted, with the
targets told at admission. A client that leaves is `cancelled`, neither met nor missed, unless something was already
late by then: a token it received, or the next one it waited for, taken as handed over at the moment it left.

Source: reference definitions of LLM serving benchmarks (TPOT as in vLLM's and MLPerf's load generators).
"""

from __future__ import annotations

import dataclasses

from scheduler.slo import SLO, Outcome, SLOClass, SLOClasses
from server.request_record import ChoiceTimes, End, RequestRecord

_ENDED_EARLY = {End.REFUSED: Outcome.REFUSED, End.EXPIRED: Outcome.EXPIRED, End.FAILED: Outcome.FAILED}


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """The limits one request is judged by, in seconds; None: not judged."""

    ttft_s: float
    tpot_s: float
    max_stall_s: float | None
    e2e_s: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What one request got: the worst over its choices, in seconds."""

    ttft_s: float
    tpot_s: float | None
    """None: no choice has two tokens."""
    max_gap_s: float
    e2e_s: float


def judge(record: RequestRecord, classes: SLOClasses) -> Outcome:
    """The outcome of a finished request, against the targets of the class it asked for."""
    assert record.end is not None, f"{record.request_id} is not finished"
    early = _ENDED_EARLY.get(record.end)
    if early is not None:
        return early
    missed = find_miss(measure(record), requested_targets(record, classes))
    if missed is not None:
        return missed
    return Outcome.MET if record.end is End.COMPLETED else Outcome.CANCELLED


def promise_kept(record: RequestRecord, classes: SLOClasses) -> bool | None:
    """Whether the promise made at admission was kept; None: none was made, or the client left before it was due."""
    assert record.end is not None, f"{record.request_id} is not finished"
    if record.granted is None:
        return None
    if record.end in _ENDED_EARLY:
        return False
    if find_miss(measure(record), granted_targets(record, classes)) is not None:
        return False
    return True if record.end is End.COMPLETED else None


def requested_targets(record: RequestRecord, classes: SLOClasses) -> Targets:
    """The targets in force for the class asked for."""
    if record.granted == record.slo.requested:
        return granted_targets(record, classes)
    return _class_targets(classes.get(record.slo.requested), record.slo, _num_uncached(record))


def granted_targets(record: RequestRecord, classes: SLOClasses) -> Targets:
    """The targets told to the client at admission. The record was admitted."""
    assert record.granted is not None, f"{record.request_id} was never admitted"
    assert record.ttft_target_s is not None and record.tpot_target_s is not None
    return Targets(
        ttft_s=record.ttft_target_s,
        tpot_s=record.tpot_target_s,
        max_stall_s=max_stall_s(classes.get(record.granted), record.tpot_target_s),
        e2e_s=record.slo.e2e_deadline_s,
    )


def max_stall_s(slo_class: SLOClass, tpot_s: float) -> float | None:
    """The longest gap a class allows under a TPOT target; None: not judged."""
    return None if slo_class.max_stall_s is None else max(slo_class.max_stall_s, tpot_s)


def measure(record: RequestRecord) -> Measured:
    """What a finished request got, the worst over its choices."""
    assert record.finished_s is not None, f"{record.request_id} is not finished"
    ttfts = [_first_s(choice, record.finished_s) - record.arrival_s for choice in record.choices]
    tpots = [tpot for choice in record.choices if (tpot := _tpot_s(choice, record)) is not None]
    gaps = [_max_gap_s(choice, record) for choice in record.choices]
    return Measured(max(ttfts), max(tpots, default=None), max(gaps), _last_s(record) - record.arrival_s)


def find_miss(measured: Measured, targets: Targets) -> Outcome | None:
    """The first limit that was missed, in the order of the module's text; None: all were met."""
    if measured.ttft_s > targets.ttft_s:
        return Outcome.LATE_TTFT
    if targets.e2e_s is not None and measured.e2e_s > targets.e2e_s:
        return Outcome.LATE_E2E
    if measured.tpot_s is not None and measured.tpot_s > targets.tpot_s:
        return Outcome.LATE_TPOT
    if targets.max_stall_s is not None and measured.max_gap_s > targets.max_stall_s:
        return Outcome.LATE_STALL
    return None


def _class_targets(slo_class: SLOClass, slo: SLO, num_uncached_tokens: int) -> Targets:
    tpot_s = slo.tpot_target_s(slo_class)
    return Targets(
        ttft_s=slo.ttft_target_s(slo_class, num_uncached_tokens),
        tpot_s=tpot_s,
        max_stall_s=max_stall_s(slo_class, tpot_s),
        e2e_s=slo.e2e_deadline_s,
    )


def _num_uncached(record: RequestRecord) -> int:
    return max(record.num_prompt_tokens - record.num_cached_tokens, 0)


def _is_awaited(choice: ChoiceTimes, record: RequestRecord) -> bool:
    """The client left while this choice still owed it a token."""
    return record.end is End.CANCELLED and choice.finish_reason is None


def _first_s(choice: ChoiceTimes, finished_s: float) -> float:
    return choice.first_token_s if choice.first_token_s is not None else finished_s


def _tpot_s(choice: ChoiceTimes, record: RequestRecord) -> float | None:
    if choice.first_token_s is None or choice.last_token_s is None or record.finished_s is None:
        return None
    tpots = []
    if choice.num_tokens > 1:
        tpots.append((choice.last_token_s - choice.first_token_s) / (choice.num_tokens - 1))
    if _is_awaited(choice, record):
        tpots.append((record.finished_s - choice.first_token_s) / choice.num_tokens)
    return max(tpots, default=None)


def _max_gap_s(choice: ChoiceTimes, record: RequestRecord) -> float:
    if choice.last_token_s is None or record.finished_s is None or not _is_awaited(choice, record):
        return choice.max_gap_s
    return max(choice.max_gap_s, record.finished_s - choice.last_token_s)


def _last_s(record: RequestRecord) -> float:
    assert record.finished_s is not None
    lasts = [choice.last_token_s for choice in record.choices]
    if record.end is End.CANCELLED or any(last is None for last in lasts):
        return record.finished_s
    return max(last for last in lasts if last is not None)
