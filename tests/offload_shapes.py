"""Small models and machines for tests of the planner, with round numbers."""

from __future__ import annotations

import dataclasses

from offload.model_shape import ModelShape
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.target import ClassTarget
from offload.transfer import Direction

MB = 10**6
REALTIME = ClassTarget("realtime", 0.4, 0.1, 0.030, "refuse")
INTERACTIVE = ClassTarget("interactive", 1.0, 0.2, 0.050, "degrade")
STANDARD = ClassTarget("standard", 3.0, 0.3, 0.080, "queue")
BATCH = ClassTarget("batch", 600.0, 0.0, 0.400, "queue")
CLASSES = (REALTIME, INTERACTIVE, STANDARD, BATCH)


def make_shape(
    layer_bytes: tuple[int, ...] = (10 * 1024 * 1024,) * 16,
    *,
    parts: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25),
    max_position_tokens: int = 4096,
    kv_bytes_per_token: int = 16 * 1024,
) -> ModelShape:
    """16 layers of 10 MiB in four equal parts; 20 MB that stay; KV of 256 KiB a block of 16."""
    heads = [[int(share * size) for share in parts[:-1]] for size in layer_bytes]
    cut = tuple((*head, size - sum(head)) for head, size in zip(heads, layer_bytes, strict=True))
    return ModelShape(
        name="toy",
        layer_bytes=layer_bytes,
        fixed_bytes=20 * MB,
        kv_bytes_per_token=kv_bytes_per_token,
        max_position_tokens=max_position_tokens,
        layer_parameters=5 * 1024 * 1024,
        hidden_size=512,
        num_heads=8,
        num_kv_heads=8,
        head_dim=64,
        vocab_size=8192,
        bytes_per_parameter=2.0,
        layer_part_bytes=cut if parts else (),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FlatCost:
    """A layer takes as long whatever it computes, but for a slope by rows. P95 is `spread` times the median."""

    layer: float = 1e-3
    per_row: float = 10e-6
    head: float = 2e-3
    fixed: float = 1e-3
    rate: float = 1e9
    spread: float = 1.0
    slowdown: float = 1.0
    """Of layers while the link copies."""

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        return self.slowdown * self.quiet_layer_s(load, quantile)

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        return (self.layer + self.per_row * (load.num_tokens - load.num_sequences)) * self._factor(quantile)

    def head_s(self, num_rows: int, quantile: Quantile) -> float:
        return self.head * self._factor(quantile)

    def fixed_s(self) -> float:
        return self.fixed

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:
        return self.rate / self._factor(quantile)

    def _factor(self, quantile: Quantile) -> float:
        return self.spread if quantile is Quantile.P95 else 1.0
