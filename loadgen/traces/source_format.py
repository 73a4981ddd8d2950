"""Which form a file of requests has, told from its content."""

from __future__ import annotations

import csv
import enum
import json
import re
from pathlib import Path
from typing import Any

from loadgen.traces.trace_error import TraceError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
TRACELAB_REPLAY_COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
SPLITWISE_COLUMNS = ("request_type", "arrival_timestamp", "batch_size", "prompt_size", "token_size")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
TRACELAB_KEYS = ("session_id", "round_index", "input_tokens_total", "prefix_tokens", "output_tokens")
TURN_KEYS = ("conversations", "conversation", "messages")
"""Under which ShareGPT and its like keep the turns of a conversation."""
SERVEGEN_FILES = "*chunk-*-trace.csv"
_SERVEGEN_LINE = re.compile(r"[\d.eE+-]+,[\d.eE+-]+,[\d.eE+-]*,(?:Gamma|Weibull)?,[\d.eE+-]*,[\d.eE+-]*")
_CANONICAL_KEYS = ("t", "in", "out")
_MAX_LINE_CHARS = 1 << 24
_KNOWN = (
    "known are the canonical JSONL, Azure LLM 2023 and 2024 (CSV), BurstGPT (CSV), Mooncake and Bailian (JSONL), "
    "ServeGen (a directory, or chunk-*-trace.csv), TraceLab (JSONL, or replay CSV), OpenTelemetry spans and ShareGPT "
    "(JSON), and SplitwiseSim (CSV)"
)


class SourceFormat(enum.Enum):
    """A form that can be read."""

    CANONICAL = "canonical"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    SERVEGEN = "servegen"
    TRACELAB = "tracelab"
    TRACELAB_REPLAY = "tracelab-replay"
    OTEL = "otel"
    SHAREGPT = "sharegpt"
    SPLITWISE = "splitwise"


_BY_COLUMNS = (
    (SourceFormat.BURSTGPT, BURSTGPT_COLUMNS),
    (SourceFormat.TRACELAB_REPLAY, TRACELAB_REPLAY_COLUMNS),
    (SourceFormat.SPLITWISE, SPLITWISE_COLUMNS),
)
_BY_KEYS = (
    (SourceFormat.CANONICAL, _CANONICAL_KEYS),
    # Bailian has Mooncake's keys too, but times in seconds and blocks of 16 tokens.
    (SourceFormat.BAILIAN, ("chat_id", "parent_chat_id", *MOONCAKE_KEYS)),
    (SourceFormat.TRACELAB, TRACELAB_KEYS),
    (SourceFormat.OTEL, ("spans",)),
)


def recognise(path: Path) -> SourceFormat:
    """The form of a file, or of a directory of ServeGen's clients.

    Raises:
        TraceError: it is none that can be read.
        OSError: the file cannot be opened.
        UnicodeDecodeError: it is not text.
    """
    if path.is_dir() and any(path.glob(SERVEGEN_FILES)):
        return SourceFormat.SERVEGEN
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline(_MAX_LINE_CHARS).strip()
    if not line:
        raise TraceError(f"the first line is empty; {_KNOWN}")
    if line.startswith("["):
        return SourceFormat.SHAREGPT
    return _of_keys(_first_object(path, line)) if line.startswith("{") else _of_columns(line)


def _first_object(path: Path, line: str) -> dict[str, Any]:
    """Of the first line, or of a file that is one object over many lines."""
    try:
        body: dict[str, Any] = json.loads(line)
    except ValueError as error:
        try:
            body = json.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as whole:
            raise TraceError(
                f"the first line is not JSON ({error}), nor are all lines together ({whole}), as of a file that was "
                f"cut off; {_KNOWN}"
            ) from error
    return body


def _of_keys(body: dict[str, Any]) -> SourceFormat:
    for source_format, names in _BY_KEYS:
        if body.keys() >= set(names):
            return source_format
    if body.keys() >= set(MOONCAKE_KEYS):
        return SourceFormat.MOONCAKE
    if any(isinstance(body.get(name), list) for name in TURN_KEYS):
        return SourceFormat.SHAREGPT
    raise TraceError(f"objects with the keys {', '.join(body)[:200]} are not known; {_KNOWN}")


def _of_columns(line: str) -> SourceFormat:
    if _SERVEGEN_LINE.fullmatch(line):
        return SourceFormat.SERVEGEN
    columns = next(csv.reader([line]))
    if sorted(columns) == sorted(AZURE_COLUMNS):
        return SourceFormat.AZURE
    for source_format, names in _BY_COLUMNS:
        if set(columns) >= set(names) and len(set(columns)) == len(columns):
            return source_format
    raise TraceError(f"a file with the columns {', '.join(columns)[:200]} is not known; {_KNOWN}")
