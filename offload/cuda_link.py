"""The link of a CUDA device: copy streams, an event for each slice, pinned memory on the host's side."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from offload.link import TransferHandle
from offload.link_book import MAX_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.link_queue import Slice
from offload.threaded_link import ALIVE_S, COPY_ERRORS, ThreadedLink
from offload.transfer import Direction, LinkTransfer

DEPTH = 2
"""Slices given to a stream ahead of the one that is copied: the copy engine never waits for Python."""
GATE_POLL_S = 1e-4
"""How often the events of transfers that may not start yet are looked at, while there is nothing else to do."""


def copy_async(target: Tensor, source: Tensor) -> None:
    """On the current stream; `torch.cuda` makes it wait for nothing if the host's side is pinned."""
    target.copy_(source, non_blocking=True)


def allocate_pinned(num_bytes: int) -> Tensor:
    """[num_bytes] uint8 that the copy engine can reach."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class CudaTransferHandle(TransferHandle):
    """A transfer that a stream can wait for before the host knows that it is done."""

    def __init__(
        self,
        transfer: LinkTransfer,
        await_done: Callable[[TransferHandle, float | None], None],
        on_done: Callable[[TransferHandle], None] | None,
        bounce: bool,
    ) -> None:
        super().__init__(transfer, await_done, on_done)
        self.bounces = bounce  # the host's side is not pinned
        self._given = threading.Event()  # the last slice is on its stream, or the transfer has ended
        self._last_event: Any = None

    def order(self, stream: Any = None, timeout_s: float | None = None) -> None:
        """Block until the last slice is on the copy stream, and let `stream` wait for its end."""
        is_stored_by_host = self.bounces and self.transfer.direction is Direction.D2H
        if stream is None or is_stored_by_host or not self._given.wait(timeout_s) or self.is_done:
            self.wait(timeout_s)  # also the way to hear of a failure
            return
        stream.wait_event(self._last_event)

    def give(self, last_event: Any) -> None:
        """For the link: nothing of it waits for its turn any more."""
        self._last_event = last_event
        self._given.set()

    def finish(self, now_s: float, error: BaseException | None = None) -> None:
        super().finish(now_s, error)
        self._given.set()


def _parts(bounce: Tensor, pieces: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Tensor]:
    """Of the buffer, one behind the other, for each piece as much as it needs."""
    return torch.split(bounce, [target.numel() for target, _ in pieces])


def _move(target: Tensor, source: Tensor) -> None:
    """Between two places in main memory."""
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())


def _through(
    bounce: Tensor, pieces: Sequence[tuple[Tensor, Tensor]], direction: Direction
) -> Sequence[tuple[Tensor, Tensor]]:
    """The copies that the stream makes instead of `pieces`; what goes to the device is in the buffer by then."""
    parts = _parts(bounce, pieces)
    if direction is Direction.D2H:
        return [(part, source) for (_, source), part in zip(pieces, parts, strict=True)]
    for (_, source), part in zip(pieces, parts, strict=True):
        _move(part, source)
    return [(target, part) for (target, _), part in zip(pieces, parts, strict=True)]


@dataclasses.dataclass(slots=True)
class _Flight:
    """A slice on its stream, between two events, by way of `bounce` where the host's side is not pinned."""

    taken: Slice
    begin: Any
    end: Any
    bounce: Tensor | None
    is_coupled: bool
    error: BaseException | None = None
    is_given: bool = False  # its end is recorded, and must be waited for


