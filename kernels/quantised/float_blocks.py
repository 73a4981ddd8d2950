"""Numbers rounded to blocks of integers: what `--quantize` does with the weights of a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quantised.block_type import GROUP_SIZE, Q4_1, Q8_0, BlockType


def quantise_rows(block_type: BlockType, rows: Tensor) -> Tensor:
    """Rows [R, K] of numbers as blocks of a GGUF file: [R, stored_row_bytes] uint8.

    Args:
        block_type: Q8_0: 8 bits, symmetric, the largest magnitude is code 127. Q4_1: 4 bits, from each group's least to
            its largest number.

    Raises:
        ValueError: another format, or rows without whole groups.
    """
    block_type.stored_row_bytes(rows.shape[1])
    groups = rows.float().view(len(rows), -1, GROUP_SIZE)
    if block_type == Q8_0:
        parts = _quantise_8(groups)
    elif block_type == Q4_1:
        parts = _quantise_4(groups)
    else:
        raise ValueError(f"numbers are quantised to {Q8_0.name} or {Q4_1.name}, not to {block_type.name}")
    return torch.cat(parts, dim=-1).flatten(1)


def _quantise_8(groups: Tensor) -> tuple[Tensor, ...]:
    scale, inverse = _half_scale(groups.abs().amax(dim=-1, keepdim=True) / 127)
    codes = torch.round(groups * inverse).clamp_(-127, 127).to(torch.int8)
    return scale, codes.view(torch.uint8)


def _quantise_4(groups: Tensor) -> tuple[Tensor, ...]:
    least, largest = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    minimum = least.half()
    scale, inverse = _half_scale((largest - minimum.float()) / 15)
    codes = torch.round((groups - minimum.float()) * inverse).clamp_(0, 15).to(torch.uint8)
    nibbles = codes[..., : GROUP_SIZE // 2] | codes[..., GROUP_SIZE // 2 :] << 4
    return scale, minimum.view(torch.uint8), nibbles


def _half_scale(scale: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of a float16 scale, and the inverse of what they stand for; 0 where that is 0."""
    half = scale.half()
    return half.view(torch.uint8), torch.where(half == 0, torch.zeros_like(scale), 1 / half.float())
