"""Which slice goes next."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.link import TransferHandle
from offload.link_queue import LinkQueue
from offload.transfer import Direction, Transfer, TransferClass

WEIGHTS, KV_LOAD, KV_STORE, BACKGROUND = TransferClass
SLICE_BYTES = 100
BYTES_PER_S = 1000.0


def handle_of(transfer_class: TransferClass, num_bytes: int, deadline_s: float) -> TransferHandle:
    buffer = torch.empty(2 * num_bytes, dtype=torch.uint8)
    transfer = Transfer(Direction.H2D, transfer_class, buffer[:num_bytes], buffer[num_bytes:], deadline_s)
    return TransferHandle(transfer, lambda handle, timeout_s: None)


def push(queue: LinkQueue, transfer_class: TransferClass, num_bytes: int, deadline_s: float) -> TransferHandle:
    handle = handle_of(transfer_class, num_bytes, deadline_s)
    queue.push(handle, BYTES_PER_S, now_s=0.0)
    queue.check()
    return handle


def take_all(queue: LinkQueue, kv_share: float = 0.0) -> list[TransferHandle]:
    """Whose slices come, in order; neighbours of one transfer once."""
    order = []
    while (taken := queue.take(SLICE_BYTES, kv_share)) is not None:
        queue.check()
        assert 0 < taken.num_bytes <= SLICE_BYTES
        order.append(taken.queued.handle)
    return [handle for handle, _ in itertools.groupby(order)]


def test_transfer_that_must_start_first_goes_first() -> None:
    queue = LinkQueue()
    small = push(queue, WEIGHTS, 100, 2.0)  # must start at 1.9
    large = push(queue, WEIGHTS, 1000, 2.5)  # must start at 1.5
    anytime = push(queue, BACKGROUND, 100, float("inf"))
    assert take_all(queue) == [large, small, anytime]
    assert queue.is_empty and set(queue.queued_bytes.values()) == {0}


def test_weights_of_this_step_break_ties_then_the_older() -> None:
    queue = LinkQueue()
    handles = {name: push(queue, name, 100, 1.0) for name in reversed(TransferClass)}
    second = push(queue, WEIGHTS, 100, 1.0)
    expected = [handles[WEIGHTS], second, handles[KV_LOAD], handles[KV_STORE], handles[BACKGROUND]]
    assert take_all(queue) == expected


def test_equally_urgent_transfers_do_not_take_turns() -> None:
    queue = LinkQueue()
    first, second = push(queue, WEIGHTS, 1000, 5.0), push(queue, WEIGHTS, 1000, 5.0)
    assert take_all(queue) == [first, second], "taking turns would end both late"


def test_urgent_transfer_waits_for_one_slice_only() -> None:
    queue = LinkQueue()
    large = push(queue, WEIGHTS, 1000, 5.0)
    taken = queue.take(SLICE_BYTES, 0.0)
    assert taken is not None and taken.queued.handle is large and (taken.start, taken.end) == (0, SLICE_BYTES)
    urgent = push(queue, KV_LOAD, 50, 0.1)
    assert take_all(queue) == [urgent, large]


def test_failed_transfer_gives_no_more_slices() -> None:
    queue = LinkQueue()
    failed, other = push(queue, WEIGHTS, 1000, 1.0), push(queue, WEIGHTS, 100, 2.0)
    taken = queue.take(SLICE_BYTES, 0.0)
    assert taken is not None and taken.queued.handle is failed
    taken.queued.error = RuntimeError()
    queue.remove(taken.queued)
    queue.remove(taken.queued)
    queue.check()
    assert queue.queued_bytes[WEIGHTS] == 100
    assert take_all(queue) == [other]


def test_order_stands_after_a_failure_in_the_middle() -> None:
    queue = LinkQueue()
    deadlines = [1.0, 5.0, 2.0, 9.0, 6.0, 3.0, 4.0]
    pushed = {}
    for deadline_s in deadlines:
        handle = handle_of(WEIGHTS, 100, deadline_s)
        pushed[deadline_s] = queue.push(handle, BYTES_PER_S, now_s=0.0)
    queue.remove(pushed[1.0])
    queue.remove(pushed[5.0])
    queue.check()
    assert [handle.transfer.deadline_s for handle in take_all(queue)] == [2.0, 3.0, 4.0, 6.0, 9.0]


@pytest.mark.parametrize("kv_share", [0.15, 0.3, 0.5])
def test_weights_cannot_starve_kv(kv_share: float) -> None:
    queue = LinkQueue()
    for _ in range(20):
        push(queue, WEIGHTS, 1000, 0.0)
        push(queue, KV_STORE, 1000, 1e6)
    carried = dict.fromkeys(TransferClass, 0)
    for _ in range(150):
        taken = queue.take(SLICE_BYTES, kv_share)
        assert taken is not None
        carried[taken.queued.handle.transfer.transfer_class] += taken.num_bytes
    assert carried[KV_STORE] == pytest.approx(kv_share * 150 * SLICE_BYTES, abs=SLICE_BYTES)


def test_urgent_kv_of_before_does_not_cost_kv_its_share_now() -> None:
    queue = LinkQueue()
    push(queue, KV_LOAD, 5000, 0.0)
    weights = push(queue, WEIGHTS, 5000, 100.0)
    store = push(queue, KV_STORE, 100, 1e6)
    handles = [taken.queued.handle for _ in range(57) if (taken := queue.take(SLICE_BYTES, 0.2)) is not None]
    assert handles.count(weights) == 6 and handles[-1] is store, "a slice ahead of its share, not fifty"


def test_share_that_kv_does_not_ask_for_is_not_kept_for_it() -> None:
    queue = LinkQueue()
    weights = push(queue, WEIGHTS, 5000, 0.0)
    assert take_all(queue, 0.5) == [weights]
    weights, store = push(queue, WEIGHTS, 300, 0.0), push(queue, KV_STORE, 100, 1e6)
    assert take_all(queue, 0.5) == [weights, store, weights], "nor saved up: weights first, then KV's turn"


def test_background_work_costs_kv_nothing_of_its_share_of_later() -> None:
    queue = LinkQueue()
    push(queue, BACKGROUND, 100, float("inf"))
    push(queue, KV_LOAD, 5000, 1e6)
    for _ in range(20):
        assert queue.take(SLICE_BYTES, 0.5)
    weights, load = push(queue, WEIGHTS, 5000, 0.0), next(iter(queue)).handle
    handles = [taken.queued.handle for _ in range(4) if (taken := queue.take(SLICE_BYTES, 0.5)) is not None]
    assert handles == [weights, load, weights, load], "KV was alone until now: its turn is the second"


def test_background_work_with_a_deadline_waits_as_long_as_that_lets_it() -> None:
    queue = LinkQueue()
    back = push(queue, BACKGROUND, 1000, 5.0)  # a layer that returns to the device must start at 4
    weights = [push(queue, WEIGHTS, 100, deadline_s) for deadline_s in (1.0, 4.0, 4.2, 9.0)]
    assert take_all(queue) == [*weights[:2], back, *weights[2:]]


Step = tuple[TransferClass, int, float] | int
steps_of_three = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(TransferClass),
            st.integers(1, 700),
            st.sampled_from([0.0, 1.0, 2.0, 1e9, float("inf")]),
        ),
        st.integers(1, 20),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps_of_three, st.sampled_from([0.0, 0.15, 0.5]))
def test_every_byte_comes_once_in_order_and_kv_gets_its_share(steps: list[Step], kv_share: float) -> None:
    queue = LinkQueue()
    taken_bytes: dict[TransferHandle, int] = {}
    contended: list[tuple[bool, bool, int]] = []  # while KV and others wait: is it KV's, is KV less urgent, bytes
    for step in steps:
        if isinstance(step, tuple):
            taken_bytes[push(queue, *step)] = 0
            continue
        for _ in range(step):
            waiting = [handle for handle, num_taken in taken_bytes.items() if num_taken < handle.transfer.num_bytes]
            taken = queue.take(SLICE_BYTES, kv_share)
            queue.check()
            if taken is None:
                assert not waiting
                break
            handle = taken.queued.handle
            assert taken.start == taken_bytes[handle], "slices of a transfer come in order, without gaps"
            taken_bytes[handle] = taken.end
            kv = [other for other in waiting if is_kv(other)]
            others = [other for other in waiting if not is_kv(other) and not is_idle_work(other)]
            if is_idle_work(handle):
                assert not kv and not others, "background work started while somebody waited"
            else:
                assert latest_start(handle) == min(map(latest_start, kv if is_kv(handle) else others))
            if kv and others:
                is_less_urgent = min(map(latest_start, others)) < min(map(latest_start, kv))
                contended.append((is_kv(handle), is_less_urgent, taken.num_bytes))
                assert is_kv(handle) or is_less_urgent, "more urgent KV is not held up"
    _assert_share(contended, kv_share)
    assert sum(queue.queued_bytes.values()) == sum(
        handle.transfer.num_bytes - num_taken for handle, num_taken in taken_bytes.items()
    )


def is_kv(handle: TransferHandle) -> bool:
    return handle.transfer.transfer_class in (KV_LOAD, KV_STORE)


def is_idle_work(handle: TransferHandle) -> bool:
    return handle.transfer.transfer_class is BACKGROUND and handle.transfer.deadline_s == float("inf")


def latest_start(handle: TransferHandle) -> tuple[float, int]:
    """Of equally late ones the class named first."""
    transfer = handle.transfer
    start_s = transfer.deadline_s - transfer.num_bytes / BYTES_PER_S
    return start_s, list(TransferClass).index(transfer.transfer_class)


def _assert_share(contended: list[tuple[bool, bool, int]], kv_share: float) -> None:
    """In every stretch of contention KV has its share, but for the slice before it and that within.

    And less urgent KV has no more: beyond its share by the slice that ends its turn, and what is saved up for it.
    """
    balance = highest = 0.0  # bytes of KV beyond its share, and the most there was of them
    out_of_turn = lowest = 0.0  # the same of KV that others are more urgent than, and the least there was
    for is_of_kv, is_less_urgent, num_bytes in contended:
        change = (1 - kv_share) * num_bytes if is_of_kv else -kv_share * num_bytes
        balance += change
        highest = max(highest, balance)
        assert balance >= highest - (1 + kv_share) * SLICE_BYTES - 1e-6, contended
        if is_less_urgent:
            out_of_turn += change
        lowest = min(lowest, out_of_turn)
        assert out_of_turn <= lowest + (2 - kv_share) * SLICE_BYTES + 1e-6, contended
