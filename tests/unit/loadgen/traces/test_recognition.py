"""Files told by their first line."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from loadgen.traces.source_format import SourceFormat, recognise
from loadgen.traces.trace_error import TraceError
from tests.trace_files import mooncake_line, write_azure_2023, write_azure_2024, write_lines


def test_raw_files_are_read_where_a_trace_is_expected(tmp_path: Path) -> None:
    old = write_azure_2023(tmp_path / "a", ["2023-11-16 18:17:03.9799600,4808,10"])
    new = write_azure_2024(tmp_path / "b", ["2024-05-10 00:00:00.009930+00:00,2162,5"])
    mooncake = write_lines(tmp_path / "c", [mooncake_line(0, 600, 5, [0, 1])])
    canonical = write_lines(tmp_path / "d", ['{"t": 0, "in": 1, "out": 1}'])
    assert [recognise(path) for path in (old, new, mooncake, canonical)] == [
        SourceFormat.AZURE,
        SourceFormat.AZURE,
        SourceFormat.MOONCAKE,
        SourceFormat.CANONICAL,
    ]
    assert [load_trace(path).requests[0].in_tokens for path in (old, new, mooncake, canonical)] == [4808, 2162, 600, 1]


@pytest.mark.parametrize(
    ("text", "source_format"),
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", SourceFormat.BURSTGPT),
        (
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
            SourceFormat.BURSTGPT,
        ),
        (
            # Mooncake's keys too, but seconds and blocks of 16 tokens.
            '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 5, "output_length": 1, '
            '"type": "text", "turn": 1, "hash_ids": [1]}\n',
            SourceFormat.BAILIAN,
        ),
        ("0,0,0,,0,0\n", SourceFormat.SERVEGEN),
        ("600,1.33,8.59,Weibull,0.375,3.9e-05\n", SourceFormat.SERVEGEN),
        ("session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n", SourceFormat.TRACELAB_REPLAY),
        (
            "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len\n",
            SourceFormat.TRACELAB_REPLAY,
        ),
        (
            '{"provider": "a", "session_id": "s", "round_index": 0, "input_tokens_total": 1, "prefix_tokens": 0, '
            '"output_tokens": 1, "timing_events": []}\n',
            SourceFormat.TRACELAB,
        ),
        ('{"trace_id": "a", "spans": []}', SourceFormat.OTEL),
        ('{\n  "trace_id": "a",\n  "spans": []\n}', SourceFormat.OTEL),
        ('[{"id": "a", "conversations": []}]', SourceFormat.SHAREGPT),
        ("[\n", SourceFormat.SHAREGPT),
        ('{"messages": []}\n', SourceFormat.SHAREGPT),
        (
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n",
            SourceFormat.SPLITWISE,
        ),
    ],
)
def test_each_form_is_told_by_its_content(tmp_path: Path, text: str, source_format: SourceFormat) -> None:
    (tmp_path / "x").write_text(text)
    assert recognise(tmp_path / "x") is source_format


def test_a_directory_of_clients_is_servegens(tmp_path: Path) -> None:
    (tmp_path / "chunk-3-trace.csv").write_text("0,0,0,,0,0\n")
    assert recognise(tmp_path) is SourceFormat.SERVEGEN


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "the first line is empty"),
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens", "columns TIMESTAMP, NumImages"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens", "columns TIMESTAMP, ContextTokens"),
        ("Timestamp,Model,Request tokens,Total tokens,Log Type", "columns Timestamp, Model"),
        ("0,1.3,8.6,Pareto,0.375,0.397", "columns 0, 1.3"),
        ('{"t": 0', "the first line is not JSON"),
        (
            '{\n"spans": [\n',
            "nor are all lines together .*line 4.*, as of a file that was cut off",
        ),
        ('{"id": 1, "conversations": "none"}', "keys id, conversations"),
        ('{"resourceSpans": []}', "keys resourceSpans"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "x", [line])
    with pytest.raises(TraceError, match=rf"x: .*{message}.*; known are the canonical JSONL, Azure"):
        load_trace(path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    with pytest.raises(TraceError, match="packed: not text in UTF-8; unpack it first"):
        load_trace(tmp_path / "packed")
    with pytest.raises(TraceError, match="absent: No such file"):
        load_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="Is a directory"):
        import_trace(tmp_path, ImportConfig())


def test_a_canonical_trace_is_not_imported_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "d", ['{"t": 0, "in": 1, "out": 1}'])
    with pytest.raises(TraceError, match="canonical trace already"):
        import_trace(path, ImportConfig())
