"""The published files themselves, against figures measured on them by others' programs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from loadgen.traces.description import LengthQuantiles, describe
from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from tests.trace_files import real_slice


def assert_lengths(lengths: LengthQuantiles, mean: int, p50: int, p99: int, longest: int) -> None:
    assert (round(lengths.mean), lengths.p50, lengths.max) == (mean, p50, longest)
    assert abs(lengths.p99 - p99) <= 1  # a quantile between two rows is the one or the other elsewhere


def test_azure_code() -> None:
    trace = load_trace(real_slice("azure_llm_2023_code.csv"))
    figures = describe(trace.requests)
    assert (trace.meta.num_rows_read, trace.meta.num_rows_emitted, trace.meta.num_dropped) == (8819, 8819, {})
    assert figures.num_distinct_times == 8819  # cut to 10 ms, bursts would merge
    assert figures.rate_per_s == pytest.approx(2.57, abs=0.005)
    assert figures.gap_cv == pytest.approx(13.2, abs=0.05)
    assert figures.dispersion == pytest.approx(13.2, abs=0.05)
    assert (figures.max_in_one_second, round(figures.longest_gap_s)) == (67, 217)
    assert_lengths(figures.in_tokens, 2048, 1469, 7436, 7437)
    assert_lengths(figures.out_tokens, 28, 13, 252, 1899)


def test_azure_conversations() -> None:
    trace = load_trace(real_slice("azure_llm_2023_conv.csv"))
    figures = describe(trace.requests)
    assert (trace.meta.num_rows_read, trace.meta.num_rows_emitted) == (19366, 19366)
    assert figures.rate_per_s == pytest.approx(5.53, abs=0.005)
    assert figures.gap_cv == pytest.approx(1.09, abs=0.005)
    assert figures.dispersion == pytest.approx(1.38, abs=0.02)
    assert figures.max_in_one_second == 16
    assert_lengths(figures.in_tokens, 1155, 1020, 4142, 14050)
    assert_lengths(figures.out_tokens, 211, 129, 601, 1000)


def test_every_azure_row_is_there_in_its_order() -> None:
    path = real_slice("azure_llm_2023_code.csv")
    with path.open(newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    assert [(each.in_tokens, each.out_tokens) for each in load_trace(path).requests] == rows


@pytest.mark.parametrize(
    ("name", "is_stepped"),
    [("mooncake_fast25_conversation_head.jsonl", True), ("mooncake_fast25_synthetic_head.jsonl", False)],
)
def test_mooncake(name: str, is_stepped: bool) -> None:
    path = real_slice(name)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    trace = load_trace(path)
    assert [each.in_tokens for each in trace.requests] == [row["input_length"] for row in rows]
    assert [each.prefix for each in trace.requests] == [tuple(row["hash_ids"]) for row in rows]
    figures = describe(trace.requests)
    assert (figures.num_distinct_times * 2 < len(rows)) == is_stepped
    # Ids are chained in this trace: a block seen before is one of a prefix seen before.
    seen: set[int] = set()
    num_seen = 0
    for row in rows:
        num_seen += sum(block in seen for block in row["hash_ids"])
        seen.update(row["hash_ids"])
    assert figures.num_cached_blocks == num_seen > 0


def test_mooncakes_steps_spread_look_like_independent_users() -> None:
    path = real_slice("mooncake_fast25_conversation_head.jsonl")
    figures = describe(import_trace(path, ImportConfig(spread_ties=True)).requests)
    assert figures.num_distinct_times == figures.num_requests == 3486
    assert figures.gap_cv == pytest.approx(1.0, abs=0.1)
    assert figures.dispersion == pytest.approx(1.0, abs=0.2)


def test_scaled_mooncake_shares_as_before() -> None:
    path: Path = real_slice("mooncake_fast25_conversation_head.jsonl")
    scaled = import_trace(path, ImportConfig(max_tokens=4096, too_long="scale")).requests
    assert max(each.in_tokens + each.out_tokens for each in scaled) <= 4096
    assert describe(scaled).block_hit_rate == describe(load_trace(path).requests).block_hit_rate
