"""How a decoder gets at the weights of its layers while it computes a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.layers.slab import Slab


class LayerAccess(Protocol):
    """Layers are acquired and released in their order, each at most once a step."""

    @property
    def streamed_layers(self) -> tuple[int, ...]:
        """Which layers may have to be waited for and lie elsewhere each time, ascending; the same object as long as all
        others stay where they are. Changes between steps only."""

    def acquire(self, layer: int) -> Slab:
        """The layer's slab, once its bytes are there; at once where the layer is not streamed.

        Raises:
            OffloadError: they cannot be had.
        """

    def release(self, layer: int) -> None:
        """The layer was computed; its slab must not be read any more."""


class ResidentLayers:
    """Every layer stays where it is."""

    def __init__(self, slabs: Sequence[Slab]) -> None:
        self._slabs = tuple(slabs)

    @property
    def streamed_layers(self) -> tuple[int, ...]:
        return ()

    def acquire(self, layer: int) -> Slab:
        return self._slabs[layer]

    def release(self, layer: int) -> None:
        """Nothing to do."""
