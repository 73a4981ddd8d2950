"""Which form a file of requests has, told from its first line."""

from __future__ import annotations

import csv
import enum
import json
from pathlib import Path

from loadgen.traces.trace_error import TraceError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_CANONICAL_KEYS = ("t", "in", "out")
_BAILIAN_KEY = "chat_id"
"""Has Mooncake's keys too, but times in seconds and blocks of 16 tokens."""
_MAX_LINE_CHARS = 1 << 24
_KNOWN = "known are the canonical JSONL, Azure LLM 2023 and 2024 (CSV), and Mooncake FAST25 (JSONL)"


class SourceFormat(enum.Enum):
    """A form that can be read."""

    CANONICAL = "canonical"
    AZURE = "azure"
    MOONCAKE = "mooncake"


def recognise(path: Path) -> SourceFormat:
    """The form of a file.

    Raises:
        TraceError: it is none that can be read.
        OSError: the file cannot be opened.
        UnicodeDecodeError: it is not text.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline(_MAX_LINE_CHARS).strip()
    if not line:
        raise TraceError(f"the first line is empty; {_KNOWN}")
    if line.startswith("{"):
        return _of_json(line)
    columns = next(csv.reader([line]))
    if sorted(columns) == sorted(AZURE_COLUMNS):
        return SourceFormat.AZURE
    raise TraceError(f"a file with the columns {', '.join(columns)[:200]} is not known; {_KNOWN}")


def _of_json(line: str) -> SourceFormat:
    try:
        keys = json.loads(line).keys()
    except ValueError as error:
        raise TraceError(f"the first line is not JSON ({error}); {_KNOWN}") from error
    if keys >= set(_CANONICAL_KEYS):
        return SourceFormat.CANONICAL
    if keys >= set(MOONCAKE_KEYS) and _BAILIAN_KEY not in keys:
        return SourceFormat.MOONCAKE
    raise TraceError(f"objects with the keys {', '.join(keys)[:200]} are not known; {_KNOWN}")
