"""The link of a CPU: a thread that copies, at the speed of memory or at that of an emulated link."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from kernels.block_copy import BlockCopier, copy_blocks
from offload.link import TransferHandle
from offload.link_config import LinkConfig
from offload.link_queue import Slice
from offload.pacer import Pacer
from offload.threaded_link import COPY_ERRORS, ThreadedLink
from offload.transfer import Direction, LinkTransfer

SliceCopier = Callable[[LinkTransfer, int, int], None]


def copy_slice(transfer: LinkTransfer, start: int, end: int, copy_blocks: BlockCopier = copy_blocks) -> None:
    """Bytes [start, end) of a transfer, without the interpreter's lock; those of blocks by `copy_blocks`."""
    transfer.copy(start, end, copy_blocks)


@dataclasses.dataclass(slots=True)
class _Flight:
    """A slice on the emulated wire: it arrives at `end_s`, by when it has been copied."""

    taken: Slice
    end_s: float
    is_coupled: bool
    error: BaseException | None = None


class HostLink(ThreadedLink):
    """Copies between two regions of main memory.

    With a cap (in bytes per second, by direction), a slice takes as long as on a link of that speed: the thread copies
    it, then sleeps until the absolute time of its arrival. It never spins, which would hold the interpreter's lock.
    Both directions advance at once; while both carry data, each is held to its cap times the coupling.
    """

    def __init__(
        self,
        config: LinkConfig,
        caps: Mapping[Direction, float] | None = None,
        copy: SliceCopier = copy_slice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the link.

        Raises:
            ValueError: a cap is not positive.
        """
        super().__init__(config, clock)
        self._copy = copy
        self._pacers: dict[Direction, Pacer | None] = dict.fromkeys(Direction)
        for direction, bytes_per_s in (caps or {}).items():
            self.set_cap(direction, bytes_per_s)
        self._flights: dict[Direction, _Flight] = {}
        self._last_end_s = dict.fromkeys(Direction, float("-inf"))
        self._start()

    def set_cap(self, direction: Direction, bytes_per_s: float | None) -> None:
        """Emulate a link of another speed from the next slice on; None: as fast as memory is.

        Raises:
            ValueError: the speed is not positive.
        """
        if bytes_per_s is not None and not 0 < bytes_per_s < float("inf"):
            raise ValueError(f"the cap of {direction} is {bytes_per_s} bytes per second; it must be positive")
        self._pacers[direction] = None if bytes_per_s is None else Pacer(bytes_per_s, self.now_s())

    def _check_transfer(self, transfer: LinkTransfer) -> None:
        if transfer.source.device.type != "cpu" or transfer.target.device.type != "cpu":
            raise ValueError(
                f"a copy from {transfer.source.device} to {transfer.target.device} over the link of a CPU; "
                "an accelerator has a link of its own"
            )
        if transfer.after is not None:
            raise ValueError("a copy on a CPU waits for no event: submit it once what comes before has returned")

    def _make_handle(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None) -> TransferHandle:
        return TransferHandle(transfer, self._await_done, on_done)

    def _enqueue(self, handle: TransferHandle) -> None:
        self._book.submit(handle, self.now_s())
        if handle.transfer.direction not in self._flights:
            self._work.notify()

    def _check_flights(self) -> None:
        for direction, flight in self._flights.items():
            assert flight.taken.queued.handle.transfer.direction is direction
            assert flight.taken.queued.num_in_flight == 1

    def _fail_all(self, error: BaseException) -> list[TransferHandle]:
        self._flights.clear()
        return super()._fail_all(error)

    def _turn(self) -> bool:
        for flight in self._take_slices():
            self._copy_slice(flight)
        with self._lock:
            if not self._flights:
                return not self._is_closed
            wait_s = min(flight.end_s for flight in self._flights.values()) - self.now_s()
            if wait_s > 0 and not self._has_startable():
                self._work.wait(wait_s)  # woken early by work for an idle direction
            ended = self._end_arrived()
        self._notify(ended)
        return True

    def _take_slices(self) -> list[_Flight]:
        """Block until there is something to do, and put a slice on the wire of each idle direction."""
        with self._lock:
            while not self._flights and not self._is_closed and not self._has_startable():
                self._work.wait()
            now_s = self.now_s()
            idle = [direction for direction in Direction if direction not in self._flights]
            taken = {direction: self._book.take(direction, now_s) for direction in idle}
            started = {direction: each for direction, each in taken.items() if each is not None}
            for direction, each in started.items():
                is_coupled = direction.opposite in self._flights or direction.opposite in started
                self._flights[direction] = _Flight(each, now_s, is_coupled)
            return [self._flights[direction] for direction in started]

    def _copy_slice(self, flight: _Flight) -> None:
        taken = flight.taken
        transfer = taken.queued.handle.transfer
        pacer = self._pacers[transfer.direction]
        if pacer is not None:
            share = self._config.coupling if flight.is_coupled else 1.0
            flight.end_s = pacer.schedule(taken.num_bytes, taken.queued.submitted_s, share)
        try:
            self._copy(transfer, taken.start, taken.end)
        except COPY_ERRORS as error:
            flight.error = error

    def _has_startable(self) -> bool:
        return any(direction not in self._flights and self._book.has_queued(direction) for direction in Direction)

    def _end_arrived(self) -> list[TransferHandle]:
        """Take arrived slices off the wire; the handles that have ended by it."""
        now_s = self.now_s()
        ended = []
        for direction, flight in list(self._flights.items()):
            if flight.end_s > now_s:
                continue
            del self._flights[direction]
            taken = flight.taken
            busy_s = now_s - max(self._last_end_s[direction], taken.queued.submitted_s)
            self._last_end_s[direction] = now_s
            if flight.error is not None:
                handle = self._book.fail(taken, flight.error, now_s)
            else:
                handle = self._book.finish(taken, busy_s, now_s, flight.is_coupled)
            if handle is not None:
                ended.append(handle)
        if not self._book.num_open:
            self._idle.notify_all()
        return ended
