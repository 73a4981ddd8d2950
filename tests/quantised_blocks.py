"""Random rows of quantised blocks, as a GGUF file stores them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.linear import packed_bytes
from kernels.packed_matrix import PackedMatrix
from kernels.quantised.block_type import BlockType, ScaleKind
from kernels.quantised.tiled_blocks import TiledBlocks


def random_blocks(block_type: BlockType, num_rows: int, in_features: int, seed: int) -> Tensor:
    """[num_rows, stored_row_bytes] uint8: every byte random, so scales are anything, infinite and NaN too."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(
        generator.integers(0, 256, (num_rows, block_type.stored_row_bytes(in_features)), dtype=np.uint8)
    )


def sane_blocks(block_type: BlockType, num_rows: int, in_features: int, seed: int) -> Tensor:
    """As `random_blocks`, with scales as weights have them: the numbers' spread is about 1."""
    blocks = random_blocks(block_type, num_rows, in_features, seed)
    num_halves = block_type.scale_kind.num_halves
    start = 208 if block_type.scale_kind == ScaleKind.TWO_LEVEL else 0
    levels = {ScaleKind.TWO_LEVEL: 127, ScaleKind.TWO_LEVEL_WITH_MINIMUM: 63}.get(block_type.scale_kind, 1)
    rows = blocks.view(num_rows, -1, block_type.block_bytes)
    generator = np.random.default_rng(seed + 1)
    halves: npt.NDArray[np.float32] = generator.uniform(1, 4, (*rows.shape[:2], num_halves)).astype(np.float32)
    halves[..., 0] *= 2.0**-block_type.bits / levels * generator.choice([1, -1], rows.shape[:2])
    halves[..., 1:] /= -levels
    rows[..., start : start + 2 * num_halves] = torch.from_numpy(halves).half().view(torch.uint8)
    return blocks


def pack(block_type: BlockType, blocks: Tensor, in_features: int) -> PackedMatrix:
    """In a buffer of just its size, so that a sanitizer sees an access past it."""
    weight_format = TiledBlocks(block_type)
    data = torch.full((packed_bytes(weight_format, len(blocks), in_features),), 255, dtype=torch.uint8)
    weight_format.pack(blocks, data)
    return PackedMatrix(weight_format, len(blocks), in_features, data)


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal float32 numbers, bit by bit; of a NaN only that it is one."""
    assert actual.shape == expected.shape
    assert torch.equal(actual.isnan(), expected.isnan())
    is_number = ~expected.isnan()
    assert torch.equal(actual.view(torch.int32)[is_number], expected.view(torch.int32)[is_number])
