"""What a step costs now: the record, with the link and the speed of computing as they are seen while serving."""

from __future__ import annotations

import dataclasses

from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from offload.transfer import Direction


@dataclasses.dataclass(frozen=True, slots=True)
class LiveCost:
    """Implements `StepCost`."""

    recorded: StepCost
    h2d_bytes_per_s: float
    """5th percentile of what the link carries to the device; taken for the median too."""
    compute_factor: float = 1.0
    """Times of layers and head over the recorded ones."""

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        return self.recorded.layer_s(load, quantile) * self.compute_factor

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        return self.recorded.quiet_layer_s(load, quantile) * self.compute_factor

    def head_s(self, num_rows: int, quantile: Quantile) -> float:
        return self.recorded.head_s(num_rows, quantile) * self.compute_factor

    def fixed_s(self) -> float:
        return self.recorded.fixed_s()

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:
        return (
            self.h2d_bytes_per_s if direction is Direction.H2D else self.recorded.link_bytes_per_s(direction, quantile)
        )
