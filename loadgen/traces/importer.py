"""Reads a published trace into the canonical form, and counts every row of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadgen.traces.azure import azure_source
from loadgen.traces.import_config import ImportConfig
from loadgen.traces.length_limit import limit_lengths
from loadgen.traces.naming import naming
from loadgen.traces.readers import open_clients, open_source
from loadgen.traces.row_links import link
from loadgen.traces.servegen import client_files, source_files
from loadgen.traces.source_file import SourceFile
from loadgen.traces.source_format import SourceFormat, recognise
from loadgen.traces.source_row import DropReason, SourceRow
from loadgen.traces.ties import spread_ties
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace, read_trace, sha256_of
from loadgen.traces.trace_meta import TraceMeta, Transform
from loadgen.traces.trace_request import TraceRequest


def load_trace(path: Path) -> Trace:
    """The trace of a file, be it canonical or a published one as it was downloaded.

    Raises:
        TraceError: the file is missing, of no known form, or broken.
    """
    with naming(path):
        source_format = recognise(path)
    return read_trace(path) if source_format is SourceFormat.CANONICAL else import_trace(path, ImportConfig())


def checksum_of(path: Path) -> str:
    """Of the file as it is, in hexadecimal; of several files, that of their list as sha256sum prints it.

    Raises:
        TraceError: the file is missing or of no known form.
    """
    with naming(path):
        return _checksum(path, recognise(path))


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
        raise TraceError(
            "this is a canonical trace already, which all verbs and `bench --trace` read; "
            "`headrace trace validate FILE --adopt` writes its sidecar"
        )
    if config.format not in (None, source_format):
        raise TraceError(f"--format is {config.format.value}, but this looks like {source_format.value}")
    config.check(source_format)
    with _opened(path, source_format, config) as opened:
        read = _read_rows(opened, config.first_rows)
    requests, transforms = _transform(read.rows, read.num_dropped, config)
    meta = TraceMeta(
        format=source_format.value,
        source=opened.source or azure_source(read.rows[0].time_ns),
        source_file=path.name,
        source_sha256=_checksum(path, source_format),
        num_rows_read=read.num_read,
        num_rows_emitted=len(requests),
        num_dropped={reason.value: read.num_dropped[reason] for reason in DropReason if read.num_dropped[reason]},
        seed=config.seed if config.spread_ties or opened.is_drawn else None,
        transforms=(*opened.transforms, *transforms),
    )
    meta.check()
    return Trace(tuple(requests), meta)


@contextlib.contextmanager
def _opened(path: Path, source_format: SourceFormat, config: ImportConfig) -> Iterator[SourceFile]:
    if source_format is SourceFormat.SERVEGEN:
        yield open_clients(path, config)
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield open_source(file, source_format, config)


def _checksum(path: Path, source_format: SourceFormat) -> str:
    """Of the file; of several files, that of their list as sha256sum prints it."""
    if source_format is not SourceFormat.SERVEGEN:
        return sha256_of(path)
    files = source_files(client_files(path))
    listing = "".join(f"{sha256_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()


@dataclasses.dataclass(slots=True)
class _RowsRead:
    """What a file holds: each row read is among `rows` or counted in `num_dropped`."""

    num_read: int = 0
    rows: list[SourceRow] = dataclasses.field(default_factory=list)
    num_dropped: collections.Counter[DropReason] = dataclasses.field(default_factory=collections.Counter)


def _read_rows(opened: SourceFile, first_rows: int | None) -> _RowsRead:
    read = _RowsRead()
    for row in itertools.islice(opened.rows, first_rows):
        read.num_read += 1
        if isinstance(row, DropReason):
            read.num_dropped[row] += 1
        else:
            read.rows.append(row)
    if not read.rows:
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in read.num_dropped.items())
        raise TraceError(f"none of {read.num_read} rows can be used{reasons and f' ({reasons})'}")
    return read


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
    links = link(rows)
    transforms.extend(links.transforms)
    classes, labels = _classes(rows, config)
    transforms.extend(labels)
    requests = [
        _request(row, origin_ns, slo_class, after)
        for row, slo_class, after in zip(rows, classes, links.after, strict=True)
    ]
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


def _classes(rows: Sequence[SourceRow], config: ImportConfig) -> tuple[list[str | None], list[Transform]]:
    """The class of each row.

    Raises:
        TraceError: a class is given for a kind that no row has.
    """
    class_of = dict(config.class_of)
    kinds = {row.kind for row in rows if row.kind is not None}
    for kind in class_of:
        if kind not in kinds:
            known = ", ".join(sorted(kinds)) or "none at all"
            raise TraceError(f"no request is of the kind {kind!r} that --class-of names; this source has {known}")
    transforms = [Transform("label", {"kind": kind, "class": name}) for kind, name in class_of.items()]
    if config.slo_class is not None:
        transforms.append(Transform("label", {"class": config.slo_class}))
    return [class_of.get(row.kind or "", config.slo_class) for row in rows], transforms


def _request(row: SourceRow, origin_ns: int, slo_class: str | None, after: int | None) -> TraceRequest:
    return TraceRequest(
        t_s=(row.time_ns - origin_ns) / 10**9,
        in_tokens=row.in_tokens,
        out_tokens=row.out_tokens,
        slo_class=slo_class,
        session=row.session,
        turn=row.turn,
        after=after,
        think_s=None if after is None else row.think_s,
        prefix=row.prefix,
        block=row.block,
        text=row.text,
    )
