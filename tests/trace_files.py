"""Trace files for tests: small ones in the published layouts, and slices of the real ones where they are at hand.

The slices lie in `../shared/traces` beside the checkout, or where HEADRACE_TRACES says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "traces"


def real_slice(name: str) -> Path:
    """A slice of a published trace; skips the test where there is none."""
    path = Path(os.environ.get("HEADRACE_TRACES") or _DEFAULT) / name
    if not path.is_file():
        pytest.skip(f"{path} is not here; HEADRACE_TRACES names the directory")
    return path


def write_azure_2023(path: Path, rows: Iterable[str]) -> Path:
    """As published: CRLF, no end of the last line."""
    path.write_bytes("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]).encode())
    return path


def write_azure_2024(path: Path, rows: Iterable[str]) -> Path:
    """As published: a zone, six fractional digits, LF."""
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def mooncake_line(time_ms: float, in_tokens: int, out_tokens: int, hash_ids: Iterable[int]) -> str:
    body: dict[str, Any] = {"timestamp": time_ms, "input_length": in_tokens, "output_length": out_tokens}
    return json.dumps({**body, "hash_ids": list(hash_ids)})


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path
