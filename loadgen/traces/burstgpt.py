"""BurstGPT: CSV of two layouts, the later one with sessions. Columns are found by their names."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from typing import TextIO

from loadgen.traces.source_format import BURSTGPT_COLUMNS
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import parse_decimal_ns
from loadgen.traces.trace_meta import TraceSource

BURSTGPT_SOURCE = TraceSource(
    "BurstGPT, github.com/HPMLL/BurstGPT",
    "CC BY 4.0 (as the data set is published)",
    "Wang et al., BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems, KDD 2025",
)
_SECOND_NS = 10**9
_KIND, _SESSION, _ELAPSED = "Log Type", "Session ID", "Elapsed time"


@dataclasses.dataclass(frozen=True, slots=True)
class _LastTurn:
    """What the next row of a session comes after."""

    key: str
    turn: int
    end_ns: int


def read_burstgpt(file: TextIO) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file, its header first.

    Rows without tokens are requests that failed. A row of a session waits for the one before it, unless it came
    before that one's end: then both were under way at once. Times are whole seconds, so an end may be off by one.
    """
    rows = csv.reader(file)
    header = next(rows)
    last_turns: dict[str, _LastTurn] = {}
    for fields in rows:
        if fields:
            matches = len(fields) == len(header)
            yield _row(dict(zip(header, fields, strict=True)), last_turns) if matches else DropReason.MALFORMED


def _row(fields: dict[str, str], last_turns: dict[str, _LastTurn]) -> SourceRow | DropReason:
    time, in_tokens, out_tokens = (fields[name] for name in BURSTGPT_COLUMNS)
    try:
        row = row_of(
            SourceRow(
                parse_decimal_ns(time, _SECOND_NS), int(in_tokens), int(out_tokens), kind=fields.get(_KIND) or None
            )
        )
        elapsed_ns = parse_decimal_ns(fields.get(_ELAPSED) or "0", _SECOND_NS)
    except ValueError:
        return DropReason.MALFORMED
    session = fields.get(_SESSION)
    if isinstance(row, DropReason) or not session:
        return row
    return _in_session(row, session, elapsed_ns, last_turns)


def _in_session(row: SourceRow, session: str, elapsed_ns: int, last_turns: dict[str, _LastTurn]) -> SourceRow:
    last = last_turns.get(session)
    turn = 0 if last is None else last.turn + 1
    key = f"{session}#{turn}"
    last_turns[session] = _LastTurn(key, turn, row.time_ns + elapsed_ns)
    row = dataclasses.replace(row, session=session, turn=turn, key=key)
    if last is None or row.time_ns < last.end_ns - _SECOND_NS:
        return row
    return dataclasses.replace(row, after=(last.key,), think_s=max(0, row.time_ns - last.end_ns) / _SECOND_NS)
