"""Azure's LLM inference traces of 2023 and 2024: CSV with a time and two token counts."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Iterator
from typing import TextIO

from loadgen.traces.source_format import AZURE_COLUMNS
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.trace_meta import TraceSource

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
"""2023 has seven fractional digits and no zone, 2024 six and +00:00; a whole second has no fraction at all."""
_LICENCE = "CC BY 4.0 (as the data set is published)"
_TITLES = {
    2023: "Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024",
    2024: "Stojkovic et al., DynamoLLM: Designing LLM Inference Clusters for Performance and Energy Efficiency, "
    "HPCA 2025",
}


def read_azure(file: TextIO) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file, its header first; columns are found by their names."""
    rows = csv.reader(file)
    header = next(rows)
    columns = [header.index(name) for name in AZURE_COLUMNS]
    for fields in rows:
        if fields:
            yield _row(fields, columns) if len(fields) == len(header) else DropReason.MALFORMED


def azure_source(first_time_ns: int) -> TraceSource:
    """The data set of the year in which its first row was recorded."""
    year = (_EPOCH + datetime.timedelta(microseconds=first_time_ns // 1000)).year
    name = f"Azure LLM inference trace {year}, github.com/Azure/AzurePublicDataset"
    return TraceSource(name, _LICENCE, _TITLES.get(year))


def _row(fields: list[str], columns: list[int]) -> SourceRow | DropReason:
    time, in_tokens, out_tokens = (fields[column] for column in columns)
    try:
        return row_of(SourceRow(parse_time_ns(time), int(in_tokens), int(out_tokens)))
    except ValueError:
        return DropReason.MALFORMED


def parse_time_ns(text: str) -> int:
    """Nanoseconds since 1970, a time without a zone taken as UTC.

    All digits count: requests of one burst lie less than 10 ms apart.

    Raises:
        ValueError: this is no such time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time of this trace")
    whole, fraction, zone = match.groups()
    moment = datetime.datetime.fromisoformat(whole + (zone or "+00:00"))
    return (moment - _EPOCH) // datetime.timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))
