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


Step = tuple[TransferClass, int, float] | int


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(TransferClass), st.integers(1, 700), st.sampled_from([0.0, 1.0, 2.0, 1e9])),
            st.integers(1, 20),
        ),
        max_size=60,
    ),
    st.sampled_from([0.0, 0.15, 0.5]),
)
def test_every_byte_comes_once_in_order_and_kv_gets_its_share(steps: list[Step], kv_share: float) -> None:
    queue = LinkQueue()
    taken_bytes: dict[TransferHandle, int] = {}
    contended: list[tuple[bool, int]] = []  # while KV and others wait: whether a slice was KV's, and its bytes
    for step in steps:
        if isinstance(step, tuple):
            taken_bytes[push(queue, *step)] = 0
            continue
        for _ in range(step):
            waiting = [queued.handle.transfer.transfer_class.is_kv for queued in queue]
            taken = queue.take(SLICE_BYTES, kv_share)
            queue.check()
            if taken is None:
                assert not waiting
                break
            handle = taken.queued.handle
            assert taken.start == taken_bytes[handle], "slices of a transfer come in order, without gaps"
            taken_bytes[handle] = taken.end
            if any(waiting) and not all(waiting):
                contended.append((handle.transfer.transfer_class.is_kv, taken.num_bytes))
    _assert_share(contended, kv_share)
    assert sum(queue.queued_bytes.values()) == sum(
        handle.transfer.num_bytes - num_taken for handle, num_taken in taken_bytes.items()
    )


def _assert_share(contended: list[tuple[bool, int]], kv_share: float) -> None:
    """In every stretch of contention KV has its share, but for the slice before it and that within."""
    balance = highest = 0.0  # bytes of KV beyond its share, and the most there was of them
    for is_kv, num_bytes in contended:
        balance += (1 - kv_share) * num_bytes if is_kv else -kv_share * num_bytes
        highest = max(highest, balance)
        assert balance >= highest - (1 + kv_share) * SLICE_BYTES - 1e-6, contended
