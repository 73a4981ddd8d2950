"""What the parts of a step cost on a machine: the one face of a measured record and of the hardware table."""

from __future__ import annotations

import enum
from typing import Protocol

from offload.step_load import StepLoad
from offload.transfer import Direction


class Quantile(enum.Enum):
    """Which of many repetitions a time stands for."""

    P50 = "p50"
    P95 = "p95"


class StepCost(Protocol):
    """Seconds of the parts of a step and bytes per second of the link. Pure: equal arguments give equal answers."""

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """One average decoder layer, its weights on the device, while the link copies."""

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """The same while nothing is copied."""

    def head_s(self, num_rows: int, quantile: Quantile) -> float:
        """Embedding, head and sampling of `num_rows` rows whose logits are needed."""

    def fixed_s(self) -> float:
        """What a step takes besides: launch, synchronisation, scheduler."""

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:
        """Of large copies. P95 is of the time, and so the 5th percentile of the bandwidth."""
