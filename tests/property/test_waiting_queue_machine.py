"""Who is first among waiting requests, against books that look at all of them; how equal tenants are."""

from __future__ import annotations

import itertools
import random
from typing import Any, ClassVar, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.class_lane import WEIGHT_OF_OUTPUT
from scheduler.request import OrderKey, Request
from scheduler.waiting_queue import WaitingQueue
from tests.scheduler_builders import make_request
from tests.waiting_books import LaneBooks

CLASSES = ("realtime", "batch")
TENANTS = ("", "a", "b", "c")


def num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // 4)


class WaitingMachine(RuleBasedStateMachine):
    """Requests of two classes and four tenants come, start, emit, yield, are relegated, parked and cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue(num_blocks_for, CLASSES, is_fair=True)
        self.books = {name: LaneBooks() for name in CLASSES}
        self.parked: list[Request] = []
        self.running: list[Request] = []
        self.num_made = 0

    @rule(name=st.sampled_from(CLASSES), tenant=st.sampled_from(TENANTS), arrival=st.integers(0, 3))
    def arrive(self, name: str, tenant: str, arrival: int) -> None:
        self._push(self._make(name, tenant, arrival))

    def _make(self, name: str, tenant: str, arrival: int, leader_id: str | None = None) -> Request:
        self.num_made += 1
        request_id = f"r{self.num_made * 7919 % 1000:03d}"  # ids in no order
        return make_request(
            request_id, 1 + arrival, 9, slo_class=name, tenant=tenant, arrival_s=arrival, leader_id=leader_id
        )

    def _push(self, request: Request) -> None:
        self.queue.push(request)
        self._books(request).push(request)

    def _books(self, request: Request) -> LaneBooks:
        return self.books[request.spec.slo.granted]

    @rule(index=st.integers(0, 1), num_tokens=st.integers(0, 6))
    def start(self, index: int, num_tokens: int) -> None:
        heads = self.queue.heads()
        if heads:
            request = heads[index % len(heads)]
            self._leave(request)
            self.running.append(request)
            self._charge(request, num_tokens, 0)

    def _leave(self, request: Request) -> None:
        self.queue.remove(request)
        self._books(request).remove(request)

    def _charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        name, tenant = request.spec.slo.granted, request.spec.tenant
        self.queue.charge(name, tenant, num_prompt_tokens, num_output_tokens)
        self.books[name].charge(tenant, num_prompt_tokens + WEIGHT_OF_OUTPUT * num_output_tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def emit(self, data: st.DataObject) -> None:
        self._charge(data.draw(st.sampled_from(self.running)), 0, 1)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_over=st.booleans())
    def stop(self, data: st.DataObject, is_over: bool) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        if not is_over:
            request.num_lives += 1
            self._push(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        leader = data.draw(st.sampled_from(self.running)).spec
        choice = self._make(leader.slo.granted, leader.tenant, int(leader.arrival_s), leader.request_id)
        self.queue.park(choice, choice.spec.leader_id)
        self.parked.append(choice)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        leader_id = data.draw(st.sampled_from(self.parked)).spec.leader_id
        assert leader_id is not None
        self.queue.unpark(leader_id)
        for choice in [r for r in self.parked if r.spec.leader_id == leader_id]:
            self.parked.remove(choice)
            self._books(choice).push(choice)

    @precondition(lambda self: self.queue.num_requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self._waiting()))
        if request in self.parked:
            self.parked.remove(request)
            self.queue.remove(request)
        else:
            self._leave(request)

    def _waiting(self) -> list[Request]:
        return [*self.parked, *(r for books in self.books.values() for r in books.waiting)]

    @rule(data=st.data())
    def relegate(self, data: st.DataObject) -> None:
        candidates = [r for books in self.books.values() for r in books.waiting if not r.is_relegated]
        if candidates:
            request = data.draw(st.sampled_from(candidates))
            self._books(request).remove(request)
            self.queue.relegate(request)
            self._books(request).push(request)

    @invariant()
    def the_heads_are_those_of_the_books(self) -> None:
        firsts = [self.books[name].first() for name in CLASSES]
        assert self.queue.heads() == [request for request in firsts if request is not None]

    @invariant()
    def the_first_ones_need_what_some_of_them_need(self) -> None:
        needs = sorted(map(self.queue.num_blocks_to_start, self._waiting()))
        for num_requests in (0, 1, len(needs), len(needs) + 1):
            estimate = self.queue.num_blocks_of_first(num_requests)
            assert sum(needs[:num_requests]) <= estimate <= sum(needs[::-1][:num_requests])
        self.queue.check(self._waiting())


TestWaitingMachine = WaitingMachine.TestCase
TestWaitingMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def order_of_service(requests: list[Request], history: list[Request], cost: int) -> list[str]:
    """Serve `history` first, until nothing waits, then `requests`, which all arrive at once."""
    queue = WaitingQueue(num_blocks_for, ["standard"], is_fair=True)
    served = []
    for batch in (history, requests):
        for request in batch:
            queue.push(request)
        while heads := queue.heads():
            queue.remove(heads[0])
            queue.charge("standard", heads[0].spec.tenant, heads[0].spec.num_prompt_tokens + cost, 1)
            served.append(heads[0].request_id)
    return served


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_order_in_which_requests_are_added_changes_nothing(data: st.DataObject) -> None:
    """Invariant 21, with equal keys, and tenants that come back with more service than the level or less."""
    shapes = data.draw(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 2), st.integers(1, 9)), max_size=12))
    past = data.draw(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 2), st.integers(1, 9)), max_size=6))
    permutation = data.draw(st.permutations(range(len(shapes))))
    cost = data.draw(st.integers(0, 5))

    def made(prefix: str, drawn: list[tuple[str, int, int]]) -> list[Request]:
        return [
            make_request(f"{prefix}{i}", num_tokens, 1, tenant=tenant, arrival_s=arrival)
            for i, (tenant, arrival, num_tokens) in enumerate(drawn)
        ]

    in_order = order_of_service(made("r", shapes), made("p", past), cost)
    requests = made("r", shapes)
    assert order_of_service([requests[i] for i in permutation], made("p", past), cost) == in_order
    assert sorted(in_order) == sorted([f"r{i}" for i in range(len(shapes))] + [f"p{i}" for i in range(len(past))])


def served_in_time(seed: int, num_seats: int, num_steps: int) -> tuple[list[dict[str, int]], int, list[str], list[int]]:
    """Tenants that always have requests waiting; one joins in the middle, after it was idle.

    Returns:
        service of each tenant after every step, the most that one request costs, the tenants, and the step from which
        each has always had requests waiting.
    """
    rng = random.Random(seed)
    queue = WaitingQueue(num_blocks_for, ["standard"], is_fair=True)
    tenants, joins = ["a", "b", "c", "late"], [0, 0, 0, num_steps // 2]
    served: dict[str, int] = dict.fromkeys(tenants, 0)
    history: list[dict[str, int]] = []
    running: list[tuple[str, int]] = []
    largest = {tenant: rng.choice((5, 40)) for tenant in tenants}
    num_made = 0
    for step in range(num_steps):
        for tenant, join in zip(tenants, joins, strict=True):
            for _ in range(num_seats + 1 if step >= join else 0):
                num_made += 1
                queue.push(make_request(f"{num_made}", rng.randint(1, largest[tenant]), 8, tenant=tenant))
        while len(running) < num_seats:
            head = queue.heads()[0]
            queue.remove(head)
            queue.charge("standard", head.spec.tenant, head.spec.num_prompt_tokens, 0)
            served[head.spec.tenant] += head.spec.num_prompt_tokens
            running.append((head.spec.tenant, rng.randint(0, 8)))
        for tenant, num_left in running:
            queue.charge("standard", tenant, 0, min(num_left, 1))
            served[tenant] += WEIGHT_OF_OUTPUT * min(num_left, 1)
        running = [(tenant, num_left - 1) for tenant, num_left in running if num_left > 1]
        history.append(dict(served))
    return history, max(largest.values()) + num_seats * WEIGHT_OF_OUTPUT * 8, tenants, joins


@pytest.mark.parametrize("num_seats", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_service_of_backlogged_tenants_differs_by_little_in_every_window(seed: int, num_seats: int) -> None:
    """VTC, theorem 4.4: by at most twice what the largest prompt and all outputs that run cost."""
    history, bound, tenants, joins = served_in_time(seed, num_seats, 120)
    for (i, one), (j, other) in itertools.combinations(enumerate(tenants), 2):
        first = max(joins[i], joins[j], 1) - 1
        gaps = [after[one] - after[other] for after in history[first:]]
        assert max(gaps) - min(gaps) <= 2 * bound, f"{one} and {other}"
        if joins[i] == joins[j] == 0:  # equal from the start
            assert max(map(abs, gaps)) <= bound, f"{one} and {other}"
    assert all(history[-1][tenant] > history[len(history) // 2][tenant] for tenant in tenants)


class CountingKey(tuple[Any, ...]):
    """An order that counts how often it is compared."""

    __slots__ = ()
    num_compared: ClassVar[list[int]] = [0]

    def __lt__(self, other: object) -> bool:
        self.num_compared[0] += 1
        return tuple.__lt__(self, other)  # type: ignore[operator]

    def __eq__(self, other: object) -> bool:
        self.num_compared[0] += 1
        return tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


@pytest.mark.parametrize("num_tenants", [1, 4096])
def test_finding_a_place_takes_a_logarithm(num_tenants: int) -> None:
    num_requests = 4096
    queue = WaitingQueue(num_blocks_for, ["standard"], is_fair=True)
    requests = []
    for i in range(num_requests):
        request = make_request(f"{i}", 4, 1, arrival_s=i * 7919 % num_requests, tenant=str(i % num_tenants))
        request.order = cast(OrderKey, CountingKey(request.order))
        queue.push(request)
        requests.append(request)
    CountingKey.num_compared[0] = 0
    num_calls = 100
    for request in requests[:: num_requests // num_calls][:num_calls]:
        queue.remove(request)
        queue.push(request)
        queue.charge("standard", request.spec.tenant, 3, 0)
        queue.heads()
    assert 0 < CountingKey.num_compared[0] <= num_calls * 10 * 2 * 13  # a handful of searches, each log2(4096) deep
