"""How long the steps of a simulated machine really take: what its costs say, and how they vary about that."""

from __future__ import annotations

import dataclasses
import math
import random

from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from offload.transfer import Direction
from scheduler.output import SchedulerOutput

_Z95 = 1.6448536269514722
"""95th percentile of the standard normal distribution."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepVariation:
    """How steps differ from their costs.

    Raises:
        ValueError: a value is out of bounds.
    """

    noise: float = 1.0
    """95th percentile over median of a step's time, log-normal; 1: none. The latency model knows it, as it would from a
    profile."""
    slowdown: float = 1.0
    """Factor on every step that the latency model does not know at first."""
    seed: int = 0
    """Of the noise."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.noise < math.inf:
            raise ValueError(f"noise is {self.noise}; the 95th percentile over the median is at least 1")
        if not 0.0 < self.slowdown < math.inf:
            raise ValueError(f"slowdown is {self.slowdown}, it must be above 0")


EXACT = StepVariation()
"""Every step takes its cost."""


class StepTimes:
    """Times one step after the other; deterministic in the steps and the seed."""

    def __init__(
        self,
        cost: StepCost,
        num_layers: int,
        *,
        streamed_bytes: int = 0,
        variation: StepVariation = EXACT,
    ) -> None:
        """
        Args:
            streamed_bytes: copied to the device in every step; it takes as long as they do.
        """
        self._cost = cost
        self._num_layers = num_layers
        self._layer_s = cost.layer_s if streamed_bytes else cost.quiet_layer_s
        self._link_s = streamed_bytes / cost.link_bytes_per_s(Direction.H2D, Quantile.P50) if streamed_bytes else 0.0
        self._slowdown = variation.slowdown
        self._sigma = math.log(variation.noise) / _Z95
        self._rng = random.Random(variation.seed)

    def step_s(self, output: SchedulerOutput) -> float:
        """Seconds of a step: its layers and the head for the rows that sample, or its copies; and what it takes else.

        A step of nothing takes no time.
        """
        if not output.scheduled:
            return 0.0
        num_samples = num_decodes = decode_context = 0
        chunks: list[StepLoad] = []
        for part in output.scheduled:
            num_samples += part.samples
            if part.num_tokens == 1:
                num_decodes += 1
                decode_context += part.num_computed_tokens + 1
            else:
                chunks.append(StepLoad(part.num_tokens, 1, part.num_computed_tokens + part.num_tokens))
        if num_decodes:
            chunks.append(StepLoad(num_decodes, num_decodes, decode_context))
        head_s = self._cost.head_s(num_samples, Quantile.P50) if num_samples else 0.0
        compute_s = self._num_layers * self._layer_of(chunks) + head_s
        exact_s = max(compute_s, self._link_s) + self._cost.fixed_s()
        return exact_s * self._slowdown * (math.exp(self._rng.gauss(0.0, self._sigma)) if self._sigma else 1.0)

    def _layer_of(self, parts: list[StepLoad]) -> float:
        """One layer of a step of several parts: matrices see all rows at once, attention each part by itself."""
        if len(parts) == 1:
            return self._layer_s(parts[0], Quantile.P50)
        attention_s = sum(self._layer_s(part, Quantile.P50) - self._matrices_s(part.num_tokens) for part in parts)
        return attention_s + self._matrices_s(sum(part.num_tokens for part in parts))

    def _matrices_s(self, num_tokens: int) -> float:
        """With the least attention that so many rows can have: each sees itself."""
        return self._layer_s(StepLoad(num_tokens, num_tokens, num_tokens), Quantile.P50)