class CudaLink(ThreadedLink):
    """Copies between host memory and one CUDA device, on a stream for each direction.

    Slices are given to the stream two ahead, so that order can still change behind them. A transfer whose `after` has
    not happened waits outside of the queue, where it holds up no other; a stream never waits. The time of a slice is
    that between the events around it. Host memory should be pinned; what is not goes through two pinned buffers per
    direction, at the price of a copy by the thread. A failed copy fails its transfer, whether it raises at once or
    only when its event is looked at.
    """

    def __init__(
        self,
        config: LinkConfig,
        device: torch.device,
        *,
        cuda: Any = torch.cuda,
        copy: Callable[[Tensor, Tensor], None] = copy_async,
        is_pinned: Callable[[Tensor], bool] = Tensor.is_pinned,
        allocate: Callable[[int], Tensor] = allocate_pinned,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the link. What touches the device can be replaced, to test the rest without one."""
        super().__init__(config, clock, lambda: cuda.set_device(device))
        self._device = device
        self._cuda = cuda
        self._copy = copy
        self._is_pinned = is_pinned
        self._allocate = allocate
        self._streams = {direction: cuda.Stream(device=device) for direction in Direction}
        self._flights: dict[Direction, deque[_Flight]] = {direction: deque() for direction in Direction}
        self._bounces: dict[Direction, list[Tensor]] = {direction: [] for direction in Direction}
        self._gated: list[TransferHandle] = []
        self._start()

    def _check_transfer(self, transfer: LinkTransfer) -> None:
        source, target = transfer.source.device.type, transfer.target.device.type
        ends = ("cpu", self._device.type) if transfer.direction is Direction.H2D else (self._device.type, "cpu")
        if (source, target) != ends:
            raise ValueError(
                f"a {transfer.direction} copy from {source} to {target} over the link of {self._device}; "
                f"it copies from {ends[0]} to {ends[1]}"
            )

    def _make_handle(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None) -> TransferHandle:
        host_side = transfer.source if transfer.direction is Direction.H2D else transfer.target
        return CudaTransferHandle(transfer, self._await_done, on_done, not self._is_pinned(host_side))

    def _enqueue(self, handle: TransferHandle) -> None:
        if handle.transfer.after is not None:
            self._gated.append(handle)
        else:
            self._book.submit(handle, self.now_s())
        self._work.notify()

    def _num_open(self) -> int:
        return self._book.num_open + len(self._gated)

    def _check_flights(self) -> None:
        for direction, flights in self._flights.items():
            assert len(flights) <= DEPTH
            assert all(flight.taken.queued.handle.transfer.direction is direction for flight in flights)
            bounces = [flight.bounce.data_ptr() for flight in flights if flight.bounce is not None]
            assert len(set(bounces)) == len(bounces), "two slices under way share a bounce buffer"
        assert not any(handle.is_done for handle in self._gated)

    def _fail_queued(self, error: BaseException) -> list[TransferHandle]:
        return super()._fail_queued(error) + self._fail_gated(error)

    def _fail_all(self, error: BaseException) -> list[TransferHandle]:
        for flights in self._flights.values():
            flights.clear()
        return super()._fail_all(error) + self._fail_gated(error)

    def _fail_gated(self, error: BaseException) -> list[TransferHandle]:
        gated, self._gated = self._gated, []
        for handle in gated:
            self._book.end(handle, self.now_s(), error)
        return gated

    def _turn(self) -> bool:
        with self._lock:
            self._wait_for_work()
            ended = self._open_gates()
            taken = self._take_slices()
            if self._is_closed and not any(self._flights.values()):
                return False
        self._notify(ended)
        for flight in taken:
            self._give_to_stream(flight)
        oldest = self._next_to_end()
        if oldest is None:
            return True
        if oldest.is_given:
            self._await_slice(oldest)
        with self._lock:
            handle = self._end_slice(oldest)
            if not self._num_open():
                self._idle.notify_all()
        if handle is not None:
            handle.notify()
        return True

    def _wait_for_work(self) -> None:
        if any(self._flights.values()) or self._is_closed:
            return
        while not self._is_closed and not any(self._book.has_queued(direction) for direction in Direction):
            if self._gated:
                self._work.wait(GATE_POLL_S)
                return
            self._work.wait(ALIVE_S)

    def _open_gates(self) -> list[TransferHandle]:
        """Queue the transfers whose time has come; those that have ended at once, by an error or for want of bytes."""
        ended, still_gated = [], []
        for handle in self._gated:
            after = handle.transfer.after
            assert after is not None
            try:
                is_open = after.query()
            except COPY_ERRORS as error:
                self._book.end(handle, self.now_s(), error)
                ended.append(handle)
                continue
            if not is_open:
                still_gated.append(handle)
                continue
            self._book.submit(handle, self.now_s())
            if handle.is_done:
                ended.append(handle)
        self._gated = still_gated
        return ended

    def _take_slices(self) -> list[_Flight]:
        started = []
        for direction, flights in self._flights.items():
            while len(flights) < DEPTH and (taken := self._book.take(direction, self.now_s())) is not None:
                flight = _Flight(taken, None, None, None, bool(self._flights[direction.opposite]))
                flights.append(flight)
                started.append(flight)
        return started

    def _give_to_stream(self, flight: _Flight) -> None:
        taken = flight.taken
        handle, transfer = taken.queued.handle, taken.queued.handle.transfer
        stream = self._streams[transfer.direction]
        assert isinstance(handle, CudaTransferHandle)
        try:
            pieces = transfer.pieces(taken.start, taken.end)
            if handle.bounces:
                flight.bounce = self._free_bounce(transfer.direction)[: taken.num_bytes]
                pieces = _through(flight.bounce, pieces, transfer.direction)
            flight.begin = self._cuda.Event(enable_timing=True, blocking=True)
            flight.end = self._cuda.Event(enable_timing=True, blocking=True)
            with self._cuda.stream(stream):
                flight.begin.record(stream)
                try:
                    for target, source in pieces:
                        self._copy(target, source)
                finally:  # pieces before one that raises are on their way
                    flight.end.record(stream)
                    flight.is_given = True
        except COPY_ERRORS as error:
            flight.error = error
            return
        if taken.end == transfer.num_bytes:
            handle.give(flight.end)

    def _free_bounce(self, direction: Direction) -> Tensor:
        """A pinned buffer that no slice under way uses; two at most are made."""
        used = {flight.bounce.data_ptr() for flight in self._flights[direction] if flight.bounce is not None}
        for buffer in self._bounces[direction]:
            if buffer.data_ptr() not in used:
                return buffer
        buffer = self._allocate(MAX_SLICE_BYTES)
        self._bounces[direction].append(buffer)
        return buffer

    def _next_to_end(self) -> _Flight | None:
        """Of the oldest slice of each direction one that has ended, else the first that was given to a stream."""
        oldest = [flights[0] for flights in self._flights.values() if flights]
        ended = (flight for flight in oldest if not flight.is_given or self._has_ended(flight))
        return next(ended, oldest[0] if oldest else None)

    def _has_ended(self, flight: _Flight) -> bool:
        try:
            return bool(flight.end.query())
        except COPY_ERRORS as error:
            flight.error = flight.error or error
            return True

    def _await_slice(self, flight: _Flight) -> None:
        try:
            flight.end.synchronize()
            transfer = flight.taken.queued.handle.transfer
            if flight.error is None and flight.bounce is not None and transfer.direction is Direction.D2H:
                targets = transfer.pieces(flight.taken.start, flight.taken.end)
                for (target, _), part in zip(targets, _parts(flight.bounce, targets), strict=True):
                    _move(target, part)
        except COPY_ERRORS as error:
            flight.error = flight.error or error

    def _end_slice(self, flight: _Flight) -> TransferHandle | None:
        direction = flight.taken.queued.handle.transfer.direction
        assert self._flights[direction][0] is flight, "slices of one stream end in order"
        self._flights[direction].popleft()
        if flight.error is not None:
            return self._book.fail(flight.taken, flight.error, self.now_s())
        busy_s = flight.begin.elapsed_time(flight.end) / 1e3
        return self._book.finish(flight.taken, busy_s, self.now_s(), flight.is_coupled)
