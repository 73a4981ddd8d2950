"""What is wrong with a canonical trace: all of it, not only the first thing."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from loadgen.traces.naming import naming
from loadgen.traces.source_format import SourceFormat, recognise
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import check_order, check_sidecar, sha256_of, sidecar_path
from loadgen.traces.trace_request import TraceRequest, decode_request


def find_problems(path: Path) -> Iterator[str]:
    """One line for each problem, in the order of the file, those of the sidecar at the end.

    Checked are: every line by itself; times in order; a turn that waits comes after what it waits for, in its session
    and with a later turn; a think time has an answer to count from; a block id has one size; and the sidecar's
    checksum and counts.

    Raises:
        TraceError: the file cannot be read, or is no canonical trace.
    """
    with naming(path):
        num_lines = yield from _line_problems(path)
        yield from _of_sidecar(path, num_lines)


def find_line_problems(path: Path) -> Iterator[str]:
    """Those of the lines alone, whatever the sidecar says. Raises as `find_problems`."""
    with naming(path):
        yield from _line_problems(path)


def _line_problems(path: Path) -> Generator[str, None, int]:
    """Returns the number of lines."""
    if (source_format := recognise(path)) is not SourceFormat.CANONICAL:
        raise TraceError(f"this is a trace of {source_format.value}, not a canonical one; import it first")
    num_lines = 0
    before: list[TraceRequest | None] = []
    sizes: dict[int, int] = {}
    with path.open(encoding="utf-8-sig") as file:
        for num_lines, line in enumerate(file, start=1):
            yield from (f"line {num_lines}: {problem}" for problem in _of_line(line, before, sizes))
    return num_lines


def _of_line(line: str, before: list[TraceRequest | None], sizes: dict[int, int]) -> Iterator[str]:
    """Adds the request to `before`, or None in its place, and its blocks to `sizes`."""
    try:
        request = decode_request(line)
    except TraceError as error:
        before.append(None)
        yield str(error)
        return
    last_s = max((each.t_s for each in before[-1:] if each is not None), default=None)
    try:
        check_order(request, last_s, len(before))
        yield from _of_links(request, before)
    except TraceError as error:
        yield str(error)
    for block_id in request.prefix or ():
        if request.block is not None and sizes.setdefault(block_id, request.block) != request.block:
            yield f"block id {block_id} has {request.block} tokens here and {sizes[block_id]} in a line above"
            break
    before.append(request)


def _of_links(request: TraceRequest, before: list[TraceRequest | None]) -> Iterator[str]:
    if request.after is None:
        if request.think_s is not None:
            yield f"think_s is {request.think_s}, but without after there is no answer to count from"
        return
    earlier = before[request.after]
    if earlier is None:
        return
    if earlier.session != request.session:
        yield f"after is {request.after}, of session {earlier.session!r}, but this one is of {request.session!r}"
    if request.session is not None and request.turn <= earlier.turn:
        yield f"turn is {request.turn}, not later than {earlier.turn} of request {request.after}, which it waits for"


def _of_sidecar(path: Path, num_lines: int) -> Iterator[str]:
    side = sidecar_path(path)
    if not side.exists():
        yield (
            f"{side.name} is missing: source, licence and counts are not told; `headrace trace import` writes it with "
            "what it imports, and `headrace trace validate FILE --adopt` for a file made by hand"
        )
        return
    try:
        check_sidecar(side, sha256_of(path), num_lines)
    except TraceError as error:
        yield str(error)
