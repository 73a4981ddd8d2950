"""Alibaba's Bailian (Qwen) traces: JSONL like Mooncake's, but in seconds, with conversations and 16-token blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import number_ns
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import TraceSource
from loadgen.traces.trace_request import check_blocks, is_id_list

BAILIAN_BLOCK_TOKENS = 16
BAILIAN_SOURCE = TraceSource(
    "Qwen-Bailian usage traces, github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
    "Apache-2.0 (of the repository)",
    "Wang et al., KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud Provider, "
    "USENIX ATC '25",
)
_ROOT = -1


def read_bailian(file: TextIO, block_tokens: int) -> Iterator[SourceRow | DropReason]:
    """The rows of an open file. A session is named by the first chat of its conversation that the file has.

    Raises:
        TraceError: the ids of a row are not its prompt at this block size.
    """
    sessions: dict[int, str] = {}
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                yield _row(line, block_tokens, sessions)
            except TraceError as error:
                raise TraceError(f"line {number}: {error}; give the right one with --block") from error


def _row(line: str, block_tokens: int, sessions: dict[int, str]) -> SourceRow | DropReason:
    try:
        body = json.loads(line)
        time_ns = number_ns(body["timestamp"], 10**9)
    except (ValueError, KeyError, TypeError):
        return DropReason.MALFORMED
    if not isinstance(body, dict) or not _is_sound(body):
        return DropReason.MALFORMED
    chat, parent = body["chat_id"], body["parent_chat_id"]
    # Also of a row that is dropped below: its children belong together.
    sessions[chat] = str(chat) if parent == _ROOT else sessions.setdefault(parent, str(parent))
    row = row_of(
        SourceRow(
            time_ns,
            body["input_length"],
            body["output_length"],
            prefix=tuple(body["hash_ids"]),
            block=block_tokens,
            kind=body.get("type"),
            session=sessions[chat],
            turn=max(body.get("turn", 1) - 1, 0),
            key=str(chat),
            after=() if parent == _ROOT else (str(parent),),
        )
    )
    if isinstance(row, SourceRow):
        check_blocks(len(body["hash_ids"]), block_tokens, row.in_tokens)
    return row


def _is_sound(body: dict[str, Any]) -> bool:
    return (
        all(type(body.get(name)) is int for name in ("chat_id", "parent_chat_id", "input_length", "output_length"))
        and type(body.get("turn", 1)) is int
        and isinstance(body.get("type"), str | None)
        and is_id_list(body.get("hash_ids"))
    )
