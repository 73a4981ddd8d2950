"""A link with a clock of its own, which only moves when a test says so, and with every fault on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from offload.link import LinkError, LinkStatus, TransferHandle
from offload.link_book import LinkBook
from offload.link_config import LinkConfig
from offload.link_queue import Slice
from offload.pacer import Pacer
from offload.transfer import Direction, LinkTransfer, TransferClass

POISON = 0xDB


@dataclasses.dataclass
class _Flight:
    taken: Slice
    start_s: float
    end_s: float
    is_coupled: bool


class FakeLink:
    """`Link` in virtual time, on the queues and estimates of the real ones.

    What a transfer will write is filled with `POISON` at submit and gets each slice when that arrives: who reads early
    reads poison. What those of `poisoned_sources` have read is filled too, once they have ended: the lease is over, and
    who still reads there reads poison; `poison_source` is for leases that end later. `wait`, `order` and `drain` let
    the time pass that they would block for.

    Faults: `slow_down`; `fail` a transfer at its next slice; `hold` its completion back and `release` it, which delays
    and reorders; `duplicate` its completion; `die`. `completed` lists what has ended, in the order of its notification.
    """

    def __init__(
        self,
        h2d_bytes_per_s: float = 1e9,
        d2h_bytes_per_s: float | None = None,
        *,
        coupling: float = 1.0,
        poisoned_sources: Collection[TransferClass] = (),
        config: LinkConfig | None = None,
    ) -> None:
        """The real speeds; `config` may expect others. The clock starts at 0."""
        self._bytes_per_s = {Direction.H2D: h2d_bytes_per_s, Direction.D2H: d2h_bytes_per_s or h2d_bytes_per_s}
        self._config = config or LinkConfig(h2d_bytes_per_s, d2h_bytes_per_s or h2d_bytes_per_s, coupling)
        self._coupling = coupling
        self._poisoned_sources = frozenset(poisoned_sources)
        self._book = LinkBook(self._config)
        self._now_s = 0.0
        self._pacers = {direction: Pacer(speed, 0.0) for direction, speed in self._bytes_per_s.items()}
        self._flights: dict[Direction, _Flight] = {}
        self._errors: dict[TransferHandle, BaseException] = {}
        self._held: dict[TransferHandle, list[tuple[Slice, float, bool]]] = {}  # slices that nobody was told of
        self._duplicated: set[TransferHandle] = set()
        self._is_closed = False
        self._death: BaseException | None = None
        self.completed: list[TransferHandle] = []

    def now_s(self) -> float:
        return self._now_s

    def submit(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        self._refuse_if_over()
        handle = TransferHandle(transfer, self._await_done, on_done)
        for target, _ in transfer.pieces(0, transfer.num_bytes):
            target.fill_(POISON)
        self._book.submit(handle, self._now_s)
        if handle.is_done:
            self._notify(handle)
        self._start_slices()
        return handle

    def snapshot(self) -> LinkStatus:
        return self._book.status(self._now_s)

    def forget_bandwidth(self) -> None:
        self._book.forget_bandwidth()

    def drain(self) -> None:
        self._refuse_if_dead()
        while self._book.num_open:
            self._pass_time_until_next_arrival("drain")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for handle in self._book.fail_queued(LinkError("the link was closed before the copy was made"), self._now_s):
            self._notify(handle)
        for handle in list(self._held):
            self.release(handle)
        while self._flights:
            self._pass_time_until_next_arrival("close")

    def check(self) -> None:
        self._book.check()
        for direction, flight in self._flights.items():
            assert flight.taken.queued.handle.transfer.direction is direction
            assert flight.end_s >= self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass; what arrives meanwhile is copied, ended and notified in the order of the clock."""
        assert seconds >= 0
        self._advance_to(self._now_s + seconds)

    def advance_to_idle(self) -> None:
        """Let time pass until nothing is under way; what is held stays."""
        while self._flights:
            self._advance_to(min(flight.end_s for flight in self._flights.values()))

    def slow_down(self, factor: float, direction: Direction | None = None) -> None:
        """From the next slice on the link is that many times as slow as it was made; 1 for its own speed."""
        for each in [direction] if direction else list(Direction):
            end_s = self._flights[each].end_s if each in self._flights else self._now_s
            self._pacers[each] = Pacer(self._bytes_per_s[each] / factor, end_s)

    def fail(self, handle: TransferHandle, error: BaseException) -> None:
        """The copy of its next slice raises."""
        self._errors[handle] = error

    def hold(self, handle: TransferHandle) -> None:
        """Its last slice arrives, but nobody is told until `release`: a late or lost completion."""
        assert not handle.is_done
        self._held.setdefault(handle, [])

    def release(self, handle: TransferHandle) -> None:
        """Tell now, if it has arrived; else when it does."""
        for arrived in self._held.pop(handle):
            self._end_slice(*arrived)

    def duplicate(self, handle: TransferHandle) -> None:
        """Its completion is notified twice."""
        self._duplicated.add(handle)

    def die(self, error: BaseException) -> None:
        """The copier ends, as if its thread had raised."""
        self._death = error
        self._flights.clear()
        self._held.clear()
        for handle in self._book.fail_all(error, self._now_s):
            self._notify(handle)

    def poison_source(self, handle: TransferHandle) -> None:
        """The lease on where its bytes came from is over: who still reads them there reads poison."""
        assert handle.is_done, "the link may still read it"
        for _, source in handle.transfer.pieces(0, handle.transfer.num_bytes):
            source.fill_(POISON)

    def _refuse_if_over(self) -> None:
        if self._is_closed:
            raise LinkError("the link is closed; open another one")
        self._refuse_if_dead()

    def _refuse_if_dead(self) -> None:
        if self._death is not None:
            raise LinkError(f"the copier of the link died: {self._death!r}") from self._death

    def _await_done(self, handle: TransferHandle, timeout_s: float | None) -> None:
        give_up_s = float("inf") if timeout_s is None else self._now_s + timeout_s
        while not handle.is_done:
            next_s = min((flight.end_s for flight in self._flights.values()), default=float("inf"))
            if next_s > give_up_s:
                self._advance_to(give_up_s)
                raise LinkError(f"a copy of {handle.transfer.num_bytes:,} bytes was not done within {timeout_s} s")
            self._pass_time_until_next_arrival("wait")

    def _pass_time_until_next_arrival(self, what: str) -> None:
        if not self._flights:
            raise LinkError(f"{what} would block for ever: {self._book.num_open} transfers open, none under way")
        self._advance_to(min(flight.end_s for flight in self._flights.values()))

    def _advance_to(self, end_s: float) -> None:
        while self._flights:
            direction, flight = min(self._flights.items(), key=lambda item: (item[1].end_s, item[0]))
            if flight.end_s > end_s:
                break
            self._now_s = max(self._now_s, flight.end_s)
            del self._flights[direction]
            self._arrive(flight)
            self._start_slices()
        self._now_s = max(self._now_s, end_s)

    def _arrive(self, flight: _Flight) -> None:
        taken = flight.taken
        handle = taken.queued.handle
        transfer = handle.transfer
        if handle not in self._errors:
            for target, source in transfer.pieces(taken.start, taken.end):
                target.copy_(source)
        arrived = (taken, flight.end_s - flight.start_s, flight.is_coupled)
        is_last = taken.end == transfer.num_bytes or handle in self._errors
        if handle in self._held and (is_last or self._held[handle]):
            self._held[handle].append(arrived)
        else:
            self._end_slice(*arrived)

    def _end_slice(self, taken: Slice, busy_s: float, is_coupled: bool) -> None:
        error = self._errors.pop(taken.queued.handle, None)
        if error is not None:
            ended = self._book.fail(taken, error, self._now_s)
        else:
            ended = self._book.finish(taken, busy_s, self._now_s, is_coupled)
        if ended is not None:
            self._notify(ended)

    def _notify(self, handle: TransferHandle) -> None:
        if handle.transfer.transfer_class in self._poisoned_sources:
            self.poison_source(handle)
        self._held.pop(handle, None)
        for _ in range(2 if handle in self._duplicated else 1):
            self.completed.append(handle)
            handle.notify()
        self._duplicated.discard(handle)

    def _start_slices(self) -> None:
        for direction in Direction:
            if direction in self._flights or self._is_closed or self._death is not None:
                continue
            taken = self._book.take(direction, self._now_s)
            if taken is None:
                continue
            is_coupled = direction.opposite in self._flights or self._book.has_queued(direction.opposite)
            share = self._coupling if is_coupled else 1.0
            end_s = self._pacers[direction].schedule(taken.num_bytes, self._now_s, share)
            self._flights[direction] = _Flight(taken, self._now_s, end_s, is_coupled)
