"""A runner that computes nothing: a step takes the time that a cost model says."""

from __future__ import annotations

from collections.abc import Callable

from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.sequence import Sequence
from engine.simulation.step_times import StepTimes
from engine.simulation.virtual_clock import VirtualClock
from scheduler.output import SchedulerOutput

TOKEN_ID = 1
"""What every request samples. Requests of a simulation ignore end-of-sequence tokens."""

StepObserver = Callable[[SchedulerOutput, float], None]
"""Told of each step and its seconds."""


class RooflineRunner:
    """Implements `engine.runner.Runner`. Owns the ids of the live sequences, and nothing of them."""

    def __init__(self, steps: StepTimes, clock: VirtualClock, on_step: StepObserver | None = None) -> None:
        self._steps = steps
        self._clock = clock
        self._on_step = on_step
        self._live: set[str] = set()

    @property
    def num_sequences(self) -> int:
        return len(self._live)

    def add(self, sequence: Sequence) -> None:
        """Make a sequence known before its first step."""
        self._live.add(sequence.request_id)

    def remove(self, request_id: str) -> None:
        """Forget a sequence; unknown ids are ignored."""
        self._live.discard(request_id)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Let the step's time pass, and sample `TOKEN_ID` for each request that samples.

        Raises:
            KeyError: a scheduled request was never added.
        """
        for scheduled in output.scheduled:
            if scheduled.request_id not in self._live:
                raise KeyError(scheduled.request_id)
        duration_s = self._steps.step_s(output)
        self._clock.advance(duration_s)
        if self._on_step is not None:
            self._on_step(output, duration_s)
        outputs = tuple(RequestOutput(s.request_id, TOKEN_ID if s.samples else None) for s in output.scheduled)
        return ModelRunnerOutput(output.step_id, outputs)
