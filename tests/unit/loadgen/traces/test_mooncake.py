"""Mooncake's JSONL, with what is odd about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.trace_error import TraceError
from tests.trace_files import mooncake_line, write_lines

LINES = [
    mooncake_line(27482, 1024, 52, [0, 1]),
    mooncake_line(27482, 1025, 7, [0, 1, 2]),
    mooncake_line(30500, 9, 1, [9]),
]


def test_times_are_milliseconds_and_blocks_512_tokens(tmp_path: Path) -> None:
    trace = import_trace(write_lines(tmp_path / "m.jsonl", LINES), ImportConfig())
    assert [request.t_s for request in trace.requests] == [0.0, 0.0, 3.018]
    assert [request.prefix for request in trace.requests] == [(0, 1), (0, 1, 2), (9,)]
    assert {request.block for request in trace.requests} == {512}
    assert trace.meta.source.licence.startswith("Apache-2.0")


@pytest.mark.parametrize("block_tokens", [16, 511, 1024])
def test_ids_that_are_not_the_prompt_at_the_block_size_are_refused(tmp_path: Path, block_tokens: int) -> None:
    path = write_lines(tmp_path / "m.jsonl", LINES)
    with pytest.raises(TraceError, match=rf"m\.jsonl: line [123]: .* block ids of {block_tokens} tokens .*--block"):
        import_trace(path, ImportConfig(block_tokens=block_tokens))


def test_a_file_with_other_blocks_is_read_with_theirs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "m.jsonl", [mooncake_line(0, 40, 5, [7, 8, 9])])
    (request,) = import_trace(path, ImportConfig(block_tokens=16)).requests
    assert (request.prefix, request.block) == ((7, 8, 9), 16)


def test_every_row_is_emitted_or_dropped_for_a_reason(tmp_path: Path) -> None:
    bad = [
        mooncake_line(0, 0, 5, []),
        mooncake_line(0, 5, 0, [1]),
        '{"timestamp": 1, "input_length": 5, "output_length": 5}',
        '{"timestamp": NaN, "input_length": 5, "output_length": 5, "hash_ids": [1]}',
        '{"timestamp": 1, "input_length": 5.5, "output_length": 5, "hash_ids": [1]}',
        '{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}',
        "[]",
        LINES[0][:-9],
    ]
    trace = import_trace(write_lines(tmp_path / "m.jsonl", [*LINES, "", *bad]), ImportConfig())
    assert trace.meta.num_rows_read == len(LINES) + len(bad)
    assert trace.meta.num_rows_emitted == len(trace.requests) == len(LINES)
    assert trace.meta.num_dropped == {"malformed": 6, "no_input_tokens": 1, "no_output_tokens": 1}


def test_long_contexts_are_refused_unless_a_policy_is_chosen(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "m.jsonl", LINES)
    with pytest.raises(TraceError, match=r"2 of 3 requests are longer than 1024 tokens, the longest has 1076; choose"):
        import_trace(path, ImportConfig(max_tokens=1024))
    trace = import_trace(path, ImportConfig(max_tokens=1024, too_long="drop"))
    assert (trace.meta.num_rows_read, trace.meta.num_rows_emitted, trace.meta.num_dropped) == (3, 1, {"too_long": 2})
    trace = import_trace(path, ImportConfig(max_tokens=1024, too_long="clip"))
    assert trace.meta.num_dropped == {} and trace.meta.transforms[-1].details["too_long"] == 2
    assert [request.in_tokens + request.out_tokens for request in trace.requests] == [1024, 1024, 10]


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "m.jsonl", LINES[:1])
    with pytest.raises(TraceError, match="no request has at most 100 tokens; clip or scale"):
        import_trace(path, ImportConfig(max_tokens=100, too_long="drop"))
