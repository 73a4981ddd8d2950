"""A runner that computes nothing: a step takes the time that a cost model predicts for it."""

from __future__ import annotations

from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.sequence import Sequence
from engine.simulation.virtual_clock import VirtualClock
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from scheduler.output import SchedulerOutput

TOKEN_ID = 1
"""What every request samples. Requests of a simulation ignore end-of-sequence tokens."""


class RooflineRunner:
    """Implements `engine.runner.Runner`: all weights on the device, nothing is copied, every time is the median.

    Owns the ids of the live sequences, and nothing of them.
    """

    def __init__(self, cost: StepCost, num_layers: int, clock: VirtualClock) -> None:
        self._cost = cost
        self._num_layers = num_layers
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
        self._clock.advance(step_s(self._cost, self._num_layers, output))
        outputs = tuple(RequestOutput(s.request_id, TOKEN_ID if s.samples else None) for s in output.scheduled)
        return ModelRunnerOutput(output.step_id, outputs)


def step_s(cost: StepCost, num_layers: int, output: SchedulerOutput) -> float:
    """Predicted seconds of a step: its layers, the head for the rows that sample, and what it takes besides."""
    if not output.scheduled:
        return 0.0
    num_context_tokens = sum(s.num_computed_tokens + s.num_tokens for s in output.scheduled)
    load = StepLoad(output.num_tokens, len(output.scheduled), num_context_tokens)
    num_rows = sum(s.samples for s in output.scheduled)
    head_s = cost.head_s(num_rows, Quantile.P50) if num_rows else 0.0
    return num_layers * cost.quiet_layer_s(load, Quantile.P50) + head_s + cost.fixed_s()
