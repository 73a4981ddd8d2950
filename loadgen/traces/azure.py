"""Azure's LLM inference traces of 2023 and 2024: CSV with a time and two token counts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TextIO

from loadgen.traces.source_format import AZURE_COLUMNS
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import parse_time_ns, year_of
from loadgen.traces.trace_meta import TraceSource

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
    year = year_of(first_time_ns)
    name = f"Azure LLM inference trace {year}, github.com/Azure/AzurePublicDataset"
    return TraceSource(name, _LICENCE, _TITLES.get(year))


def _row(fields: list[str], columns: list[int]) -> SourceRow | DropReason:
    time, in_tokens, out_tokens = (fields[column] for column in columns)
    try:
        return row_of(SourceRow(parse_time_ns(time), int(in_tokens), int(out_tokens)))
    except ValueError:
        return DropReason.MALFORMED
