"""Mooncake's traces of FAST '25: JSONL with a time in milliseconds, two token counts, and the ids of prompt blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import number_ns
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import TraceSource
from loadgen.traces.trace_request import check_blocks, is_id_list

BLOCK_TOKENS = 512
"""Of the published traces."""
MOONCAKE_SOURCE = TraceSource(
    "Mooncake FAST25, github.com/kvcache-ai/Mooncake",
    "Apache-2.0 (of the repository; no separate data licence is stated)",
    "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST '25",
)


def read_mooncake(file: TextIO, block_tokens: int) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file.

    Raises:
        TraceError: the ids of a row are not its prompt at this block size.
    """
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                yield _row(line, block_tokens)
            except TraceError as error:
                raise TraceError(f"line {number}: {error}; give the right one with --block") from error


def _row(line: str, block_tokens: int) -> SourceRow | DropReason:
    try:
        body = json.loads(line)
        time_ns = number_ns(body["timestamp"], 10**6)
    except (ValueError, KeyError, TypeError):
        return DropReason.MALFORMED
    if not isinstance(body, dict) or not _is_sound(body):
        return DropReason.MALFORMED
    prefix = tuple(body["hash_ids"])
    row = row_of(SourceRow(time_ns, body["input_length"], body["output_length"], prefix, block_tokens))
    if isinstance(row, SourceRow):
        check_blocks(len(prefix), block_tokens, row.in_tokens)
    return row


def _is_sound(body: dict[str, Any]) -> bool:
    are_counts = all(type(body.get(name)) is int for name in ("input_length", "output_length"))
    return are_counts and is_id_list(body.get("hash_ids"))
