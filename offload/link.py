"""The link between device and host memory: its interface, and what it says of itself.

`HostLink` copies on a CPU with one thread, `CudaLink` with streams; the tests have one with a virtual clock.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from offload.errors import OffloadError
from offload.transfer import Direction, LinkTransfer, TransferClass


class LinkError(OffloadError):
    """A copy failed, a wait timed out, or the link is closed or dead. The target's bytes are undefined."""


@dataclasses.dataclass(frozen=True, slots=True)
class TransferTotals:
    """What a class of transfers has moved in one direction since the link was opened.

    `busy_s` is the time the link was busy with them. A late slice took longer than the bandwidth in force predicted;
    a missed transfer ended behind its deadline.
    """

    num_transfers: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    num_slices: int = 0
    num_late_slices: int = 0
    num_missed: int = 0
    num_failed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DirectionStatus:
    """One direction. Bandwidths are of the direction alone, as measured: half of the time, 95 % of the time at least.

    `num_drops` counts the times the bandwidth was derated at once; while `is_derated` it is held down until faster
    slices have been seen for long enough.
    """

    p50_bytes_per_s: float
    p5_bytes_per_s: float
    queued_bytes: Mapping[TransferClass, int]
    totals: Mapping[TransferClass, TransferTotals]
    is_derated: bool = False
    num_drops: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LinkStatus:
    """The link at one moment.

    `coupling` is the share of its bandwidth that a direction keeps while the other carries data. `kv_link_share` is the
    share of the host-to-device bandwidth that weights must leave to KV: measured demand, and the least there is.
    """

    h2d: DirectionStatus
    d2h: DirectionStatus
    coupling: float
    kv_link_share: float

    def of(self, direction: Direction) -> DirectionStatus:
        return self.h2d if direction is Direction.H2D else self.d2h


class TransferHandle:
    """A transfer on its way. Done once, with or without an error; made by a link."""

    def __init__(
        self,
        transfer: LinkTransfer,
        await_done: Callable[[TransferHandle, float | None], None],
        on_done: Callable[[TransferHandle], None] | None = None,
    ) -> None:
        self.transfer = transfer
        self._await_done = await_done
        self._on_done = on_done
        self._done = threading.Event()
        self._failed: BaseException | None = None
        self._finished_s: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not; source and target are the owner's again."""
        return self._done.is_set()

    @property
    def failed(self) -> BaseException | None:
        """Why the copy failed; None while under way and after success."""
        return self._failed

    @property
    def finished_s(self) -> float | None:
        """When it ended, on the link's clock."""
        return self._finished_s

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until it is done.

        Raises:
            LinkError: the copy failed, the link died, or `timeout_s` passed.
        """
        if not self._done.is_set():
            self._await_done(self, timeout_s)
        if self._failed is not None:
            transfer = self.transfer
            raise LinkError(
                f"the {transfer.direction} copy of {transfer.num_bytes:,} bytes of {transfer.transfer_class} failed: "
                f"{self._failed}"
            ) from self._failed

    def order(self, stream: Any = None, timeout_s: float | None = None) -> None:  # noqa: ARG002 - of accelerators
        """What is given to `stream` from now on sees the bytes. Blocks the caller no longer than that takes.

        Without streams this is `wait`. Raises as `wait` does, for failures known by then.
        """
        self.wait(timeout_s)

    def wait_event(self, timeout_s: float | None) -> bool:
        """For links: block on the event of this handle alone; whether it is done."""
        return self._done.wait(timeout_s)

    def finish(self, now_s: float, error: BaseException | None = None) -> None:
        """For links: it has ended. A second end of the same transfer changes nothing."""
        if self._done.is_set():
            return
        self._failed = error
        self._finished_s = now_s
        self._done.set()

    def notify(self) -> None:
        """For links: tell who asked, once the link's own books are closed on this transfer."""
        if self._on_done is not None:
            self._on_done(self)


class Link(Protocol):
    """Copies between device and host. Every method may be called from any thread."""

    def now_s(self) -> float:
        """The clock of deadlines."""
        ...

    def submit(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        """Queue a copy; never blocks. `on_done` is called on the link's thread once the handle is done: keep it short.

        Raises:
            LinkError: the link is closed or dead.
        """
        ...

    def snapshot(self) -> LinkStatus: ...

    def forget_bandwidth(self) -> None:
        """Expect the bandwidth that was expected when the link was opened: what was measured is long ago."""
        ...

    def drain(self) -> None:
        """Block until nothing is queued or under way. Failed transfers count as done.

        Raises:
            LinkError: the link died.
        """
        ...

    def close(self) -> None:
        """End the link; idempotent. A slice under way ends first, what is queued fails."""
        ...

    def check(self) -> None:
        """Assert that queues, account and handles agree."""
        ...
