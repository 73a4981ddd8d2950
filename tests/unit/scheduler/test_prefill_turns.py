"""Whose prompt is next within one step, from partial prefills and the first waiting requests of the classes."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.policy import Backlog, Policy, new_request
from scheduler.prefill_turns import PrefillTurns
from scheduler.request import Request, RequestStatus
from scheduler.slo import SLOClasses
from tests.scheduler_builders import make_spec

POLICY = Policy("priority", SLOClasses())
UNKNOWN = Backlog(0.0, None, lambda _: 0)


class Waiting:
    """The waiting requests of each class, in their order."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.requests = list(requests)

    def head_of(self, class_name: str) -> Request | None:
        return next((r for r in self.requests if r.slo_class.name == class_name), None)

    def heads(self) -> list[Request]:
        heads = [self.head_of(name) for name in SLOClasses().names]
        return [head for head in heads if head is not None]


def request_of(name: str, slo_class: str, arrival_s: float = 0.0, *, runs: bool = False) -> Request:
    request = new_request(make_spec(name, 40, 4, slo_class=slo_class, arrival_s=arrival_s), 0, POLICY)
    if runs:
        request.move(RequestStatus.RUNNING)
    return request


def turns_of(partials: list[Request], waiting: Waiting, policy: Policy = POLICY) -> PrefillTurns:
    return PrefillTurns(partials, waiting.heads(), waiting.head_of, policy, UNKNOWN)


def start(request: Request, turns: PrefillTurns, waiting: Waiting) -> None:
    waiting.requests.remove(request)
    turns.took(request)


def test_in_a_class_the_order_decides_between_who_runs_and_who_waits() -> None:
    partials = [request_of("p1", "standard", 1.0, runs=True), request_of("p3", "standard", 3.0, runs=True)]
    waiting = Waiting([request_of("w0", "standard", 0.0), request_of("w2", "standard", 2.0)])
    turns = turns_of(partials, waiting)
    seen = []
    while (request := turns.next()) is not None:
        seen.append(request.request_id)
        if request.status is RequestStatus.RUNNING:
            turns.took(request)
        else:
            start(request, turns, waiting)
    assert seen == ["w0", "p1", "w2", "p3"]


def test_higher_classes_go_first_and_nobody_has_two_turns() -> None:
    low, high = request_of("low", "batch", 0.0, runs=True), request_of("high", "realtime", 9.0, runs=True)
    turns = turns_of([low, high], Waiting([]))
    for expected in (high, low):
        assert turns.next() is expected
        turns.took(expected)
    assert turns.next() is None


def test_a_waiting_request_that_finds_no_time_holds_back_its_class_but_not_what_runs() -> None:
    partial = request_of("partial", "standard", 5.0, runs=True)
    waiting = Waiting([request_of(f"w{i}", "standard", float(i)) for i in range(2)] + [request_of("b", "batch")])
    turns = turns_of([partial], waiting)
    first, _, other = waiting.requests
    assert turns.next() is first
    turns.drop(first)
    assert turns.next() is partial
    turns.took(partial)
    assert turns.next() is other, "the next of its class does not overtake it"
    turns.drop(other)
    assert turns.next() is None


def test_a_partial_prefill_that_finds_no_time_lets_the_next_one_try() -> None:
    partials = [request_of(f"p{i}", "standard", float(i), runs=True) for i in range(2)]
    turns = turns_of(partials, Waiting([]))
    turns.drop(partials[0])
    assert turns.next() is partials[1]


def test_where_one_lacks_a_seat_or_blocks_nobody_of_its_rank_or_below_starts() -> None:
    names = ("realtime", "interactive", "standard", "batch")
    waiting = Waiting([request_of(name, name) for name in names])
    partial = request_of("partial", "batch", 5.0, runs=True)
    turns = turns_of([partial], waiting)
    turns.block_starts(rank=1)
    assert turns.next() is waiting.requests[0]
    start(waiting.requests[0], turns, waiting)
    assert turns.next() is partial, "what runs has its blocks"
    turns.block_starts(rank=3)
    assert turns.of_class("standard") is None, "a later block of a lower rank lifts nothing"
    turns.took(partial)
    assert turns.next() is None


def test_the_turn_of_one_class_is_known() -> None:
    partial, waiting = request_of("p", "batch", 1.0, runs=True), Waiting([request_of("w", "standard")])
    turns = turns_of([partial], waiting)
    assert turns.of_class("batch") is partial
    assert turns.of_class("standard") is waiting.requests[0]
    assert turns.of_class("realtime") is None


def test_a_relegated_prompt_does_not_hold_back_those_of_its_class_that_can_be_in_time() -> None:
    late, next_late = (request_of(f"late{i}", "standard", float(i), runs=True) for i in range(2))
    late.is_relegated = next_late.is_relegated = True
    in_time = request_of("in time", "standard", 2.0)
    waiting = Waiting([in_time])
    turns = turns_of([late, next_late], waiting)
    assert turns.next() is in_time
    start(in_time, turns, waiting)
    assert turns.next() is late
    turns.took(late)
    assert turns.next() is next_late


def test_equal_candidates_are_chosen_whatever_their_order_is() -> None:
    partials = [request_of(name, name, runs=True) for name in ("batch", "standard", "realtime")]
    for policy in ("fcfs", "priority", "edf", "deadline"):
        firsts = {
            turns_of(list(some), Waiting([]), Policy(policy, SLOClasses())).next()
            for some in (partials, partials[::-1])
        }
        assert len(firsts) == 1
