"""Conversations on a virtual clock: what is due when, and with which history."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig
from loadgen.conversation import conversations
from loadgen.result import BenchResult
from loadgen.workload import PlannedRequest, Workload
from tests.fake_transport import Posted, QueueTransport, Service
from tests.virtual_bench import bench_virtually


def _turn(index: int, after: int | None = None, think_s: float | None = None, offset_s: float | None = None, **more: Any) -> PlannedRequest:  # fmt: skip  # noqa: E501
    return PlannedRequest(
        index, "default", offset_s, f"q{index}", 1, 2, index, session="s", after=after, think_s=think_s, **more
    )


def _run(
    turns: Sequence[PlannedRequest], *, status_of: dict[str, int] | None = None, **options: Any
) -> tuple[BenchResult, QueueTransport]:
    """Every answer takes 1 s and ends 0.5 s later with its second token."""
    transports: list[QueueTransport] = []

    def serve(posted: Posted) -> Service:
        asked = posted.body["messages"][-1]["content"] if "messages" in posted.body else ""
        return Service(1.0, 0.5, (status_of or {}).get(asked, 200))

    def make() -> QueueTransport:
        transports.append(QueueTransport(serve, num_servers=99))
        return transports[0]

    result = bench_virtually(BenchConfig("http://x", **options), make, requests=iter(turns))
    return result, transports[0]


def _due_s(result: BenchResult) -> list[float]:
    return [trace.intended_s - result.run.started_s for trace, _ in result.judged]


def test_requests_are_grouped_with_the_turns_after_them() -> None:
    plain: Iterator[PlannedRequest] = iter([_turn(0), _turn(1), _turn(2, after=1), _turn(3, after=2), _turn(4)])
    groups = list(conversations(plain))
    assert [(c.first.index, [turn.index for turn in c.later]) for c in groups] == [(0, []), (1, [2, 3]), (4, [])]
    assert [turn.index for turn in groups[1].after(groups[1].first)] == [2]
    assert groups[1].num_after(groups[1].first) == 2
    assert list(conversations([])) == []


@pytest.mark.parametrize("loop", [{"concurrency": 1}, {}])
def test_a_conversation_may_be_longer_than_the_stack(loop: dict[str, Any]) -> None:
    num = 2 * sys.getrecursionlimit()
    turns = [_turn(0, offset_s=0.0), *(_turn(k, after=k - 1, think_s=0.0, is_whole=True) for k in range(1, num))]
    (conversation,) = conversations(turns[:500])
    assert conversation.num_after(turns[0]) == 499
    result, _ = _run(turns, **loop)
    assert len(result.judged) == num


def test_the_next_turn_waits_for_the_answer_and_the_thought_and_is_timed_from_then() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, think_s=2.0), _turn(2, after=1, think_s=0.25)]
    result, _ = _run(turns, slo=("default:ttft_ms=1001",))
    assert _due_s(result) == pytest.approx([0.0, 1.5 + 2.0, 3.5 + 1.5 + 0.25])
    assert result.overall.offered_attainment == 1.0, "a slow answer is not counted again in the turns after it"
    assert all(trace.send_lag_s == 0.0 for trace, _ in result.judged)


def test_a_turn_without_time_to_think_keeps_its_place_in_the_schedule_where_it_can() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, offset_s=7.0), _turn(2, after=1, offset_s=7.5)]
    assert _due_s(_run(turns)[0]) == pytest.approx([0.0, 7.0, 8.5])


def test_a_turn_carries_what_was_said_before_it() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, think_s=0.0), _turn(2, after=1, think_s=0.0)]
    _, transport = _run(turns)
    answer = {"role": "assistant", "content": "t0 t1 "}
    asked = [{"role": "user", "content": f"q{index}"} for index in range(3)]
    assert [posted.body["messages"] for posted in transport.posted] == [
        [asked[0]],
        [asked[0], answer, asked[1]],
        [asked[0], answer, asked[1], answer, asked[2]],
    ]


def test_a_prompt_that_holds_its_history_is_sent_as_it_is() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, think_s=0.0, is_whole=True)]
    assert [len(posted.body["messages"]) for posted in _run(turns)[1].posted] == [1, 1]


def test_completions_take_the_history_as_text() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, think_s=0.0)]
    _, transport = _run(turns, api="completions")
    assert transport.posted[1].body["prompt"] == "q0 t0 t1  q1"


def test_two_turns_may_wait_for_the_same_answer() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, think_s=1.0), _turn(2, after=0, think_s=2.0), _turn(3, after=1)]
    assert _due_s(_run(turns)[0]) == pytest.approx([0.0, 2.5, 3.5, 4.0])


def test_nobody_goes_on_after_a_refusal_and_it_is_counted() -> None:
    turns = [
        *(_turn(0, offset_s=0.0), _turn(1, after=0), _turn(2, after=1), _turn(3, after=2)),
        *(_turn(4, offset_s=1.0), _turn(5, after=4)),
    ]
    result, _ = _run(turns, status_of={"q1": 429})
    assert [trace.planned.index for trace, _ in result.judged] == [0, 1, 4, 5]
    assert result.run.num_unsent_turns == 2


def test_who_leaves_an_answer_goes_on_with_what_there_is() -> None:
    turns = [_turn(0, offset_s=0.0, cancel_after_tokens=1), _turn(1, after=0, think_s=0.0)]
    result, transport = _run(turns)
    assert _due_s(result) == pytest.approx([0.0, 1.0])
    assert transport.posted[1].body["messages"][1] == {"role": "assistant", "content": "t0 "}
    assert result.run.num_unsent_turns == 0


def test_no_turn_is_sent_after_the_duration() -> None:
    turns = [_turn(0, offset_s=0.0), _turn(1, after=0, think_s=1.0), _turn(2, after=1, think_s=1.0)]
    for loop in ({}, {"concurrency": 1}):
        for duration_s, due_s, num_after_end in ((3.0, [0.0, 2.5], 1), (2.0, [0.0], 2), (9.0, [0.0, 2.5, 5.0], 0)):
            result, _ = _run(turns, duration_s=duration_s, **loop)
            assert _due_s(result) == pytest.approx(due_s)
            assert (result.run.num_turns_after_end, result.run.num_unsent_turns) == (num_after_end, 0)


def test_a_client_of_a_closed_loop_has_one_conversation_at_a_time() -> None:
    turns = [_turn(0), _turn(1, after=0, think_s=1.0), _turn(2), _turn(3, after=2, think_s=0.5)]
    assert _due_s(_run(turns, concurrency=1)[0]) == pytest.approx([0.0, 2.5, 4.0, 6.0])
    assert _due_s(_run(turns, concurrency=2)[0]) == pytest.approx([0.0, 2.5, 0.0, 2.0])


def test_a_class_of_conversations_draws_turns_and_thoughts_and_keeps_its_rate() -> None:
    config = BenchConfig("http://x", rate=6.0, duration_s=400.0, classes=("chat:turns=2-4,think=1-3", "plain:1"))
    plans = list(Workload(config, parse_class_mix(config)).requests())
    assert len(plans) / 400.0 == pytest.approx(6.0, rel=0.1), "the rate is of requests, turns included"
    chats = [c for c in conversations(plans) if c.first.slo_class == "chat"]
    assert {1 + len(c.later) for c in chats} == {2, 3, 4}
    assert sum(1 + len(c.later) for c in chats) / len(plans) == pytest.approx(0.5, abs=0.06), "shares are of requests"
    for chat in chats:
        expected = chat.first.num_prompt_tokens
        before = chat.first
        for turn in chat.later:
            expected += before.num_output_tokens + 128
            assert (turn.session, turn.after, turn.num_prompt_tokens) == (chat.first.session, before.trace_id, expected)
            assert turn.think_s is not None
            assert 1.0 <= turn.think_s <= 3.0
            before = turn
