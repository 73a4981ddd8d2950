"""What surrounds the calls of CUDA, with a device that is none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from offload.block_transfer import BlockTransfer
from offload.cuda_link import CudaLink
from offload.link import LinkError
from offload.link_book import MIN_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass
from tests.fake_cuda import FakeCuda, FakeEvent, FakeStream

CPU = torch.device("cpu")
WAIT_S = 30.0


class Rig:
    """A link on a fake device; memory is pinned unless `pinned` says no. Transfers are of patterns."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.pinned = True
        self.num_bounces = 0
        self.copy_error: Exception | None = None
        self.copy_error_after: int | None = None  # that many copies, the next one fails
        self.link = CudaLink(
            LinkConfig(1e9, 1e9),
            CPU,
            cuda=self.cuda,
            copy=self._copy,
            is_pinned=lambda _: self.pinned,
            allocate=self._allocate,
        )

    def transfer(self, num_slices: float, direction: Direction = Direction.H2D, after: FakeEvent | None = None):
        num_bytes = int(num_slices * MIN_SLICE_BYTES)
        source = torch.randint(1, 256, (num_bytes,), dtype=torch.uint8)
        return Transfer(direction, TransferClass.KV_LOAD, source, torch.zeros_like(source), float("inf"), after)

    def event(self) -> FakeEvent:
        """One that has not happened: it is behind work of a stream that nobody runs."""
        event = self.cuda.Event(enable_timing=True, blocking=True)
        event.is_recorded = True
        return event

    def _copy(self, target: Tensor, source: Tensor) -> None:
        if self.copy_error_after == 0:
            self.copy_error, self.copy_error_after = RuntimeError("second slice"), None
        elif self.copy_error_after is not None:
            self.copy_error_after -= 1
        if self.copy_error is not None:
            raise self.copy_error
        self.cuda.copy(target, source)

    def _allocate(self, num_bytes: int) -> Tensor:
        self.num_bounces += 1
        return torch.zeros(num_bytes, dtype=torch.uint8)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.cuda.let_run()
    rig.link.check()
    rig.link.close()


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("num_slices", [0, 0.01, 1, 5.5])
def test_bytes_arrive_pinned_or_not(rig: Rig, direction: Direction, pinned: bool, num_slices: float) -> None:
    rig.pinned = pinned
    transfers = [rig.transfer(num_slices, direction) for _ in range(3)]
    for handle in [rig.link.submit(transfer) for transfer in transfers]:
        handle.wait(WAIT_S)
    assert all(torch.equal(transfer.target, transfer.source) for transfer in transfers)
    assert rig.num_bounces <= (0 if pinned else 2)
    rig.link.drain()
    assert rig.link.snapshot().of(direction).totals[TransferClass.KV_LOAD].num_bytes == 3 * transfers[0].num_bytes
    assert rig.cuda.devices_set == [("headrace-link", CPU)], "the thread chooses its device once"


def test_bandwidth_is_that_between_the_events_of_slices(rig: Rig) -> None:
    rig.cuda.bytes_per_s = 5e6
    rig.link.submit(rig.transfer(9)).wait(WAIT_S)
    rig.link.drain()
    status = rig.link.snapshot().h2d
    assert status.p50_bytes_per_s == status.p5_bytes_per_s == pytest.approx(5e6)
    assert status.totals[TransferClass.KV_LOAD].busy_s == pytest.approx(9 * MIN_SLICE_BYTES / 5e6)


def test_transfer_waits_for_its_event_and_holds_up_no_other(rig: Rig) -> None:
    event = rig.event()
    gated = rig.link.submit(rig.transfer(2, after=event))
    rig.link.submit(rig.transfer(2)).wait(WAIT_S)
    assert not gated.is_done and not gated.transfer.target.any()
    event.done_s = 1.0
    gated.wait(WAIT_S)
    assert torch.equal(gated.transfer.target, gated.transfer.source)
    rig.link.drain()


