"""Bailian's JSONL: Mooncake's keys, but seconds, 16-token blocks and conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.trace_error import TraceError
from tests.trace_files import write_lines


def line(chat: int, parent: int, time_s: float, turn: int, in_tokens: int = 20, out_tokens: int = 3) -> str:
    return json.dumps(
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": time_s,
            "input_length": in_tokens,
            "output_length": out_tokens,
            "type": "text" if chat % 2 else "search",
            "turn": turn,
            "hash_ids": [7, *range(1000 * chat, 1000 * chat + (in_tokens - 1) // 16)],
        }
    )


def test_conversations_hang_together_by_their_parents(tmp_path: Path) -> None:
    lines = [line(55, -1, 1.5, 1), line(60, -1, 2.0, 1), line(159, 55, 61.114, 2), line(160, 159, 70.0, 3)]
    trace = import_trace(write_lines(tmp_path / "b.jsonl", lines), ImportConfig(class_of=(("search", "batch"),)))
    told = [(each.t_s, each.session, each.turn, each.after, each.slo_class) for each in trace.requests]
    assert told == [
        (0.0, "55", 0, None, None),
        (0.5, "60", 0, None, "batch"),
        (59.614, "55", 1, 0, None),
        (68.5, "55", 2, 2, "batch"),
    ]
    assert all(each.think_s is None and each.block == 16 for each in trace.requests)
    assert trace.requests[2].prefix == (7, 159000)
    assert trace.meta.format == "bailian" and trace.meta.source.licence.startswith("Apache-2.0")


def test_children_of_what_is_not_there_are_orphans_of_one_session(tmp_path: Path) -> None:
    lines = [line(2, 1, 0.0, 2), line(3, 1, 1.0, 2), line(4, -1, 2.0, 1, out_tokens=0), line(5, 4, 3.0, 2)]
    trace = import_trace(write_lines(tmp_path / "b.jsonl", lines), ImportConfig())
    assert [(each.session, each.turn, each.after) for each in trace.requests] == [
        ("1", 1, None),
        ("1", 1, None),
        ("4", 1, None),
    ]
    assert trace.meta.num_dropped == {"no_output_tokens": 1}
    assert next(t.details for t in trace.meta.transforms if t.name == "orphans") == {"requests": 3}


def test_mooncakes_block_size_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "b.jsonl", [line(1, -1, 0.0, 1, in_tokens=521)])
    assert len(import_trace(path, ImportConfig()).requests[0].prefix or ()) == 33
    with pytest.raises(TraceError, match=r"line 1: 33 block ids of 512 tokens .*--block"):
        import_trace(path, ImportConfig(block_tokens=512))


def test_every_row_is_emitted_or_dropped_for_a_reason(tmp_path: Path) -> None:
    bad = ["{", "[]", line(3, -1, float("nan"), 1), line(3, -1, 0.0, 1).replace('"turn": 1', '"turn": "1"')]
    trace = import_trace(write_lines(tmp_path / "b.jsonl", [line(1, -1, 0.0, 1), *bad, ""]), ImportConfig())
    assert (trace.meta.num_rows_read, len(trace.requests), trace.meta.num_dropped) == (5, 1, {"malformed": 4})
