"""Conversations without times."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from loadgen.traces.trace_error import TraceError
from tests.trace_files import write_lines


def conversation(*texts: str) -> dict[str, Any]:
    roles = ("human", "gpt")
    return {"id": "x", "conversations": [{"from": roles[i % 2], "value": text} for i, text in enumerate(texts)]}


def write(path: Path, conversations: list[Any]) -> Path:
    path.write_text(json.dumps(conversations))
    return path


def test_each_answer_is_a_turn_whose_prompt_is_all_before_it(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", [conversation("q" * 400, "a" * 9, "r" * 40, "b" * 80), conversation("p", "o")])
    trace = import_trace(path, ImportConfig(keep_text=True, seed=3))
    by_key = {(each.session, each.turn): each for each in trace.requests}
    first, second = by_key["0", 0], by_key["0", 1]
    assert (first.in_tokens, first.out_tokens) == (100, 3)
    assert (second.in_tokens, second.out_tokens) == (113, 20)  # 449 characters in fours, rounded up
    assert second.text == "\n".join(("q" * 400, "a" * 9, "r" * 40))
    assert second.after == trace.requests.index(first) and second.think_s is not None
    assert second.t_s == pytest.approx(first.t_s + second.think_s, abs=1e-8)
    assert (first.prefix or ())[0] == (second.prefix or ())[0]
    assert trace.meta.num_rows_read == 3 and trace.meta.seed == 3


def test_other_names_of_the_same_are_read_line_by_line(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "s" * 8},
        {"role": "user", "content": [{"type": "text", "text": "u" * 8}]},
    ]
    answer = {"role": "assistant", "content": "a" * 4}
    lines = [
        json.dumps({"messages": [*messages, answer]}),
        json.dumps({"conversation_id": 1, "conversation": [messages[0], answer]}),
        "{",
        json.dumps({"messages": messages}),
        json.dumps({"messages": [answer]}),
        json.dumps({"messages": [messages[0], {"role": "assistant", "content": None}]}),
    ]
    trace = load_trace(write_lines(tmp_path / "s.jsonl", lines))
    assert sorted((each.in_tokens, each.out_tokens) for each in trace.requests) == [(2, 1), (4, 1)]
    assert (trace.meta.num_rows_read, trace.meta.num_dropped) == (
        6,
        {"malformed": 2, "no_input_tokens": 1, "no_output_tokens": 1},
    )
    assert all(each.text is None for each in trace.requests)


def test_arrivals_are_drawn_at_the_rate_and_told(tmp_path: Path) -> None:
    path = write(tmp_path / "s.json", [conversation("q", "a", "q", "a")] * 2000)
    trace = import_trace(path, ImportConfig(rate_per_s=4.0, mean_think_s=2.0, chars_per_token=1.0))
    starts = [each.t_s for each in trace.requests if each.turn == 0]
    assert starts[-1] == pytest.approx(2000 / 4.0, rel=0.07)
    thinks = [each.think_s for each in trace.requests if each.think_s is not None]
    assert len(thinks) == 2000 and statistics.fmean(thinks) == pytest.approx(2.0, rel=0.07)
    assert statistics.pstdev(thinks) == pytest.approx(2.0, rel=0.1)
    drawn = next(each.details for each in trace.meta.transforms if each.name == "draw_arrivals")
    assert drawn == {"conversations_per_s": 4.0, "mean_think_s": 2.0, "answer_s": 0, "seed": 0}
    assert trace == import_trace(path, ImportConfig(rate_per_s=4.0, mean_think_s=2.0, chars_per_token=1.0))
    other = import_trace(path, ImportConfig(rate_per_s=4.0, mean_think_s=2.0, chars_per_token=1.0, seed=1))
    assert other.requests != trace.requests


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps([conversation("q", "a")])[:-5])
    with pytest.raises(TraceError, match=r"s\.json: not JSON: .*is the file whole"):
        load_trace(tmp_path / "s.json")