def test_event_that_reports_an_error_fails_the_transfer_it_holds(rig: Rig) -> None:
    event = rig.event()
    handle = rig.link.submit(rig.transfer(1, after=event))
    event.error = RuntimeError("illegal address")
    event.done_s = 1.0
    with pytest.raises(LinkError, match="illegal address"):
        handle.wait(WAIT_S)
    rig.link.drain()
    assert rig.link.snapshot().h2d.totals[TransferClass.KV_LOAD].num_failed == 1


def test_stream_can_wait_for_a_transfer_that_the_host_has_not_seen_end(rig: Rig) -> None:
    rig.cuda.is_held = True
    handle = rig.link.submit(rig.transfer(1.5))
    stream = FakeStream(rig.cuda)
    handle.order(stream, WAIT_S)
    assert not handle.is_done and len(stream.waited_for) == 1 and not stream.waited_for[0].query()
    rig.cuda.let_run()
    assert stream.waited_for[0].query() and torch.equal(handle.transfer.target, handle.transfer.source)
    handle.wait(WAIT_S)
    handle.order(stream, WAIT_S)
    assert len(stream.waited_for) == 1, "what is done needs no event"


def test_stream_waits_for_the_host_where_the_host_writes_the_last_bytes(rig: Rig) -> None:
    rig.pinned = False
    handle = rig.link.submit(rig.transfer(1.5, Direction.D2H))
    stream = FakeStream(rig.cuda)
    handle.order(stream, WAIT_S)
    assert handle.is_done and not stream.waited_for


def test_slices_are_given_two_ahead_so_that_urgent_ones_come_third(rig: Rig) -> None:
    rig.cuda.is_held = True
    order: list[str] = []
    big = rig.link.submit(rig.transfer(6), lambda _: order.append("big"))
    while len(rig.cuda.streams[0].work) < 6:  # two slices between two events each
        with rig.cuda.changed:
            rig.cuda.changed.wait(0.1)
    urgent = Transfer(Direction.H2D, TransferClass.KV_LOAD, torch.ones(9).byte(), torch.zeros(9).byte(), 0.0)
    small = rig.link.submit(urgent, lambda _: order.append("urgent"))
    assert len(rig.cuda.streams[0].work) == 6
    rig.cuda.let_run()
    small.wait(WAIT_S)
    big.wait(WAIT_S)
    rig.link.drain()
    assert order == ["urgent", "big"]


def test_copy_that_raises_fails_its_transfer_and_the_link_lives_on(rig: Rig) -> None:
    rig.copy_error = RuntimeError("no memory")
    with pytest.raises(LinkError, match="no memory"):
        rig.link.submit(rig.transfer(3)).wait(WAIT_S)
    rig.copy_error = None
    rig.link.submit(rig.transfer(3)).wait(WAIT_S)


