"""The link of a CPU: a thread that copies, at the speed of memory or at that of an emulated link."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import threading
import time
from collections.abc import Callable

from torch import Tensor

from offload.link import LinkError, LinkStatus, TransferHandle
from offload.link_book import LinkBook
from offload.link_config import LinkConfig
from offload.link_queue import Slice
from offload.pacer import Pacer
from offload.transfer import Direction, Transfer

SWITCH_INTERVAL_S = 1e-4
"""While a link is open: at Python's default of 5 ms, a copier beside a busy thread reached 0.08 of 1 GB/s."""
ALIVE_S = 0.5
"""How often a waiting thread looks whether the copier still lives."""
_COPY_ERRORS = (RuntimeError, ValueError, TypeError, OSError, MemoryError, BufferError, IndexError)

SliceCopier = Callable[[Tensor, Tensor, int, int], None]


def copy_slice(source: Tensor, target: Tensor, start: int, end: int) -> None:
    """Bytes [start, end) of `source` to the same place of `target`, without the interpreter's lock.

    By `memmove` of the C library: it needs no threads of torch, and a slice costs a third of what `copy_` does.
    """
    ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, end - start)


@dataclasses.dataclass(slots=True)
class _Flight:
    """A slice on the emulated wire: copied, and arrived at `end_s`."""

    taken: Slice
    end_s: float
    is_coupled: bool
    error: BaseException | None = None


