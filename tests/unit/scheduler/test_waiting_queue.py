"""Order, parking, and the sums the caps are about."""

import pytest

from scheduler.request import Request
from scheduler.waiting_queue import WaitingQueue
from tests.scheduler_builders import make_request


def queue() -> WaitingQueue:
    return WaitingQueue(lambda num_tokens: -(-num_tokens // 4), ["standard", "batch"])


def child(name: str, leader: str) -> Request:
    return make_request(name, 9, 2, leader_id=leader, group_id=leader)


def test_the_head_is_the_smallest_in_order_whatever_came_first() -> None:
    waiting = queue()
    late, early = make_request("late", 4, 1, arrival_s=2.0), make_request("early", 4, 1, arrival_s=1.0)
    waiting.push(late)
    waiting.push(early)
    assert waiting.head() is early
    waiting.remove(early)
    assert waiting.head() is late
    waiting.check([late])


def test_a_parked_choice_has_no_turn_until_its_leader_is_done() -> None:
    waiting, parked = queue(), child("c", "leader")
    waiting.park(parked)
    assert waiting.head() is None and waiting.num_requests == 1
    waiting.unpark("another")
    assert waiting.head() is None
    waiting.unpark("leader")
    assert waiting.head() is parked
    waiting.check([parked])


def test_a_parked_choice_can_be_removed() -> None:
    waiting, first, second = queue(), child("c", "leader"), child("d", "leader")
    waiting.park(first)
    waiting.park(second)
    waiting.remove(first)
    waiting.check([second])
    waiting.remove(second)
    waiting.check([])


def test_the_sums_count_a_prompt_once() -> None:
    waiting = queue()
    leader, other = make_request("leader", 9, 2), make_request("b", 5, 3, slo_class="batch")
    waiting.push(leader)
    waiting.push(other)
    waiting.park(child("c", "leader"))
    assert waiting.num_tokens_by_class == {"standard": 9 + 1, "batch": 5}
    assert waiting.num_requests_by_class == {"standard": 2, "batch": 1}
    assert waiting.num_blocks == 3 + 2 + 1
    waiting.remove(leader)
    assert waiting.num_tokens_by_class["standard"] == 1


def test_what_does_not_wait_cannot_be_removed() -> None:
    waiting = queue()
    for stranger in (make_request("a", 4, 1), child("c", "leader")):
        with pytest.raises(KeyError):
            waiting.remove(stranger)
