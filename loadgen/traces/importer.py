"""Reads a published trace into the canonical form, and counts every row of it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from loadgen.traces.azure import azure_source, read_azure
from loadgen.traces.length_limit import TooLong, limit_lengths
from loadgen.traces.mooncake import BLOCK_TOKENS, MOONCAKE_SOURCE, read_mooncake
from loadgen.traces.naming import naming
from loadgen.traces.source_format import SourceFormat, recognise
from loadgen.traces.source_row import DropReason, SourceRow
from loadgen.traces.ties import spread_ties
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace, read_trace, sha256_of
from loadgen.traces.trace_meta import TraceMeta, Transform
from loadgen.traces.trace_request import TraceRequest


@dataclasses.dataclass(frozen=True, slots=True)
class ImportConfig:
    """What is done to the rows, in the order of the fields."""

    block_tokens: int = BLOCK_TOKENS
    """Of the block ids, where the source has them."""
    first_rows: int | None = None
    """Read only so many; None: all."""
    slo_class: str | None = None
    """The class of every request; None: the trace tells none."""
    spread_ties: bool = False
    """Spread the times of a coarse clock inside their step."""
    seed: int = 0
    """Of what is drawn."""
    max_tokens: int | None = None
    """Prompt and answer together; None: no limit."""
    too_long: TooLong = "fail"
    """What happens beyond it."""


def load_trace(path: Path) -> Trace:
    """The trace of a file, be it canonical or a published one as it was downloaded.

    Raises:
        TraceError: the file is missing, of no known form, or broken.
    """
    with naming(path):
        source_format = recognise(path)
    return read_trace(path) if source_format is SourceFormat.CANONICAL else import_trace(path, ImportConfig())


def import_trace(path: Path, config: ImportConfig) -> Trace:
    """The canonical trace of a published file. Memory grows with the rows: about 0.4 kB each, and the block ids.

    Raises:
        TraceError: the file is missing, of no known form, or broken; no row can be used; or an option contradicts it.
    """
    with naming(path):
        return _import(path, config)


def _import(path: Path, config: ImportConfig) -> Trace:
    source_format = recognise(path)
    if source_format is SourceFormat.CANONICAL:
        raise TraceError("this is a canonical trace already")
    read = _read_rows(path, source_format, config)
    requests, transforms = _transform(read.rows, read.num_dropped, config)
    source = azure_source(read.rows[0].time_ns) if source_format is SourceFormat.AZURE else MOONCAKE_SOURCE
    meta = TraceMeta(
        format=source_format.value,
        source=source,
        source_file=path.name,
        source_sha256=sha256_of(path),
        num_rows_read=read.num_read,
        num_rows_emitted=len(requests),
        num_dropped={reason.value: read.num_dropped[reason] for reason in DropReason if read.num_dropped[reason]},
        seed=config.seed if config.spread_ties else None,
        transforms=tuple(transforms),
    )
    meta.check()
    return Trace(tuple(requests), meta)


@dataclasses.dataclass(slots=True)
class _RowsRead:
    """What a file holds: each row read is among `rows` or counted in `num_dropped`."""

    num_read: int = 0
    rows: list[SourceRow] = dataclasses.field(default_factory=list)
    num_dropped: collections.Counter[DropReason] = dataclasses.field(default_factory=collections.Counter)


def _read_rows(path: Path, source_format: SourceFormat, config: ImportConfig) -> _RowsRead:
    read = _RowsRead()
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in itertools.islice(_reader(file, source_format, config), config.first_rows):
            read.num_read += 1
            if isinstance(row, DropReason):
                read.num_dropped[row] += 1
            else:
                read.rows.append(row)
    if not read.rows:
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in read.num_dropped.items())
        raise TraceError(f"none of {read.num_read} rows can be used{reasons and f' ({reasons})'}")
    return read


def _reader(file: TextIO, source_format: SourceFormat, config: ImportConfig) -> Iterator[SourceRow | DropReason]:
    if source_format is SourceFormat.AZURE:
        return read_azure(file)
    return read_mooncake(file, config.block_tokens)


def _transform(
    rows: list[SourceRow], num_dropped: collections.Counter[DropReason], config: ImportConfig
) -> tuple[list[TraceRequest], list[Transform]]:
    """The requests of the rows, and what was done; what is too long is added to `num_dropped`."""
    transforms = [] if config.first_rows is None else [Transform("first_rows", {"rows": config.first_rows})]
    num_late = sum(later.time_ns < earlier.time_ns for earlier, later in itertools.pairwise(rows))
    if num_late:
        rows = sorted(rows, key=lambda row: row.time_ns)
        transforms.append(Transform("sort_by_time", {"steps_back": num_late}))
    origin_ns = rows[0].time_ns
    transforms.append(Transform("shift_to_zero", {"origin_ns": origin_ns}))
    requests = [_request(row, origin_ns, config.slo_class) for row in rows]
    if config.slo_class is not None:
        transforms.append(Transform("label", {"class": config.slo_class}))
    if config.spread_ties:
        requests, spread = spread_ties(requests, config.seed)
        transforms.append(spread)
    if config.max_tokens is not None:
        limited = limit_lengths(requests, config.max_tokens, config.too_long)
        num_dropped[DropReason.TOO_LONG] += len(requests) - len(limited.requests)
        requests = list(limited.requests)
        transforms.append(limited.transform)
    if not requests:
        raise TraceError(f"no request has at most {config.max_tokens} tokens; clip or scale instead")
    return requests, transforms


def _request(row: SourceRow, origin_ns: int, slo_class: str | None) -> TraceRequest:
    return TraceRequest(
        t_s=(row.time_ns - origin_ns) / 10**9,
        in_tokens=row.in_tokens,
        out_tokens=row.out_tokens,
        slo_class=slo_class,
        prefix=row.prefix,
        block=row.block,
    )
