"""A sidecar for a canonical trace that was made or edited by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from loadgen.traces.naming import naming
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace, read_requests, sha256_of, sidecar_path, write_sidecar
from loadgen.traces.trace_meta import TraceMeta, TraceSource, Transform, decode_meta
from loadgen.traces.validation import find_line_problems

BY_HAND = TraceSource("made by hand", "not told")
EDITED = "edited_by_hand"
_REMOVED = "removed by hand"


def adopt(path: Path) -> Trace:
    """Write the sidecar of the file as it is now, and return the trace. The file itself stays as it is.

    Without a sidecar the trace is one made by hand. With one that tells of another content it was edited: source,
    licence and changes stay, since a copy of a data set remains under its licence, and the edit becomes one more.
    With one that fits nothing is written.

    Raises:
        TraceError: a line is wrong, the sidecar is no sidecar, or the files cannot be read or written.
    """
    problem = next(find_line_problems(path), None)
    if problem is not None:
        raise TraceError(f"{path}: {problem}; only a sound trace gets a sidecar: correct its lines first")
    with naming(path):
        requests, checksum, side = read_requests(path), sha256_of(path), sidecar_path(path)
        if not side.exists():
            meta = TraceMeta("canonical", BY_HAND, path.name, checksum, len(requests), len(requests), {})
        else:
            try:
                before, told = decode_meta(side.read_text(encoding="utf-8"))
            except TraceError as error:
                raise TraceError(f"{side.name}: {error}") from error
            if told == checksum and before.num_rows_emitted == len(requests):
                return Trace(requests, before)
            meta = _edited(before, told, len(requests))
        meta.check()
        write_sidecar(side, meta, checksum)
    return Trace(requests, meta)


def _edited(before: TraceMeta, told_sha256: str, num_requests: int) -> TraceMeta:
    """Rows that are fewer count as dropped, those that are more as read."""
    num_more = num_requests - before.num_rows_emitted
    dropped = dict(before.num_dropped)
    if num_more < 0:
        dropped[_REMOVED] = dropped.get(_REMOVED, 0) - num_more
    return dataclasses.replace(
        before,
        num_rows_read=before.num_rows_read + max(num_more, 0),
        num_rows_emitted=num_requests,
        num_dropped=dropped,
        transforms=(*before.transforms, Transform(EDITED, {"rows_more": num_more, "sha256_before": told_sha256})),
    )
