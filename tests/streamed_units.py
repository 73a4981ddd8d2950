"""A weight streamer over numbers that say whose they are: reading anything else shows."""

from __future__ import annotations

import torch
from torch import Tensor

from offload.link import Link
from offload.streamed_unit import StreamedUnit
from offload.weight_streamer import WeightStreamer

BYTES_PER_S = 1e6


class StreamedUnits:
    """Units of layers 0..L-1; every unit's bytes are drawn with the layer as seed."""

    def __init__(self, link: Link, unit_bytes: list[int], num_slots: int, patience_s: float = 1e6) -> None:
        self.masters = {layer: _numbers(layer, size) for layer, size in enumerate(unit_bytes)}
        self.slots = [torch.zeros(max(unit_bytes), dtype=torch.uint8) for _ in range(num_slots)]
        self.units = [StreamedUnit(layer, size) for layer, size in enumerate(unit_bytes)]
        self.streamer = WeightStreamer(
            link, self.units, self.masters, self.slots, len(unit_bytes), patience_s=patience_s
        )
        self._held = 0

    def read(self, layer: int) -> None:
        """Compare what the slot has with the layer's numbers."""
        self._held = self.streamer.acquire(layer)
        self.streamer.check()
        self.read_held(layer)

    def read_held(self, layer: int) -> None:
        """Once more: nothing may have been written since."""
        size = self.units[layer].num_bytes
        assert torch.equal(self.slots[self._held][:size], _numbers(layer, size)), f"not the bytes of layer {layer}"

    def check(self) -> None:
        """The host's copies are never written."""
        self.streamer.check()
        for layer, master in self.masters.items():
            assert torch.equal(master, _numbers(layer, len(master)))


def _numbers(layer: int, size: int) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(layer))
