"""TraceLab's replay files: CSV with the lengths of each round and the wait after it."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from typing import TextIO

from loadgen.traces.prefix_ids import Context, PrefixIds
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import parse_decimal_ns
from loadgen.traces.trace_meta import Transform

_MILLISECOND_NS = 10**6
REPLAY_TIMES = Transform("times_of_turns", {"answer_s": 0})
"""Only a session's start is told: a later turn is placed where it would be if answers took no time."""


@dataclasses.dataclass(frozen=True, slots=True)
class _LastRound:
    key: str
    time_ns: int
    wait_ns: int
    context: Context


def read_tracelab_replay(file: TextIO, block_tokens: int) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file, its header first, the rounds of a session in their order.

    `arrival_time` is that of the session in milliseconds, 0 where there is no such column. A prompt is the first
    `prefix_len` tokens of the context of the round before it, and `input_len` new ones.
    """
    ids = PrefixIds(block_tokens)
    rows = csv.reader(file)
    header = next(rows)
    last_rounds: dict[str, _LastRound] = {}
    for fields in rows:
        if fields:
            matches = len(fields) == len(header)
            yield _row(dict(zip(header, fields, strict=True)), ids, last_rounds) if matches else DropReason.MALFORMED


def _row(fields: dict[str, str], ids: PrefixIds, last_rounds: dict[str, _LastRound]) -> SourceRow | DropReason:
    session = fields.get("session_id") or fields.get("id")
    try:
        turn, prefix_tokens = int(fields["round_idx"]), int(fields["prefix_len"])
        new_tokens, out_tokens = int(fields["input_len"]), int(fields["output_len"])
        start_ns = parse_decimal_ns(fields.get("arrival_time") or "0", _MILLISECOND_NS)
        wait_ns = parse_decimal_ns(fields["tool_wait_after_ms"], _MILLISECOND_NS)
    except ValueError:
        return DropReason.MALFORMED
    if not session or min(turn, prefix_tokens, new_tokens, wait_ns) < 0:
        return DropReason.MALFORMED
    last = last_rounds.get(session)
    time_ns = start_ns if last is None else last.time_ns + last.wait_ns
    in_tokens = prefix_tokens + new_tokens
    row = row_of(SourceRow(time_ns, in_tokens, out_tokens))
    if isinstance(row, DropReason):
        return row
    prefix = ids.prompt(Context() if last is None else last.context, prefix_tokens, in_tokens)
    key = f"{session}#{turn}"
    last_rounds[session] = _LastRound(key, time_ns, wait_ns, ids.answered(prefix, in_tokens, out_tokens))
    row = dataclasses.replace(row, session=session, turn=turn, key=key, prefix=prefix, block=ids.block_tokens)
    if last is None:
        return row
    return dataclasses.replace(row, after=(last.key,), think_s=last.wait_ns / 10**9)
