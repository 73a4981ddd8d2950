"""Lanes, turns of tenants, parking, and the sums the caps are about."""

from __future__ import annotations

import pytest

from scheduler.request import Request
from scheduler.waiting_queue import WaitingQueue
from tests.scheduler_builders import make_request


def queue(*, is_fair: bool = True) -> WaitingQueue:
    return WaitingQueue(lambda num_tokens: -(-num_tokens // 4), ["standard", "batch"], is_fair=is_fair)


def child(name: str, leader: str) -> Request:
    return make_request(name, 9, 2, leader_id=leader, group_id=leader)


def of_tenant(tenant: str, arrival_s: float, slo_class: str = "standard") -> Request:
    return make_request(f"{tenant}@{arrival_s:g}", 4, 1, tenant=tenant, arrival_s=arrival_s, slo_class=slo_class)


def names(waiting: WaitingQueue) -> list[str]:
    return [request.request_id for request in waiting.heads()]


def preempted(request: Request) -> Request:
    request.num_lives = 1
    return request


def test_the_heads_are_the_smallest_in_order_whatever_came_first() -> None:
    waiting = queue()
    late, early = make_request("late", 4, 1, arrival_s=2.0), make_request("early", 4, 1, arrival_s=1.0)
    batch = make_request("batch", 4, 1, slo_class="batch")
    for request in (batch, late, early):
        waiting.push(request)
    assert waiting.heads() == [early, batch]
    waiting.remove(early)
    assert waiting.heads() == [late, batch]
    waiting.remove(late)
    assert waiting.heads() == [batch]
    waiting.check([batch])


def test_the_tenant_with_the_least_service_is_next() -> None:
    waiting = queue()
    for request in (of_tenant("a", 1), of_tenant("a", 2), of_tenant("b", 3)):
        waiting.push(request)
    assert names(waiting) == ["a@1"]
    waiting.charge("standard", "a", 1, 0)
    assert names(waiting) == ["b@3"]
    waiting.charge("standard", "b", 0, 1)  # output counts twice
    assert names(waiting) == ["a@1"]
    waiting.charge("batch", "a", 100, 100)  # another class is another account
    assert names(waiting) == ["a@1"]


def test_without_fairness_the_order_alone_counts() -> None:
    waiting = queue(is_fair=False)
    for request in (of_tenant("b", 3), of_tenant("a", 1)):
        waiting.push(request)
    waiting.charge("standard", "a", 100, 100)
    assert names(waiting) == ["a@1"]


def test_idleness_earns_no_credit() -> None:
    waiting = queue()
    first = of_tenant("idle", 0)
    waiting.push(first)
    waiting.remove(first)
    waiting.charge("standard", "idle", 10, 0)
    for request in (of_tenant("busy", 1), of_tenant("busy", 2)):
        waiting.push(request)
    waiting.charge("standard", "busy", 1000, 0)
    waiting.push(of_tenant("idle", 3))
    assert names(waiting) == ["busy@1"]  # equal service now: by order
    waiting.charge("standard", "busy", 1, 0)
    assert names(waiting) == ["idle@3"]
    waiting.charge("standard", "idle", 2, 0)
    assert names(waiting) == ["busy@1"]


def test_service_counts_while_nothing_of_a_tenant_waits() -> None:
    """Also for whom nothing ever waited; and the last one's output lifts who comes to an empty lane."""
    waiting = queue()
    waiting.charge("standard", "early", 50, 0)
    alone = of_tenant("alone", 0)
    waiting.push(alone)
    waiting.remove(alone)
    waiting.charge("standard", "alone", 4, 8)  # 20
    for request in (of_tenant("early", 1), of_tenant("new", 2), of_tenant("alone", 3)):
        waiting.push(request)
    assert names(waiting) == ["new@2"]
    waiting.charge("standard", "new", 1, 0)
    assert names(waiting) == ["alone@3"], "the new one was lifted to what the last one has"
    waiting.charge("standard", "alone", 29, 0)
    assert names(waiting) == ["new@2"]
    waiting.charge("standard", "new", 30, 0)
    assert names(waiting) == ["alone@3"]
    waiting.charge("standard", "alone", 2, 0)
    assert names(waiting) == ["early@1"]


def test_the_level_rises_when_those_with_the_least_service_leave() -> None:
    waiting = queue()
    least, guest = of_tenant("least", 1), of_tenant("guest", 2)
    for request in (of_tenant("most", 3), least):
        waiting.push(request)
    waiting.charge("standard", "most", 10, 0)
    waiting.push(guest)
    waiting.remove(guest)
    waiting.remove(least)
    waiting.push(of_tenant("new", 4))
    assert names(waiting) == ["most@3"], "at the same service by order"


def test_a_relegated_request_waits_behind_all_of_its_class() -> None:
    waiting = queue()
    lost, kept, batch = of_tenant("a", 1), of_tenant("b", 2), of_tenant("a", 3, "batch")
    for request in (lost, kept, batch):
        waiting.push(request)
    waiting.relegate(lost)
    waiting.charge("standard", "b", 1000, 0)
    assert lost.is_relegated and waiting.heads() == [kept, batch]
    waiting.remove(kept)
    assert waiting.heads() == [lost, batch]
    waiting.push(late := of_tenant("c", 9))
    assert waiting.heads() == [late, batch]
    waiting.check([lost, batch, late])


def test_a_relegated_tenant_does_not_hold_the_level_back() -> None:
    waiting = queue()
    lost = of_tenant("lost", 0)
    for request in (lost, of_tenant("busy", 1)):
        waiting.push(request)
    waiting.relegate(lost)
    waiting.charge("standard", "busy", 100, 0)
    waiting.push(of_tenant("new", 2))
    assert names(waiting) == ["busy@1"]


def test_a_relegated_request_that_leaves_sets_no_level() -> None:
    waiting = queue()
    lost, busy = of_tenant("lost", 0), of_tenant("busy", 1)
    for request in (lost, busy):
        waiting.push(request)
    waiting.relegate(lost)
    waiting.remove(busy)
    waiting.charge("standard", "busy", 100, 0)
    waiting.remove(lost)
    for request in (of_tenant("new", 3), of_tenant("busy", 2)):
        waiting.push(request)
    assert names(waiting) == ["busy@2"]


def test_who_has_no_turn_cannot_be_relegated() -> None:
    waiting, parked = queue(), child("c", "leader")
    waiting.park(parked, "leader")
    for request in (parked, of_tenant("stranger", 0)):
        with pytest.raises(KeyError):
            waiting.relegate(request)
        assert not request.is_relegated
    waiting.check([parked])


def test_what_ran_before_keeps_its_place_whatever_its_tenant_had() -> None:
    waiting = queue()
    for request in (of_tenant("b", 1), of_tenant("b", 3)):
        waiting.push(request)
    waiting.charge("standard", "a", 1000, 0)
    back = preempted(of_tenant("a", 2))
    waiting.push(back)
    assert names(waiting) == ["b@1"]
    waiting.remove(waiting.heads()[0])
    assert waiting.heads() == [back]
    waiting.remove(back)
    assert names(waiting) == ["b@3"]


def test_what_ran_before_and_is_relegated_is_the_first_of_the_relegated_by_order() -> None:
    waiting = queue()
    lost, back, kept = of_tenant("a", 3), preempted(of_tenant("b", 2)), of_tenant("c", 4)
    for request in (lost, back, kept):
        waiting.push(request)
    for request in (lost, back):
        waiting.relegate(request)
    waiting.charge("standard", "b", 1000, 0)
    assert waiting.heads() == [kept]
    waiting.remove(kept)
    assert waiting.heads() == [back]
    waiting.check([lost, back])


def test_a_parked_choice_has_no_turn_until_its_leader_is_done() -> None:
    waiting, parked = queue(), child("c", "leader")
    waiting.park(parked, "leader")
    assert waiting.heads() == [] and waiting.num_requests == 1
    waiting.unpark("another")
    assert waiting.heads() == []
    waiting.unpark("leader")
    assert waiting.heads() == [parked]
    waiting.check([parked])


def test_a_parked_choice_can_be_removed() -> None:
    waiting, first, second = queue(), child("c", "leader"), child("d", "leader")
    waiting.park(first, "leader")
    waiting.park(second, "leader")
    waiting.remove(first)
    waiting.check([second])
    waiting.remove(second)
    waiting.check([])


def test_the_sums_count_a_prompt_once() -> None:
    waiting = queue()
    leader, other = make_request("leader", 9, 2), make_request("b", 5, 3, slo_class="batch")
    waiting.push(leader)
    waiting.push(other)
    waiting.park(child("c", "leader"), "leader")
    assert waiting.num_tokens_by_class == {"standard": 9 + 1, "batch": 5}
    assert waiting.num_requests_by_class == {"standard": 2, "batch": 1}
    assert waiting.num_blocks == 3 + 2 + 1
    assert [waiting.num_blocks_of_first(n) for n in range(5)] == [0, 3, 5, 6, 6]
    waiting.remove(leader)
    assert waiting.num_tokens_by_class["standard"] == 1


def test_what_does_not_wait_cannot_be_removed() -> None:
    waiting = queue()
    for stranger in (make_request("a", 4, 1), child("c", "leader"), preempted(of_tenant("a", 0))):
        with pytest.raises(KeyError):
            waiting.remove(stranger)
