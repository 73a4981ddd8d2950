"""TraceLab's rounds of coding agents: JSONL with token counts, events and tool calls of each round."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, TextIO

from loadgen.traces.prefix_ids import Context, PrefixIds
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import parse_time_ns
from loadgen.traces.trace_meta import TraceSource

TRACELAB_SOURCE = TraceSource(
    "TraceLab, tracelab.cs.washington.edu",
    "CC BY 4.0 (the released data set; example files of the repository: Apache-2.0)",
    "TraceLab (SyFI Lab, University of Washington)",
)
_INPUT_EVENTS = frozenset({"user_message", "tool_result"})


@dataclasses.dataclass(frozen=True, slots=True)
class _LastRound:
    """What the next round of a session comes after."""

    key: str
    turn: int
    end_ns: int
    context: Context


def read_tracelab(file: TextIO, block_tokens: int) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file, the rounds of a session in their order.

    A round begins with the last of its inputs, and ends with the last of its outputs; the time from an end to the
    next beginning is that of the tools, or of the user. The first `prefix_tokens` of a prompt are those of the round
    before it in its session; what a first round shares with other sessions is not told.
    """
    ids = PrefixIds(block_tokens)
    last_rounds: dict[str, _LastRound] = {}
    for line in file:
        if line.strip():
            yield _row(line, ids, last_rounds)


def _row(line: str, ids: PrefixIds, last_rounds: dict[str, _LastRound]) -> SourceRow | DropReason:
    try:
        body = json.loads(line)
        begin_ns, end_ns = _span_ns(body["timing_events"])
        session, turn, counts, kind = body["session_id"], body["round_index"], _counts(body), body.get("provider")
    except (ValueError, KeyError, TypeError, AttributeError):
        return DropReason.MALFORMED
    if not (isinstance(session, str) and type(turn) is int and turn >= 0 and isinstance(kind, str | None)):
        return DropReason.MALFORMED
    in_tokens, prefix_tokens, out_tokens = counts
    row = row_of(SourceRow(begin_ns, in_tokens, out_tokens, kind=kind))
    if isinstance(row, DropReason):
        return row
    last = last_rounds.get(session)
    prefix = ids.prompt(Context() if last is None else last.context, prefix_tokens, in_tokens)
    key = f"{session}#{turn}"
    last_rounds[session] = _LastRound(key, turn, end_ns, ids.answered(prefix, in_tokens, out_tokens))
    row = dataclasses.replace(row, session=session, turn=turn, key=key, prefix=prefix, block=ids.block_tokens)
    if last is None:
        return row
    return dataclasses.replace(row, after=(last.key,), think_s=max(0, begin_ns - last.end_ns) / 10**9)


def _counts(body: dict[str, Any]) -> tuple[int, int, int]:
    names = ("input_tokens_total", "prefix_tokens", "output_tokens")
    counts = tuple(body[name] for name in names)
    if not all(type(count) is int for count in counts):
        raise ValueError(f"{names} are {counts}, whole numbers are needed")
    return counts[0], counts[1], counts[2]


def _span_ns(events: list[dict[str, Any]]) -> tuple[int, int]:
    """When the last input was there and when the last event was.

    Raises:
        ValueError: there is no event with a time.
    """
    times_ns = [(event["event_type"], parse_time_ns(event["timestamp"])) for event in events]
    if not times_ns:
        raise ValueError("a round without events has no time")
    inputs_ns = [time_ns for name, time_ns in times_ns if name in _INPUT_EVENTS]
    return max(inputs_ns) if inputs_ns else min(time for _, time in times_ns), max(time for _, time in times_ns)
