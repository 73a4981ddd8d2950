"""A runner that computes nothing: a step takes the time that a cost model says."""

from __future__ import annotations

from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.sequence import Sequence
from engine.simulation.step_times import StepTimes
from engine.simulation.virtual_clock import VirtualClock
from scheduler.output import SchedulerOutput

TOKEN_ID = 1
"""What every request samples. Requests of a simulation ignore end-of-sequence tokens."""


class RooflineRunner:
    """Implements `engine.runner.Runner`. Owns the ids of the live sequences, and nothing of them."""

    def __init__(self, steps: StepTimes, clock: VirtualClock) -> None:
        self._steps = steps
        self._clock = clock
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
        self._clock.advance(self._steps.step_s(output))
        outputs = tuple(RequestOutput(s.request_id, TOKEN_ID if s.samples else None) for s in output.scheduled)
        return ModelRunnerOutput(output.step_id, outputs)
