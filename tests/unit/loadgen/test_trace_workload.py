"""A trace as requests: its times, lengths, classes, and prompts that share what its prompts shared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from loadgen.calibration import Calibration
from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig, BenchError
from loadgen.trace_workload import TraceWorkload
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import TraceMeta, TraceSource
from loadgen.traces.trace_request import TraceRequest
from loadgen.workload import PlannedRequest


def _trace(rows: Sequence[TraceRequest]) -> Trace:
    for row in rows:
        row.check()
    return Trace(
        tuple(rows), TraceMeta("canonical", TraceSource("a test", "none"), "x.jsonl", "ab", len(rows), len(rows), {})
    )


def _workload(
    rows: Sequence[TraceRequest],
    calibration: Calibration | None = None,
    max_model_len: int | None = None,
    **options: Any,
) -> TraceWorkload:
    config = BenchConfig("http://x", trace_path="x.jsonl", **options)
    mix = parse_class_mix(config).with_labels(row.slo_class for row in rows)
    return TraceWorkload(config, mix, _trace(rows), calibration or Calibration(), max_model_len, "ab" * 32)


def _plan(rows: Sequence[TraceRequest], *arguments: Any, **options: Any) -> list[PlannedRequest]:
    return list(_workload(rows, *arguments, **options).requests())


def _words(planned: PlannedRequest) -> list[str]:
    return planned.prompt.split(" ")


def _num_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many elements both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


PLAIN = [TraceRequest(t, n, 4) for t, n in ((0.0, 10), (1.0, 20), (1.0, 20), (4.0, 5))]


def test_rows_are_sent_at_their_own_times_with_their_own_lengths() -> None:
    plans = _plan(PLAIN)
    assert [p.offset_s for p in plans] == [0.0, 1.0, 1.0, 4.0]
    assert [p.trace_id for p in plans] == [p.index for p in plans] == [0, 1, 2, 3]
    assert [(p.num_prompt_tokens, p.num_output_tokens) for p in plans] == [(10, 4), (20, 4), (20, 4), (5, 4)]
    assert [len(_words(p)) for p in plans] == [10, 20, 20, 5]
    assert len({tuple(_words(p)[:3]) for p in plans}) == 4, "nothing is shared where the trace says nothing"


def test_a_conversation_of_thousands_of_turns_is_one_chain() -> None:
    rows = [
        TraceRequest(
            k * 0.001, 10 + 6 * k, 3, session="s", turn=k, after=k - 1 if k else None, think_s=0.0 if k else None
        )
        for k in range(3000)
    ]
    assert [planned.trace_id for planned in _plan(rows)] == list(range(3000))


def test_turns_of_a_tree_come_depth_first() -> None:
    after = (None, 0, 0, 1, 2, 1)
    rows = [TraceRequest(float(k), 10, 3, session="s", turn=k, after=after[k]) for k in range(6)]
    assert [planned.trace_id for planned in _plan(rows)] == [0, 1, 3, 5, 2, 4]


def test_the_rate_scales_time_to_itself() -> None:
    """3 gaps in 4 s are 0.75 a second; at 3 a second all is four times as fast."""
    workload = _workload(PLAIN, rate=3.0)
    assert [p.offset_s for p in workload.requests()] == [0.0, 0.25, 0.25, 1.0]
    assert workload.replay.trace_rate_per_s == 0.75
    assert workload.replay.time_factor == 0.25
    with pytest.raises(BenchError, match="no time between its requests"):
        _workload([TraceRequest(0.0, 1, 1)] * 2, rate=1.0)


def test_a_scaled_trace_asks_the_same_in_the_same_order() -> None:
    slow, fast = _plan(PLAIN), _plan(PLAIN, rate=30.0)
    assert [(p.trace_id, p.prompt) for p in slow] == [(p.trace_id, p.prompt) for p in fast]


def test_other_arrivals_and_the_closed_loop_leave_the_times_out() -> None:
    assert [p.offset_s for p in _plan(PLAIN, arrivals="constant", rate=2.0)] == [0.0, 0.5, 1.0, 1.5]
    workload = _workload(PLAIN, concurrency=2)
    assert [p.offset_s for p in workload.requests()] == [None] * 4
    assert workload.replay.time_factor is None


def test_a_duration_and_a_number_bound_the_replay() -> None:
    assert [p.trace_id for p in _plan(PLAIN, duration_s=4.0)] == [0, 1, 2]
    assert [p.trace_id for p in _plan(PLAIN, requests=2)] == [0, 1]
    assert [p.trace_id for p in _plan(PLAIN, requests=9)] == [0, 1, 2, 3], "a trace is not begun again"


def test_prompts_share_exactly_the_blocks_that_the_trace_shares() -> None:
    chains = [(7, 8, 9), (7, 8, 10), (7, 11), (12, 13), (7, 8, 9)]
    rows = [TraceRequest(float(i), 16 * len(ids) - 3, 1, prefix=ids, block=16) for i, ids in enumerate(chains)]
    words = [_words(planned) for planned in _plan(rows)]
    assert [len(each) for each in words] == [row.in_tokens for row in rows]
    for (one, mine), (other, theirs) in itertools.combinations(zip(chains, words, strict=True), 2):
        assert _num_shared(mine, theirs) == min(16 * _num_shared(one, other), len(mine), len(theirs))


def test_lengths_follow_what_the_server_makes_of_a_word() -> None:
    """1.5 tokens a word and 12 around them: blocks stay shared, and the rounding does not add up."""
    calibration = Calibration(1.5, 12, "usage")
    rows = [TraceRequest(0.0, 1000, 1), TraceRequest(1.0, 1000, 1, prefix=tuple(range(63)), block=16)]
    for planned in _plan(rows, calibration):
        assert len(_words(planned)) * 1.5 + 12 == pytest.approx(1000, abs=1.0)
        assert planned.num_prompt_tokens == 1000


def test_a_block_has_the_same_words_in_every_run_of_a_seed_only() -> None:
    rows = [TraceRequest(0.0, 32, 1, prefix=(3, 4), block=16)]
    assert _plan(rows)[0].prompt == _plan(rows, rate=None)[0].prompt
    assert _plan(rows)[0].prompt != _plan(rows, seed=1)[0].prompt


def test_a_long_prompt_is_as_long_as_it_should_be() -> None:
    (planned,) = _plan([TraceRequest(0.0, 300_000, 1)])
    assert len(_words(planned)) == 300_000


def test_labels_are_classes_and_the_rest_is_drawn() -> None:
    rows = [TraceRequest(float(i), 4, 1, slo_class="batch" if i % 2 else None) for i in range(400)]
    plans = _plan(rows, classes=("interactive:3", "standard:1"))
    assert {p.slo_class for p in plans[1::2]} == {"batch"}
    drawn = [p.slo_class for p in plans[::2]]
    assert set(drawn) == {"interactive", "standard"}
    assert 0.65 < drawn.count("interactive") / 200 < 0.85

    assert {p.slo_class for p in _plan(rows)} == {"default", "batch"}
    mix = parse_class_mix(BenchConfig("http://x", trace_path="x", classes=("batch:ttft=2s", "gold")))
    labelled = mix.with_labels(["batch", "batch"])
    assert labelled.names == ("batch",), "a class that no row can have is left out"
    assert labelled.targets["batch"].ttft_s == 2.0
    assert parse_class_mix(BenchConfig("http://x", trace_path="x")).with_labels([None, "batch"]).asked_names == (
        "batch",
    )


def test_what_the_trace_says_cannot_be_said_by_a_class_too() -> None:
    with pytest.raises(BenchError, match="prompt is what the trace says"):
        parse_class_mix(BenchConfig("http://x", trace_path="x", classes=("a:prompt=5",)))


CHAT = [
    TraceRequest(0.0, 10, 5, session="s", turn=0),
    TraceRequest(0.5, 50, 2),
    TraceRequest(3.0, 22, 6, session="s", turn=1, after=0, think_s=1.5),
    TraceRequest(4.0, 28, 7, session="s", turn=2, after=2),
]


def test_turns_follow_their_first_one_and_add_only_their_own_words() -> None:
    plans = _plan(CHAT, rate=None)
    assert [p.trace_id for p in plans] == [0, 2, 3, 1]
    assert [p.index for p in plans] == [0, 1, 2, 3]
    assert [p.after for p in plans] == [None, 0, 2, None]
    assert [p.think_s for p in plans] == [None, 1.5, None, None]
    assert [p.offset_s for p in plans] == [0.0, 3.0, 4.0, 0.5]
    assert [len(_words(p)) for p in plans] == [10, 22 - 10 - 5, 1, 50], "the last one has no room for words of its own"
    assert [p.session for p in plans] == ["s", "s", "s", None]
    assert not any(p.is_whole for p in plans)


def test_a_turn_with_blocks_holds_its_history_already() -> None:
    rows = [
        TraceRequest(0.0, 16, 5, prefix=(1,), block=16),
        TraceRequest(1.0, 32, 5, prefix=(1, 2), block=16, after=0),
    ]
    first, second = _plan(rows)
    assert second.is_whole
    assert _words(second)[:16] == _words(first)
    assert first.session == "0", "its answer is not needed, but the wait for it is"


LONG = [
    TraceRequest(0.0, 90, 20),
    TraceRequest(1.0, 50, 10),
    TraceRequest(2.0, 100, 1, session="s"),
    TraceRequest(3.0, 20, 5, session="s", after=2),
    TraceRequest(4.0, 60, 90),
]


def test_rows_longer_than_the_model_reads_fail_by_default() -> None:
    with pytest.raises(BenchError, match=r"3 of the trace's 5 rows are longer than the 100 tokens.*longest has 150"):
        _workload(LONG, None, 100)
    assert len(_plan(LONG)) == 5, "of an unknown model nothing is too long"


def test_dropped_rows_are_counted_with_the_turns_after_them_and_ids_stay() -> None:
    workload = _workload(LONG, None, 100, too_long="drop")
    assert [p.trace_id for p in workload.requests()] == [1]
    assert workload.replay.num_too_long == 4
    with pytest.raises(BenchError, match="every row"):
        _workload(LONG, None, 10, too_long="drop")


def test_clipped_rows_fit() -> None:
    workload = _workload(LONG, None, 100, too_long="clip")
    plans = list(workload.requests())
    sums = {p.trace_id: p.num_prompt_tokens + p.num_output_tokens for p in plans}
    assert sums == {0: 98, 1: 60, 2: 98, 3: 25, 4: 98}, "a little room is left, since words are tokens only about"
    assert workload.replay.num_too_long == 3
    assert (workload.replay.num_rows, workload.replay.max_model_len) == (5, 100)
