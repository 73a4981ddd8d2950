"""The number formats of GGUF files that are multiplied as they are stored.

Elements along a row come in blocks; a block holds codes, unsigned integers of few bits, and scales. Groups of 32
elements (16 for Q6_K) share a scale:

    value = scale * (code - offset) + minimum

Source: ggml (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

import dataclasses
import enum
from types import MappingProxyType

GROUP_SIZE = 32
"""Elements that activations share a scale over; a block holds one or eight groups."""


class ScaleKind(enum.Enum):
    """How the scales of a block are stored: numbers of float16, and of bytes after them."""

    PLAIN = (1, 0)
    """A scale."""
    WITH_MINIMUM = (2, 0)
    """A scale and a minimum."""
    TWO_LEVEL = (1, 16)
    """A factor, and a signed byte for the scale of each 16 elements."""
    TWO_LEVEL_WITH_MINIMUM = (2, 16)
    """Factors of scales and minima; an unsigned byte for each group's scale, then for each one's minimum, which is
    subtracted. Packed in 6 bits in the file, a byte each in tiles."""

    @property
    def num_halves(self) -> int:
        return self.value[0]

    @property
    def num_bytes(self) -> int:
        return self.value[1]

    @property
    def has_minimum(self) -> bool:
        return self in (ScaleKind.WITH_MINIMUM, ScaleKind.TWO_LEVEL_WITH_MINIMUM)

    @property
    def unit_bytes(self) -> int:
        """Of a block's scales in a tile, a row's share."""
        return 2 * self.num_halves + self.num_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class BlockType:
    """One number format."""

    name: str
    """As ggml calls it."""
    native_code: int
    """`hr_format` of kernels/csrc/headrace.h."""
    bits: int
    """Of a code."""
    offset: int
    scale_kind: ScaleKind
    block_size: int
    """Elements."""
    block_bytes: int
    """In the file."""

    @property
    def groups_per_block(self) -> int:
        return self.block_size // GROUP_SIZE

    @property
    def code_bytes(self) -> int:
        """Of a group's codes, one row's share."""
        return self.bits * GROUP_SIZE // 8

    def stored_row_bytes(self, in_features: int) -> int:
        """Of a row in the file.

        Raises:
            ValueError: it does not hold whole blocks.
        """
        return self._num_blocks(in_features) * self.block_bytes

    def tiled_row_bytes(self, in_features: int) -> int:
        """A row's share of a tile.

        Raises:
            ValueError: it does not hold whole blocks.
        """
        block_bytes = self.groups_per_block * self.code_bytes + self.scale_kind.unit_bytes
        return self._num_blocks(in_features) * block_bytes

    def _num_blocks(self, in_features: int) -> int:
        if in_features % self.block_size:
            raise ValueError(f"rows of {in_features} numbers; {self.name} needs a multiple of {self.block_size}")
        return in_features // self.block_size


Q8_0 = BlockType("Q8_0", 8, 8, 128, ScaleKind.PLAIN, 32, 34)
Q4_0 = BlockType("Q4_0", 9, 4, 8, ScaleKind.PLAIN, 32, 18)
Q4_1 = BlockType("Q4_1", 10, 4, 0, ScaleKind.WITH_MINIMUM, 32, 20)
Q5_0 = BlockType("Q5_0", 11, 5, 16, ScaleKind.PLAIN, 32, 22)
Q5_1 = BlockType("Q5_1", 12, 5, 0, ScaleKind.WITH_MINIMUM, 32, 24)
Q4_K = BlockType("Q4_K", 13, 4, 0, ScaleKind.TWO_LEVEL_WITH_MINIMUM, 256, 144)
Q5_K = BlockType("Q5_K", 14, 5, 0, ScaleKind.TWO_LEVEL_WITH_MINIMUM, 256, 176)
Q6_K = BlockType("Q6_K", 15, 6, 32, ScaleKind.TWO_LEVEL, 256, 210)

BLOCK_TYPES = MappingProxyType({kind.name: kind for kind in (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)})
