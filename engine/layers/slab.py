"""The bytes of a layer's matrices, wherever they lie."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """One slab in two parts that may be apart: what always stays on the device, and what may be streamed.

    Equal only to itself: decoders keep what they derive from a slab by the slab.
    """

    head: Tensor
    """[n] uint8: the first bytes."""
    tail: Tensor
    """[m] uint8: the others."""

    @staticmethod
    def whole(memory: Tensor) -> Slab:
        """In one piece; `memory` [n] uint8."""
        return Slab(memory, torch.empty(0, dtype=torch.uint8, device=memory.device))

    @property
    def num_bytes(self) -> int:
        return len(self.head) + len(self.tail)

    def part(self, first_byte: int, num_bytes: int) -> Tensor:
        """A view [num_bytes] uint8.

        Raises:
            ValueError: it is not within one part.
        """
        cut = len(self.head)
        part, start = (self.head, first_byte) if first_byte + num_bytes <= cut else (self.tail, first_byte - cut)
        if start < 0 or start + num_bytes > len(part):
            raise ValueError(
                f"bytes {first_byte:,} to {first_byte + num_bytes:,} are not in one part of a slab of {cut:,} and "
                f"{len(self.tail):,} bytes"
            )
        return part[start : start + num_bytes]
