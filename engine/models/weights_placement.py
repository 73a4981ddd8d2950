"""Where a decoder's weights lie: how many bytes they take, and who gives the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.layers.layer_access import LayerAccess, ResidentLayers
from engine.layers.layer_layout import LayerLayout, aligned
from engine.layers.slab import Slab
from offload.host_memory import allocate_host


@dataclasses.dataclass(frozen=True, slots=True)
class WeightSizes:
    """Of one decoder, known before any of it is read."""

    fixed_bytes: int
    """Embedding, head where it is not the embedding, norms and biases, each at an aligned offset."""
    layouts: tuple[LayerLayout, ...]
    """Of every layer's slab."""

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        return tuple(layout.num_bytes for layout in self.layouts)

    @property
    def layer_part_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Of every layer, the bytes from one place where it may be cut to the next; as many parts in all."""
        splits_gate = all(layout.can_split_gate for layout in self.layouts)
        return tuple(layout.part_bytes(splits_gate) for layout in self.layouts)


class WeightsPlacement(Protocol):
    """Memory for the weights of one decoder."""

    @property
    def fixed(self) -> Tensor:
        """[fixed_bytes] uint8: never streamed."""

    @property
    def slabs(self) -> tuple[Slab, ...]:
        """Of every layer, where loading writes."""

    def loaded(self) -> LayerAccess:
        """All is written: how the decoder reads it. Called once."""


PlaceWeights = Callable[[WeightSizes], WeightsPlacement]


class HostPlacement:
    """Everything in one region that stays."""

    def __init__(self, sizes: WeightSizes, allocate: Callable[[int], Tensor] = allocate_host) -> None:
        """
        Args:
            allocate: makes the region, [n] uint8.

        Raises:
            MemoryError: it cannot be had.
        """
        fixed_bytes = aligned(sizes.fixed_bytes)
        region = allocate(fixed_bytes + sum(sizes.layer_bytes))
        self.fixed = region[: sizes.fixed_bytes]
        self.slabs = tuple(map(Slab.whole, torch.split(region[fixed_bytes:], list(sizes.layer_bytes))))

    def loaded(self) -> LayerAccess:
        """Every layer where it was loaded."""
        return ResidentLayers(self.slabs)
