"""All that a link knows of its transfers: queues, account and estimates. No thread, no clock, no copying."""

from __future__ import annotations

from offload.bandwidth import BandwidthEstimate
from offload.demand import DemandMeter
from offload.link import DirectionStatus, LinkStatus, TransferHandle
from offload.link_account import LinkAccount
from offload.link_config import LinkConfig
from offload.link_queue import LinkQueue, QueuedTransfer, Slice
from offload.transfer import Direction

SLICE_S = 0.5e-3
MIN_SLICE_BYTES = 512 * 1024
MAX_SLICE_BYTES = 16 * 1024**2
KV_DEMAND_S = 2.0
"""Time constant of the demand for KV."""


def slice_bytes(bytes_per_s: float) -> int:
    """Half a millisecond of the link: what an urgent transfer waits for at most, within bounds that copy well."""
    return min(max(int(SLICE_S * bytes_per_s), MIN_SLICE_BYTES), MAX_SLICE_BYTES)


class LinkBook:
    """Not thread-safe: the link that owns it calls it under its lock, and copies outside of it.

    A slice that was taken is finished or failed exactly once. A transfer ends when all of its bytes have arrived, or,
    after a failure, when no slice of it is under way any more; only then are its tensors the owner's again.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        self._queues = {direction: LinkQueue() for direction in Direction}
        self._estimates = {
            direction: BandwidthEstimate(config.bytes_per_s(direction), config.rules) for direction in Direction
        }
        self._kv_demands = {direction: DemandMeter(KV_DEMAND_S) for direction in Direction}
        self._account = LinkAccount()
        self._open: dict[TransferHandle, QueuedTransfer] = {}

    def forget_bandwidth(self) -> None:
        """Expect what was expected when the link was opened, until slices say otherwise."""
        for direction, estimate in self._estimates.items():
            fresh = BandwidthEstimate(self._config.bytes_per_s(direction), self._config.rules)
            fresh.num_drops = estimate.num_drops
            self._estimates[direction] = fresh

    @property
    def num_open(self) -> int:
        """Transfers that have not ended."""
        return len(self._open)

    def has_queued(self, direction: Direction) -> bool:
        """Whether a slice can be taken."""
        return not self._queues[direction].is_empty

    def submit(self, handle: TransferHandle, now_s: float) -> None:
        """Queue a transfer; one without bytes has ended when this returns, and the caller notifies."""
        transfer = handle.transfer
        direction = transfer.direction
        if transfer.num_bytes == 0:
            self.end(handle, now_s)
            return
        if transfer.transfer_class.is_kv:
            self._kv_demands[direction].add(transfer.num_bytes, now_s)
        bytes_per_s = self._estimates[direction].p50_bytes_per_s
        self._open[handle] = self._queues[direction].push(handle, bytes_per_s, now_s)

    def end(self, handle: TransferHandle, now_s: float, error: BaseException | None = None) -> None:
        """A transfer that is not, or no longer, in the books has ended; the caller notifies."""
        transfer = handle.transfer
        is_missed = now_s > transfer.deadline_s
        self._account.add_transfer(transfer.direction, transfer.transfer_class, is_missed, error is not None)
        handle.finish(now_s, error)

    def take(self, direction: Direction, now_s: float) -> Slice | None:
        """The slice to copy next; None if nothing is queued."""
        max_bytes = slice_bytes(self._estimates[direction].p50_bytes_per_s)
        return self._queues[direction].take(max_bytes, self.kv_share(direction, now_s))

    def finish(self, taken: Slice, busy_s: float, now_s: float, is_coupled: bool) -> TransferHandle | None:
        """A slice has arrived after `busy_s` of the link; the handle, if its transfer has ended: notify it."""
        transfer = taken.queued.handle.transfer
        alone_s = busy_s * self._config.coupling if is_coupled else busy_s
        is_late = self._estimates[transfer.direction].add(taken.num_bytes, alone_s, now_s)
        self._account.add_slice(transfer.direction, transfer.transfer_class, taken.num_bytes, busy_s, is_late)
        return self._end_slice(taken.queued, now_s)

    def fail(self, taken: Slice, error: BaseException, now_s: float) -> TransferHandle | None:
        """The copy of a slice has raised; the handle, if its transfer has ended: notify it."""
        queued = taken.queued
        self._stop(queued, error)
        return self._end_slice(queued, now_s)

    def fail_queued(self, error: BaseException, now_s: float) -> list[TransferHandle]:
        """Take no slice any more. The handles that have ended by this; the others end with their last slice."""
        for queued in [waiting for queue in self._queues.values() for waiting in queue]:
            self._stop(queued, error)
        stopped = [queued for queued in self._open.values() if queued.num_in_flight == 0]
        return [self._end(queued, now_s) for queued in stopped]

    def fail_all(self, error: BaseException, now_s: float) -> list[TransferHandle]:
        """The link is dead: every transfer ends now, those with a slice under way too."""
        for queued in self._open.values():
            self._stop(queued, error)
            queued.num_in_flight = 0
        return [self._end(queued, now_s) for queued in list(self._open.values())]

    def kv_share(self, direction: Direction, now_s: float) -> float:
        """The share of the bandwidth that other classes must leave to KV while it waits."""
        demand = self._kv_demands[direction].bytes_per_s(now_s) / self._estimates[direction].p50_bytes_per_s
        return min(max(demand, self._config.min_kv_link_share), self._config.max_kv_link_share)

    def status(self, now_s: float) -> LinkStatus:
        h2d, d2h = (self._direction_status(direction) for direction in (Direction.H2D, Direction.D2H))
        return LinkStatus(h2d, d2h, self._config.coupling, self.kv_share(Direction.H2D, now_s))

    def check(self) -> None:
        """Assert that every transfer is in one state and every byte is waiting, under way or arrived."""
        for direction in Direction:
            self._queues[direction].check()
            self._estimates[direction].check()
        self._account.check()
        waiting = {queued for queue in self._queues.values() for queued in queue}
        for handle, queued in self._open.items():
            assert queued.handle is handle and not handle.is_done
            assert 0 <= queued.num_taken_bytes <= handle.transfer.num_bytes
            assert (queued in waiting) != queued.is_taken_whole, "a transfer waits with nothing left, or is lost"
            assert queued in waiting or queued.num_in_flight > 0, "a transfer that nobody will end"
        assert all(queued.handle in self._open for queued in waiting)

    def _direction_status(self, direction: Direction) -> DirectionStatus:
        estimate = self._estimates[direction]
        return DirectionStatus(
            estimate.p50_bytes_per_s,
            estimate.p5_bytes_per_s,
            self._queues[direction].queued_bytes,
            self._account.totals(direction),
            estimate.is_derated,
            estimate.num_drops,
        )

    def _stop(self, queued: QueuedTransfer, error: BaseException) -> None:
        self._queues[queued.handle.transfer.direction].remove(queued)
        if queued.error is None:
            queued.error = error

    def _end_slice(self, queued: QueuedTransfer, now_s: float) -> TransferHandle | None:
        assert queued.num_in_flight > 0, "a slice ends that is not under way"
        queued.num_in_flight -= 1
        if queued.num_in_flight or not queued.is_taken_whole:
            return None
        return self._end(queued, now_s)

    def _end(self, queued: QueuedTransfer, now_s: float) -> TransferHandle:
        del self._open[queued.handle]
        self.end(queued.handle, now_s, queued.error)
        return queued.handle
