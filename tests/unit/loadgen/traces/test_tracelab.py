"""TraceLab's rounds and replay files: sessions, waits for tools, shared prefixes."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest

from loadgen.traces.description import describe
from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from tests.trace_files import real_slice, write_lines

REPLAY_HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"


def round_line(session: str, turn: int, lengths: tuple[int, int, int], events: list[tuple[str, str]]) -> str:
    in_tokens, prefix_tokens, out_tokens = lengths
    return json.dumps(
        {
            "provider": "claude",
            "session_id": session,
            "round_index": turn,
            "input_tokens_total": in_tokens,
            "prefix_tokens": prefix_tokens,
            "output_tokens": out_tokens,
            "timing_events": [{"event_type": name, "timestamp": f"2026-06-01T05:40:{time}Z"} for name, time in events],
        }
    )


ROUNDS = [
    round_line("s", 0, (200, 100, 60), [("user_message", "20.100"), ("text", "29.000"), ("tool_call", "30.500")]),
    round_line("s", 1, (300, 260, 10), [("tool_result", "31.000"), ("tool_result", "50.750"), ("text", "52.000")]),
]


def test_rounds_wait_for_the_answer_and_then_for_their_tools(tmp_path: Path) -> None:
    trace = import_trace(write_lines(tmp_path / "t.jsonl", ROUNDS), ImportConfig(block_tokens=64))
    first, second = trace.requests
    assert (first.t_s, first.session, first.turn, first.after, first.think_s) == (0.0, "s", 0, None, None)
    # Two tools ran at once; the round began when the later one was done.
    assert (second.t_s, second.turn, second.after, second.think_s) == (30.65, 1, 0, 20.25)
    assert first.prefix is not None and second.prefix is not None and first.block == 64
    # 260 tokens of context: 200 of the prompt (3 whole blocks that were in it) and 60 of the answer.
    assert (len(first.prefix), len(second.prefix)) == (4, 5)
    assert second.prefix[:3] == first.prefix[:3] and second.prefix[3] != first.prefix[3]


def test_every_round_is_emitted_or_dropped_for_a_reason(tmp_path: Path) -> None:
    bad = [
        "{",
        round_line("s", 2, (5, 0, 5), []),
        round_line("s", 3, (5, 0, 0), [("text", "59.000")]),
        ROUNDS[0].replace('"round_index": 0', '"round_index": null'),
        ROUNDS[0].replace('"prefix_tokens": 100', '"prefix_tokens": "100"'),
    ]
    trace = import_trace(write_lines(tmp_path / "t.jsonl", [*ROUNDS, *bad]), ImportConfig())
    assert (trace.meta.num_rows_read, len(trace.requests)) == (7, 2)
    assert trace.meta.num_dropped == {"malformed": 4, "no_output_tokens": 1}


def test_a_replay_file_tells_a_sessions_start_and_the_waits(tmp_path: Path) -> None:
    rows = ["0,117,0,0,2318,200,300", "0,117,1,2518,348,131,154", "1,393,0,0,861,107,273", "0,117,2,64,812,104,0"]
    trace = import_trace(write_lines(tmp_path / "r.csv", [REPLAY_HEADER, *rows]), ImportConfig())
    told = [(each.t_s, each.session, each.turn, each.after, each.think_s, each.in_tokens) for each in trace.requests]
    assert told == [
        (0.0, "0", 0, None, None, 2318),
        (0.276, "1", 0, None, None, 861),
        (0.3, "0", 1, 0, 0.3, 2866),
        (0.454, "0", 2, 2, 0.154, 876),
    ]
    prefixes = [set(each.prefix or ()) for each in trace.requests]
    assert len(prefixes[0] & prefixes[2]) == 2318 // 64  # the rest of its context was an answer
    assert len(prefixes[2] & prefixes[3]) == 1  # a context that was compacted
    assert not prefixes[1] & (prefixes[0] | prefixes[2] | prefixes[3])
    assert ("times_of_turns", {"answer_s": 0}) in [(each.name, each.details) for each in trace.meta.transforms]


def test_a_replay_file_without_times_begins_at_once(tmp_path: Path) -> None:
    rows = [
        "id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
        "a,0,0,9,4,28",
        "b,0,0,9,4,0",
        "b,1,-1,9,4,0",
    ]
    trace = import_trace(write_lines(tmp_path / "r.csv", rows), ImportConfig())
    assert [(each.t_s, each.session) for each in trace.requests] == [(0.0, "a"), (0.0, "b")]
    assert trace.meta.num_dropped == {"malformed": 1}


@pytest.mark.parametrize(
    "name", ["tracelab_replay_multi_session_large.csv", "tracelab_replay_session_workload_example.csv"]
)
def test_published_replay_files(name: str) -> None:
    path = real_slice(name)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = load_trace(path)
    assert len(trace.requests) == len(rows) == trace.meta.num_rows_read
    by_key = {(each.session, each.turn): each for each in trace.requests}
    for row in rows:
        request = by_key[row["session_id"], int(row["round_idx"])]
        assert request.in_tokens == int(row["prefix_len"]) + int(row["input_len"])
        assert request.out_tokens == int(row["output_len"])
    rate = describe(trace.requests).block_hit_rate
    # What could be hit: the declared prefixes, less the answers in them, which no earlier prompt had.
    declared = sum(int(row["prefix_len"]) for row in rows if row["round_idx"] != "0")
    assert rate is not None and rate <= declared / sum(each.in_tokens for each in trace.requests)
    assert rate > 0.7


def test_published_rounds() -> None:
    path = real_slice("tracelab_example_round_trace.jsonl")
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    trace = load_trace(path)
    by_key = {(each.session, each.turn): each for each in trace.requests}
    assert len(by_key) == len(rounds) == 19
    for before, after in itertools.pairwise(rounds):
        if before["session_id"] == after["session_id"] and before["tools"]:
            think_s = by_key[after["session_id"], after["round_index"]].think_s
            waited_ms = max(tool["tool_wall_latency_ms"] for tool in before["tools"])
            # Tools begin when they are called, so the last event of the round may come after their begin.
            assert think_s is not None and think_s <= waited_ms / 1000 + 0.15
