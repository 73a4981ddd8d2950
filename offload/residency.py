"""Which layers are streamed: an order, of which the first k are.

The sets of different k are nested, so that k + 1 and k - 1 move one layer each. Streamed layers should lie evenly: the
copy of one then hides under the computation of as many others as can be. The radical inverse of 0, 1, 2, ... in base 2
(van der Corput's sequence) is even at every length; it starts at the last layer, as the layout of Select-N does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class ResidencyOrder:
    """All layers of a decoder, the first to be streamed first.

    Raises:
        ValueError: a layer is missing, or there twice.
    """

    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.layers or sorted(self.layers) != list(range(len(self.layers))):
            raise ValueError(f"{self.layers} is not an order of all layers from 0 on")

    @staticmethod
    def spread(num_layers: int) -> ResidencyOrder:
        """Evenly for every k."""
        return ResidencyOrder(_spread(range(num_layers)))

    @staticmethod
    def of_interval(num_layers: int, interval: int) -> ResidencyOrder:
        """With `interval_layout` as its first layers, spread among themselves as the others are."""
        first = interval_layout(num_layers, interval)
        return ResidencyOrder(_spread(first) + _spread(set(range(num_layers)).difference(first)))

    def streamed(self, k: int) -> frozenset[int]:
        """The layers that are streamed when k are.

        Raises:
            ValueError: there are not k layers.
        """
        if not 0 <= k <= len(self.layers):
            raise ValueError(f"{k} layers to stream, the model has {len(self.layers)}")
        return frozenset(self.layers[:k])


def interval_layout(num_layers: int, interval: int) -> tuple[int, ...]:
    """The last of every `interval` layers, ascending: the layout of Select-N. Layers beyond the last whole group stay.

    Raises:
        ValueError: the interval is not at least 1.
    """
    if interval < 1:
        raise ValueError(f"the interval is {interval}, it must be at least 1")
    return tuple(range(interval - 1, num_layers, interval))


def _spread(layers: Iterable[int]) -> tuple[int, ...]:
    """From the last on, by the bits of 0, 1, 2, ... reversed."""
    ordered = sorted(layers, reverse=True)
    num_bits = (len(ordered) - 1).bit_length() if ordered else 0
    places = (int(f"{n:0{num_bits}b}"[::-1], 2) * len(ordered) >> num_bits for n in range(2**num_bits))
    return tuple(ordered[place] for place in dict.fromkeys(places)) if ordered else ()
