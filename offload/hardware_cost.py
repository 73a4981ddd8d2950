"""What a step costs by the roofline of a device: for a machine that one does not have."""

from __future__ import annotations

import dataclasses

from offload.hardware import Hardware
from offload.model_shape import ModelShape
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.transfer import Direction

_SPREAD = 1.05
"""The 95th percentile of a time over its median, where nothing was measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class HardwareCost:
    """Implements `StepCost`: a layer takes max(bP/H, 2PT/F) + max(K/H, A/F) + fixed.

    P parameters a layer, b bytes each, T tokens, K bytes of KV that a layer reads, A operations of its attention;
    H bytes and F operations a second.
    """

    shape: ModelShape
    flops: float
    memory_bytes_per_s: float
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    layer_fixed_s: float = 0.0
    step_fixed_s: float = 0.0
    spread: float = _SPREAD

    @staticmethod
    def effective(hardware: Hardware, shape: ModelShape) -> HardwareCost:
        """As decoders run on it."""
        link = hardware.link
        rates = (hardware.flops, hardware.memory_bytes_per_s, link.h2d_bytes_per_s, link.d2h_bytes_per_s)
        return HardwareCost(shape, *rates, hardware.layer_fixed_s, hardware.step_fixed_s)

    @staticmethod
    def peak(hardware: Hardware, shape: ModelShape) -> HardwareCost:
        """By the maker's numbers, behind the effective link: what a planner believes that has measured nothing."""
        link = hardware.link
        rates = (hardware.peak_flops, hardware.peak_memory_bytes_per_s, link.h2d_bytes_per_s, link.d2h_bytes_per_s)
        return HardwareCost(shape, *rates, spread=1.0)

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        shape = self.shape
        matrices_s = max(
            shape.mean_layer_bytes / self.memory_bytes_per_s,
            2.0 * shape.layer_parameters * load.num_tokens / self.flops,
        )
        kv_bytes = load.num_context_tokens * shape.kv_bytes_per_token / shape.num_layers
        # Query times key and weight times value, two operations each, over the context that a token sees on average.
        rows = load.num_tokens / load.num_sequences
        seen = load.num_context_tokens / load.num_sequences - (rows - 1) / 2
        operations = 4.0 * load.num_tokens * seen * shape.num_heads * shape.head_dim
        attention_s = max(kv_bytes / self.memory_bytes_per_s, operations / self.flops)
        return (matrices_s + attention_s + self.layer_fixed_s) * self._factor(quantile)

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """The same: copy engines of an accelerator take nothing that counts from its memory's bandwidth."""
        return self.layer_s(load, quantile)

    def head_s(self, num_rows: int, quantile: Quantile) -> float:
        parameters = self.shape.vocab_size * self.shape.hidden_size
        read_s = self.shape.head_bytes / self.memory_bytes_per_s
        return max(read_s, 2.0 * parameters * num_rows / self.flops) * self._factor(quantile)

    def fixed_s(self) -> float:
        return self.step_fixed_s

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:
        rate = self.h2d_bytes_per_s if direction is Direction.H2D else self.d2h_bytes_per_s
        return rate / self._factor(quantile)

    def _factor(self, quantile: Quantile) -> float:
        return self.spread if quantile is Quantile.P95 else 1.0
