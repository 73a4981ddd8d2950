"""Options of an import that say nothing about a format, or contradict the file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.source_format import SourceFormat
from loadgen.traces.trace_error import TraceError
from tests.trace_files import mooncake_line, write_lines

CONFIG = ImportConfig()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_per_s": 2.0}, "--rate says nothing about a trace of mooncake, only about servegen, sharegpt"),
        ({"duration_s": 2.0}, "--duration says nothing"),
        ({"start_s": 2.0}, "--start says nothing"),
        ({"skip_incomplete": True}, "--skip-incomplete says nothing"),
        ({"keep_text": True}, "--keep-text says nothing about a trace of mooncake, only about otel, sharegpt"),
        ({"chars_per_token": 3.0}, "--chars-per-token says nothing"),
        ({"mean_think_s": 3.0}, "--think says nothing about a trace of mooncake, only about sharegpt"),
        ({"chars_per_token": 0.0}, "--chars-per-token is 0.0, it must be finite and more than 0"),
        ({"mean_think_s": float("nan")}, "--think is nan, it must be finite and at least 0"),
        ({"format": SourceFormat.BAILIAN}, "--format is bailian, but this looks like mooncake"),
    ],
)
def test_mistakes(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write_lines(tmp_path / "m.jsonl", [mooncake_line(0, 600, 5, [0, 1])])
    with pytest.raises(TraceError, match=message):
        import_trace(path, dataclasses.replace(CONFIG, **options))


def test_the_format_that_it_is_may_be_said(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "m.jsonl", [mooncake_line(0, 600, 5, [0, 1])])
    assert import_trace(path, ImportConfig(format=SourceFormat.MOONCAKE)).meta.format == "mooncake"