def test_failed_transfer_is_not_done_while_a_slice_of_it_is_on_its_way(rig: Rig) -> None:
    rig.cuda.is_held = True
    rig.copy_error_after = 1
    handle = rig.link.submit(rig.transfer(4))
    with rig.cuda.changed:
        while rig.copy_error is None:
            rig.cuda.changed.wait(0.01)
    assert not handle.is_done and not handle.transfer.target.any()
    rig.cuda.let_run()
    with pytest.raises(LinkError, match="second slice"):
        handle.wait(WAIT_S)
    assert handle.transfer.target[:MIN_SLICE_BYTES].all(), "its first slice ended before it did"
    rig.copy_error = None


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("pinned", [True, False])
def test_pieces_before_one_that_raises_have_arrived_when_their_transfer_fails(
    rig: Rig, direction: Direction, pinned: bool
) -> None:
    rig.pinned = pinned
    rig.cuda.is_held = True
    rig.copy_error_after = 2
    source, target = torch.randint(1, 256, (4, 500), dtype=torch.uint8), torch.zeros(4, 500, dtype=torch.uint8)
    ids = (0, 1, 2, 3)
    blocks = BlockTransfer(direction, TransferClass.KV_LOAD, source, ids, target, ids[::-1], 0, 500, float("inf"))
    at_its_end: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    handle = rig.link.submit(blocks, lambda _: at_its_end.put(target.clone()))
    with rig.cuda.changed:
        while rig.copy_error is None:
            rig.cuda.changed.wait(0.01)
    assert not handle.is_done and not target.any(), "the stream still writes into two of its blocks"
    rig.copy_error = None
    other = rig.link.submit(rig.transfer(1, direction))
    rig.cuda.let_run()
    with pytest.raises(LinkError, match="second slice"):
        handle.wait(WAIT_S)
    assert torch.equal(at_its_end.get(timeout=WAIT_S), target) and not target[:2].any()
    if pinned or direction is Direction.H2D:
        assert torch.equal(target[2:], source[:2].flip(0))
    other.wait(WAIT_S)
    assert torch.equal(other.transfer.target, other.transfer.source)
    target.fill_(7)
    rig.link.drain()
    assert (target == 7).all(), "nobody writes into what has been given back"


def test_first_of_two_errors_is_the_one_that_is_told(rig: Rig) -> None:
    rig.cuda.is_held = True
    rig.copy_error_after = 1
    rig.cuda.next_error = RuntimeError("first slice")
    handle = rig.link.submit(rig.transfer(4))
    with rig.cuda.changed:
        while rig.copy_error is None:
            rig.cuda.changed.wait(0.01)
    rig.cuda.let_run()
    with pytest.raises(LinkError, match="first slice"):
        handle.wait(WAIT_S)
    rig.copy_error = None


def test_error_that_appears_only_at_the_event_fails_the_transfer(rig: Rig) -> None:
    rig.cuda.is_held = True
    handle = rig.link.submit(rig.transfer(2))
    rig.cuda.next_error = RuntimeError("bus error")
    rig.cuda.let_run()
    with pytest.raises(LinkError, match="bus error"):
        handle.wait(WAIT_S)
    rig.link.submit(rig.transfer(2)).wait(WAIT_S)


def test_device_that_cannot_be_set_kills_the_link_and_nobody_waits() -> None:
    cuda = FakeCuda()
    cuda.set_device = lambda device: (_ for _ in ()).throw(RuntimeError("no such device"))
    link = CudaLink(LinkConfig(1e9, 1e9), CPU, cuda=cuda, copy=cuda.copy, is_pinned=lambda _: True)
    ended = threading.Event()
    transfer = Transfer(Direction.H2D, TransferClass.WEIGHTS, torch.ones(9).byte(), torch.zeros(9).byte(), 0.0)
    with pytest.raises(LinkError, match="no such device"):
        link.submit(transfer, lambda _: ended.set()).wait(WAIT_S)
    with pytest.raises(LinkError, match="no such device"):
        link.drain()
    link.close()


def test_close_fails_what_waits_for_an_event(rig: Rig) -> None:
    handle = rig.link.submit(rig.transfer(1, after=rig.event()))
    rig.link.close()
    with pytest.raises(LinkError, match="closed before"):
        handle.wait(WAIT_S)
    with pytest.raises(LinkError, match="is closed"):
        rig.link.submit(rig.transfer(1))


def test_memory_of_another_device_is_refused() -> None:
    cuda = FakeCuda()
    link = CudaLink(LinkConfig(1e9, 1e9), torch.device("meta"), cuda=cuda, copy=cuda.copy)
    transfer = Transfer(Direction.H2D, TransferClass.WEIGHTS, torch.ones(9).byte(), torch.zeros(9).byte(), 0.0)
    with pytest.raises(ValueError, match="from cpu to cpu over the link of meta; it copies from cpu to meta"):
        link.submit(transfer)
    link.close()
