"""What the step loop asks of what moves beside it: the state of the link before a step, and copies around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.kv_bytes import KVBytes
from engine.messages import OffloadStats
from scheduler.kv_transfer import TransferResult
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.output import SchedulerOutput


class OffloadManager(Protocol):
    """One a runner. Used by the thread of the step loop."""

    def snapshot(self) -> LinkSnapshot:
        """The link and the placement now: what the next step is scheduled by."""

    def begin(self, output: SchedulerOutput, now_s: float) -> None:
        """After `schedule`, before the step computes: move the border, start copies.

        Raises:
            OffloadError: the link is dead.
        """

    def end(self) -> None:
        """The step has computed, or failed. Blocks until every load that it was gated on has ended."""

    def collect(self) -> tuple[TransferResult, ...]:
        """The copies of blocks that have ended since the last call, each once. Never blocks."""

    def void_requests(self, output: SchedulerOutput) -> frozenset[str]:
        """After `end` and `collect`: requests of the step whose gated load failed; what it made of them is void."""

    def has_results(self) -> bool:
        """Whether `collect` would return something."""

    def call_on_results(self, wake: Callable[[], None]) -> None:
        """From now on call `wake`, from any thread, when there is something to collect."""

    def verify(self) -> None:
        """After the warm-up: the last step moved exactly what the plan says.

        Raises:
            OffloadError: it did not.
        """

    def wakeup_s(self) -> float | None:
        """How soon an idle loop should take a turn all the same; None: never."""

    def stats(self) -> OffloadStats | None:
        """Gauges of now and totals so far; None where nothing is ever streamed."""

    def kv_bytes(self) -> KVBytes | None:
        """What moving blocks came to so far; None where they are on the device alone."""

    def close(self) -> None:
        """No step will come any more: end the link and give host memory back. Idempotent."""


class NoOffload:
    """Everything is on the device."""

    def snapshot(self) -> LinkSnapshot:
        return NO_LINK

    def begin(self, output: SchedulerOutput, now_s: float) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """Nothing to do."""

    def collect(self) -> tuple[TransferResult, ...]:
        return ()

    def void_requests(self, output: SchedulerOutput) -> frozenset[str]:  # noqa: ARG002 - of those with loads
        return frozenset()

    def has_results(self) -> bool:
        return False

    def call_on_results(self, wake: Callable[[], None]) -> None:
        """There never is anything."""

    def verify(self) -> None:
        """Nothing moves."""

    def wakeup_s(self) -> float | None:
        return None

    def stats(self) -> OffloadStats | None:
        return None

    def kv_bytes(self) -> KVBytes | None:
        return None

    def close(self) -> None:
        """Nothing is open."""
