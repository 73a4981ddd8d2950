"""Traces of SplitwiseSim: CSV that the simulator generates from lengths and drawn gaps."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TextIO

from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import parse_decimal_ns
from loadgen.traces.trace_meta import TraceSource

SPLITWISE_SOURCE = TraceSource(
    "SplitwiseSim, github.com/Mutinifni/splitwise-sim",
    "MIT (of the repository)",
    "Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024",
)
_LLM = "2"
"""Of `request_type`; the simulator has others, without tokens."""


def read_splitwise(file: TextIO) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file, its header first; columns are found by their names."""
    rows = csv.reader(file)
    header = next(rows)
    for fields in rows:
        if fields:
            yield (_row(dict(zip(header, fields, strict=True))) if len(fields) == len(header) else DropReason.MALFORMED)


def _row(fields: dict[str, str]) -> SourceRow | DropReason:
    if fields["request_type"] != _LLM:
        return DropReason.NOT_LLM
    try:
        if int(fields["batch_size"]) != 1:
            return DropReason.SEVERAL_SEQUENCES
        time_ns = parse_decimal_ns(fields["arrival_timestamp"], 10**9)
        return row_of(SourceRow(time_ns, int(fields["prompt_size"]), int(fields["token_size"])))
    except ValueError:
        return DropReason.MALFORMED
