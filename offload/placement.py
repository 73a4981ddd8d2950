"""Where the weights are for a number of streamed layers: bytes on the device, on the host and over the link."""

from __future__ import annotations

import itertools

from offload.arena import aligned
from offload.model_shape import ModelShape
from offload.residency import ResidencyOrder
from offload.streamed_unit import StreamedUnit


class Placement:
    """An order of layers, a unit of each, and slots. The first k layers of the order have their unit on the host."""

    def __init__(
        self, shape: ModelShape, num_slots: int, *, num_parts: int | None = None, order: ResidencyOrder | None = None
    ) -> None:
        """
        Args:
            num_slots: 0 where nothing is ever streamed.
            num_parts: of the end of a slab that make a unit; None: the whole layer.
            order: which layers are streamed first; None: spread evenly for every k.
        """
        self.shape = shape
        self.num_slots = num_slots
        self.num_parts = shape.num_parts if num_parts is None else num_parts
        self.unit_bytes = shape.tail_bytes(self.num_parts)
        self.slot_bytes = aligned(max(self.unit_bytes))
        self.order = order or ResidencyOrder.spread(shape.num_layers)
        sizes = (self.unit_bytes[layer] for layer in self.order.layers)
        self._host_bytes = tuple(itertools.accumulate(sizes, initial=0))

    @property
    def is_whole(self) -> bool:
        """Units are layers."""
        return self.num_parts == self.shape.num_parts

    @property
    def share(self) -> float:
        """Of the layers' bytes that units are."""
        return sum(self.unit_bytes) / sum(self.shape.layer_bytes)

    @property
    def slots_bytes(self) -> int:
        return self.num_slots * self.slot_bytes

    def host_bytes(self, k: int) -> int:
        """Of the units on the host."""
        return self._host_bytes[k]

    def copied_bytes(self, k: int) -> int:
        """To the device in each step: none where every unit has a slot and stays there."""
        return self._host_bytes[k] if k > self.num_slots else 0

    def net_freed_bytes(self, k: int) -> int:
        """Device memory that streaming frees, slots paid for."""
        return self._host_bytes[k] - self.slots_bytes

    def resident_bytes(self, k: int) -> int:
        """Of the layers that stay on the device."""
        return sum(self.shape.layer_bytes) - self._host_bytes[k]

    def device_bytes(self, k: int) -> int:
        """All weights on the device, slots included."""
        return self.shape.fixed_bytes + self.resident_bytes(k) + self.slots_bytes

    def units(self, k: int) -> tuple[StreamedUnit, ...]:
        """What is streamed, by layer."""
        return tuple(
            StreamedUnit(layer, self.unit_bytes[layer], self.shape.layer_bytes[layer] - self.unit_bytes[layer])
            for layer in sorted(self.order.streamed(k))
        )
