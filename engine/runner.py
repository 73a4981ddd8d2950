"""The seam between the step loop and whatever computes a step: a model, a roofline, or a fake in tests."""

from __future__ import annotations

from typing import Protocol

from engine.model_runner_output import ModelRunnerOutput
from engine.sequence import Sequence
from scheduler.output import SchedulerOutput


class Runner(Protocol):
    """Executes steps. Holds a row of block table per live sequence."""

    def add(self, sequence: Sequence) -> None:
        """Make a sequence known before its first step."""

    def remove(self, request_id: str) -> None:
        """Forget a sequence; unknown ids are ignored."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the step: block copies first, then the tokens, then the samples."""


class Clock(Protocol):
    """Where the engine's time comes from."""

    def now_s(self) -> float:
        """Seconds, monotonic."""
