"""What the step loop asks of streamed weights: the state of the link before a step, and copies around it."""

from __future__ import annotations

from typing import Protocol

from engine.messages import OffloadStats
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
        """The step has computed, or failed."""

    def verify(self) -> None:
        """After the warm-up: the last step moved exactly what the plan says.

        Raises:
            OffloadError: it did not.
        """

    def wakeup_s(self) -> float | None:
        """How soon an idle loop should take a turn all the same; None: never."""

    def stats(self) -> OffloadStats | None:
        """Gauges of now and totals so far; None where nothing is ever streamed."""

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

    def verify(self) -> None:
        """Nothing moves."""

    def wakeup_s(self) -> float | None:
        return None

    def stats(self) -> OffloadStats | None:
        return None

    def close(self) -> None:
        """Nothing is open."""
