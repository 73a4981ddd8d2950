"""A trace on disk: the canonical JSONL and its sidecar."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

from loadgen.traces.naming import naming
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import TraceMeta, TraceSource, decode_meta, encode_meta
from loadgen.traces.trace_request import TraceRequest, decode_request, encode_request

_UNKNOWN_SOURCE = TraceSource("not told: there is no sidecar", "not told")


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their times, and where they come from."""

    requests: tuple[TraceRequest, ...]
    meta: TraceMeta


def sidecar_path(path: Path) -> Path:
    """Where the sidecar of a canonical trace lies."""
    return path.with_name(path.name + ".meta.json")


def sha256_of(path: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_trace(path: Path, trace: Trace) -> None:
    """Write the trace and its sidecar; the same trace is the same bytes.

    Both are written beside their places and then moved, so that a trace that is there is whole.

    Raises:
        TraceError: the counts of the sidecar are not those of the trace, or the files cannot be written.
    """
    with naming(path):
        _write(path, trace)


def _write(path: Path, trace: Trace) -> None:
    trace.meta.check()
    if trace.meta.num_rows_emitted != len(trace.requests):
        raise TraceError(f"{len(trace.requests)} requests, but the sidecar tells of {trace.meta.num_rows_emitted}")
    side = sidecar_path(path)
    partial, partial_side = (each.with_name(f"{each.name}.{os.getpid()}.partial") for each in (path, side))
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(encode_request(request) + "\n" for request in trace.requests)
        partial_side.write_text(encode_meta(trace.meta, sha256_of(partial)), encoding="utf-8")
        partial.replace(path)
        partial_side.replace(side)
    finally:
        partial.unlink(missing_ok=True)
        partial_side.unlink(missing_ok=True)


def write_sidecar(side: Path, meta: TraceMeta, trace_sha256: str) -> None:
    """Write it beside its place and move it there. Raises OSError: it cannot be written."""
    partial = side.with_name(f"{side.name}.{os.getpid()}.partial")
    try:
        partial.write_text(encode_meta(meta, trace_sha256), encoding="utf-8")
        partial.replace(side)
    finally:
        partial.unlink(missing_ok=True)


def read_trace(path: Path) -> Trace:
    """The trace of a canonical file, checked against its sidecar where there is one.

    Raises:
        TraceError: a line is not a request, times go back, a turn comes after one that is not before it, or the file
            is not the one that its sidecar tells of; or it cannot be read.
    """
    with naming(path):
        requests = read_requests(path)
        return Trace(requests, _meta_of(path, len(requests)))


def read_requests(path: Path) -> tuple[TraceRequest, ...]:
    """The lines of a canonical file, without a look at its sidecar.

    Raises:
        TraceError: a line is not a request, times go back, a turn comes before what it waits for, or there is no line.
        OSError: the file cannot be read.
    """
    requests: list[TraceRequest] = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            try:
                request = decode_request(line)
                check_order(request, requests[-1].t_s if requests else None, len(requests))
            except TraceError as error:
                raise TraceError(f"line {number}: {error}") from error
            requests.append(request)
    if not requests:
        raise TraceError("there is no request in it")
    return tuple(requests)


def check_order(request: TraceRequest, last_s: float | None, num_before: int) -> None:
    """Raises TraceError: it comes before the line above, at `last_s`, or waits for one that is not above."""
    if last_s is not None and request.t_s < last_s:
        raise TraceError(f"t is {request.t_s}, before the {last_s} of the line above; sort the lines by t")
    if request.after is not None and not 0 <= request.after < num_before:
        raise TraceError(f"after is {request.after}, it must be the id (its line, from 0) of a request above")


def _meta_of(path: Path, num_requests: int) -> TraceMeta:
    checksum, side = sha256_of(path), sidecar_path(path)
    if not side.exists():
        return TraceMeta("canonical", _UNKNOWN_SOURCE, path.name, checksum, num_requests, num_requests, {})
    return check_sidecar(side, checksum, num_requests)


def check_sidecar(side: Path, checksum: str, num_requests: int) -> TraceMeta:
    """The content of a sidecar, which must be that of a trace with this checksum and so many requests.

    Raises:
        TraceError: it is not, or it is no sidecar.
        OSError: it cannot be read.
    """
    try:
        meta, told = decode_meta(side.read_text(encoding="utf-8"))
    except TraceError as error:
        raise TraceError(f"{side.name}: {error}") from error
    if told != checksum or meta.num_rows_emitted != num_requests:
        raise TraceError(
            f"sha256 {checksum[:12]} with {num_requests} requests, but {side.name} tells of {told[:12]} with "
            f"{meta.num_rows_emitted}: it was changed since; import it again, or let "
            "`headrace trace validate FILE --adopt` write the sidecar anew"
        )
    return meta
