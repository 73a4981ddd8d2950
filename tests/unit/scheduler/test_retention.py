"""Which block goes first, how long a rank protects, and what is written first."""

from __future__ import annotations

import random

import pytest

from scheduler.retention import PriorityLru, check_priority
from scheduler.write_queue import MAX_USES, WriteQueue


def name(number: int) -> bytes:
    return number.to_bytes(4, "big")


def test_the_lowest_rank_goes_first_and_in_it_the_longest_unused() -> None:
    order = PriorityLru(3, decay=100)
    for number, rank in enumerate([2, 0, 1, 0, 1, 2]):
        order.add(name(number), rank)
    order.touch(name(1), 0)
    order.check()
    assert [order.take_victim() for _ in range(7)] == [*map(name, [3, 1, 2, 4, 0, 5]), None]


def test_a_use_can_raise_the_rank() -> None:
    order = PriorityLru(2, decay=100)
    for number in range(3):
        order.add(name(number), 0)
    order.touch(name(0), 1)
    assert [order.take_victim() for _ in range(3)] == [name(1), name(2), name(0)]


def test_what_is_in_use_does_not_go() -> None:
    order = PriorityLru(1, decay=1)
    order.add(name(0), 0)
    order.add(name(1), 0)
    order.remove(name(0))
    assert name(0) not in order and len(order) == 1
    assert order.take_victim() == name(1)
    assert order.take_victim() is None


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_protects_for_so_many_evictions_and_no_longer(rank: int) -> None:
    """Fresh blocks of rank 0 come and go; the old one goes when it is as old as its rank allows."""
    order, decay = PriorityLru(3, decay=10), 10
    order.add(name(10**6), rank)
    for number in range(5):
        order.add(name(number), 0)
    for number in range(5, 1000):
        if order.take_victim() == name(10**6):
            break
        order.add(name(number), 0)
    # Those of rank 0 that stand when it goes were used within the last five evictions.
    assert rank * decay <= number - 5 <= rank * decay + 5


def test_one_that_is_used_stays() -> None:
    order = PriorityLru(3, decay=2)
    order.add(name(10**6), 2)
    for number in range(1000):
        order.add(name(number), 0)
        assert order.take_victim() == name(number)
        order.touch(name(10**6), 2)


def test_victims_are_those_that_a_search_finds() -> None:
    source, decay = random.Random(3), 7
    order, blocks, serial, num_evictions = PriorityLru(4, decay), {}, 0, 0
    for _ in range(3000):
        number, rank, serial = source.randrange(30), source.randrange(4), serial + 1
        match source.randrange(4):
            case 0 if number not in blocks:
                order.add(name(number), rank)
                blocks[number] = (num_evictions + rank * decay, rank, serial)
            case 1 if number in blocks:
                order.touch(name(number), rank)
                blocks[number] = (num_evictions + rank * decay, rank, serial)
            case 2 if number in blocks:
                order.remove(name(number))
                del blocks[number]
            case 3 if blocks:
                expected = min(blocks, key=blocks.__getitem__)
                assert order.take_victim() == name(expected)
                del blocks[expected]
                num_evictions += 1
        order.check()
        assert len(order) == len(blocks)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="0 ranks"):
        PriorityLru(0, 1)
    with pytest.raises(ValueError, match="decay of 0"):
        PriorityLru(1, 0)
    order = PriorityLru(1, 1)
    order.add(b"a", 0)
    with pytest.raises(ValueError, match="already"):
        order.add(b"a", 0)
    with pytest.raises(KeyError):
        order.remove(b"b")
    for priority in (-1, 3):
        with pytest.raises(ValueError, match=f"priority is {priority}"):
            check_priority(priority)


def test_writes_go_by_priority_then_reuse_then_age() -> None:
    queue = WriteQueue()
    for number, (priority, num_uses) in enumerate([(1, 0), (0, 9), (2, 0), (1, 1), (2, 1), (1, 0)]):
        queue.put(name(number), priority, num_uses)
    queue.check()
    assert [queue.take() for _ in range(6)] == [*map(name, [4, 2, 3, 0, 5, 1])]
    with pytest.raises(IndexError, match="no block"):
        queue.take()


def test_a_waiting_write_keeps_its_place_unless_its_line_changes() -> None:
    queue = WriteQueue()
    for number in range(3):
        queue.put(name(number), 1, MAX_USES)
    queue.put(name(0), 1, MAX_USES + 5)
    queue.put(name(2), 2, MAX_USES)
    queue.discard(name(7))
    queue.discard(name(1))
    assert len(queue) == 2 and name(1) not in queue
    assert [queue.take(), queue.take()] == [name(2), name(0)]