class HostLink:
    """Copies between two regions of main memory with one thread, `headrace-link`.

    With a cap (in bytes per second, by direction), a slice takes as long as on a link of that speed: the thread copies
    it, then sleeps until the absolute time of its arrival. It never spins, which would hold the interpreter's lock.
    Both directions advance at once; while both carry data each is held to its cap times the coupling. Deadlines are on
    `time.monotonic`, the engine's clock.
    """

    def __init__(
        self,
        config: LinkConfig,
        caps: dict[Direction, float] | None = None,
        copy: SliceCopier = copy_slice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the link: starts the thread, and lowers the interpreter's switch interval until `close`.

        Raises:
            ValueError: a cap is not positive.
        """
        self._config = config
        self._copy = copy
        self.now_s = clock
        self._book = LinkBook(config)
        self._pacers: dict[Direction, Pacer | None] = dict.fromkeys(Direction)
        for direction, bytes_per_s in (caps or {}).items():
            self.set_cap(direction, bytes_per_s)
        self._flights: dict[Direction, _Flight] = {}
        self._last_end_s = dict.fromkeys(Direction, float("-inf"))
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the copier: something to start, or the end
        self._idle = threading.Condition(self._lock)  # for drain: nothing is open, or the end
        self._is_closed = False
        self._death: BaseException | None = None
        self._old_switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._old_switch_interval_s))
        self._thread = threading.Thread(target=self._run, name="headrace-link", daemon=True)
        self._thread.start()

    def set_cap(self, direction: Direction, bytes_per_s: float | None) -> None:
        """Emulate a link of another speed from the next slice on; None: as fast as memory is.

        Raises:
            ValueError: the speed is not positive.
        """
        if bytes_per_s is not None and not 0 < bytes_per_s < float("inf"):
            raise ValueError(f"the cap of {direction} is {bytes_per_s} bytes per second; it must be positive")
        self._pacers[direction] = None if bytes_per_s is None else Pacer(bytes_per_s, self.now_s())

    def submit(self, transfer: Transfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        if transfer.source.device.type != "cpu" or transfer.target.device.type != "cpu":
            raise ValueError(
                f"a copy from {transfer.source.device} to {transfer.target.device} over the link of a CPU; "
                "an accelerator has a link of its own"
            )
        assert transfer.after is None, "on a CPU whatever must come before a copy has returned"
        handle = TransferHandle(transfer, self._await_done, on_done)
        with self._lock:
            self._refuse_if_over()
            self._book.submit(handle, self.now_s())
            if transfer.direction not in self._flights:
                self._work.notify()
        if handle.is_done:
            handle.notify()
        return handle

    def snapshot(self) -> LinkStatus:
        with self._lock:
            return self._book.status(self.now_s())

    def drain(self) -> None:
        with self._lock:
            while self._book.num_open:
                self._idle.wait(ALIVE_S)
                self._notice_death()
            self._notice_death()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ended = self._book.fail_queued(LinkError("the link was closed before the copy was made"), self.now_s())
            self._work.notify()
            self._idle.notify_all()
        for handle in ended:
            handle.notify()
        self._thread.join()
        if sys.getswitchinterval() < self._old_switch_interval_s:
            sys.setswitchinterval(self._old_switch_interval_s)

    def check(self) -> None:
        with self._lock:
            self._book.check()
            for direction, flight in self._flights.items():
                assert flight.taken.queued.handle.transfer.direction is direction
                assert flight.taken.queued.num_in_flight == 1

    def _refuse_if_over(self) -> None:
        if self._is_closed:
            raise LinkError("the link is closed; open another one")
        self._notice_death()

    def _notice_death(self) -> None:
        """Raises: LinkError: the thread has ended without being asked to (or is not in this process, after a fork)."""
        if self._death is not None or (not self._is_closed and not self._thread.is_alive()):
            raise LinkError(f"the copier of the link died: {self._death!r}; start the engine anew") from self._death

    def _await_done(self, handle: TransferHandle, timeout_s: float | None) -> None:
        give_up_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not handle.wait_event(min(ALIVE_S, max(0.0, give_up_s - time.monotonic()))):
            with self._lock:
                if not handle.is_done:
                    self._notice_death()
            if time.monotonic() >= give_up_s and not handle.is_done:
                transfer = handle.transfer
                raise LinkError(
                    f"the {transfer.direction} copy of {transfer.num_bytes:,} bytes of {transfer.transfer_class} was "
                    f"not done within {timeout_s} s"
                )

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 - the outermost of a thread: who waits must not wait for ever
            self._die(error)

    def _die(self, error: BaseException) -> None:
        with self._lock:
            self._death = error
            self._flights.clear()
            ended = self._book.fail_all(error, self.now_s())
            self._idle.notify_all()
        for handle in ended:
            handle.notify()

    def _turn(self) -> bool:
        """Start what can start, sleep until the next arrival, end what has arrived; False when the link is over."""
        for flight in self._take_slices():
            self._copy_slice(flight)
        with self._lock:
            if not self._flights:
                return not self._is_closed
            next_end_s = min(flight.end_s for flight in self._flights.values())
            wait_s = next_end_s - self.now_s()
            if wait_s > 0 and not self._has_startable():
                self._work.wait(wait_s)  # woken early by work for an idle direction
            ended = self._end_arrived()
        for handle in ended:
            handle.notify()
        return True

    def _take_slices(self) -> list[_Flight]:
        """Block until there is something to do, and put a slice on the wire of each idle direction."""
        with self._lock:
            while not self._flights and not self._is_closed and not self._has_startable():
                self._work.wait()
            if self._is_closed:
                return []
            now_s = self.now_s()
            taken = {
                direction: self._book.take(direction, now_s)
                for direction in Direction
                if direction not in self._flights
            }
            started = {direction: taken_slice for direction, taken_slice in taken.items() if taken_slice is not None}
            for direction, taken_slice in started.items():
                is_coupled = direction.opposite in self._flights or direction.opposite in started
                self._flights[direction] = _Flight(taken_slice, now_s, is_coupled)
            return [self._flights[direction] for direction in started]

    def _copy_slice(self, flight: _Flight) -> None:
        taken = flight.taken
        transfer = taken.queued.handle.transfer
        pacer = self._pacers[transfer.direction]
        if pacer is not None:
            share = self._config.coupling if flight.is_coupled else 1.0
            flight.end_s = pacer.schedule(taken.num_bytes, taken.queued.submitted_s, share)
        try:
            self._copy(transfer.source, transfer.target, taken.start, taken.end)
        except _COPY_ERRORS as error:
            flight.error = error

    def _has_startable(self) -> bool:
        return not self._is_closed and any(
            direction not in self._flights and self._book.has_queued(direction) for direction in Direction
        )

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
