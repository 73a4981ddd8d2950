"""Quantised matrices in tiles: the values are those of the file, whatever it holds."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.linear import packed_bytes
from kernels.quantised.activations import round_activations
from kernels.quantised.block_type import BLOCK_TYPES, Q4_1, Q4_K, Q8_0, BlockType
from kernels.quantised.float_blocks import quantise_rows
from kernels.quantised.tiled_blocks import TiledBlocks
from tests.quantised_blocks import assert_same_bits, pack, random_blocks, sane_blocks
from tests.strided import randn

block_types = pytest.mark.parametrize("block_type", BLOCK_TYPES.values(), ids=BLOCK_TYPES)


def dequantised(block_type: BlockType, blocks: Tensor) -> Tensor:
    """What the gguf package makes of the blocks."""
    with np.errstate(all="ignore"):
        numbers = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[block_type.name])
    return torch.from_numpy(numbers)


@block_types
@given(num_rows=st.integers(1, 40), num_blocks=st.integers(1, 3), seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_every_block_keeps_its_values_to_the_bit(
    block_type: BlockType, num_rows: int, num_blocks: int, seed: int
) -> None:
    in_features = num_blocks * block_type.block_size
    blocks = random_blocks(block_type, num_rows, in_features, seed)
    expected = dequantised(block_type, blocks)
    matrix = pack(block_type, blocks, in_features)
    assert_same_bits(matrix.unpack(), expected)
    rows = torch.randint(0, num_rows, (7,), generator=torch.Generator().manual_seed(seed))
    assert_same_bits(matrix.gather(rows), expected[rows])


@block_types
def test_tiles_take_about_the_bytes_of_the_file(block_type: BlockType) -> None:
    assert gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[block_type.name]] == (
        block_type.block_size,
        block_type.block_bytes,
    )
    assert 1 <= block_type.tiled_row_bytes(512) / block_type.stored_row_bytes(512) <= 1.05


@block_types
def test_pieces_of_whole_tiles_are_packed_like_the_whole(block_type: BlockType) -> None:
    blocks = sane_blocks(block_type, 37, 512, seed=3)
    parts = [pack(block_type, part, 512).data for part in (blocks[:16], blocks[16:32], blocks[32:])]
    assert torch.equal(torch.cat(parts), pack(block_type, blocks, 512).data)


def test_rows_without_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 48 numbers; Q8_0 needs a multiple of 32"):
        TiledBlocks(Q8_0).row_bytes(48)
    with pytest.raises(ValueError, match="rows of 96 numbers; Q4_K needs a multiple of 256"):
        packed_bytes(TiledBlocks(Q4_K), 4, 96)
    with pytest.raises(ValueError, match="rows of 40 numbers; Q4_1 needs a multiple of 32"):
        quantise_rows(Q4_1, torch.zeros(2, 40))


@pytest.mark.parametrize(("block_type", "num_steps"), [(Q8_0, 254), (Q4_1, 15)], ids=["int8", "int4"])
@given(exponent=st.integers(-10, 10), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_numbers_are_rounded_to_the_nearest_code(
    block_type: BlockType, num_steps: int, exponent: int, seed: int
) -> None:
    numbers = randn(seed, 5, 64) * 2.0**exponent
    matrix = pack(block_type, numbers, 64)
    groups, rounded = numbers.view(5, 2, 32), matrix.unpack().view(5, 2, 32)
    spread = groups.abs().amax(-1) * 2 if block_type == Q8_0 else groups.amax(-1) - groups.amin(-1)
    # half a step, and what float16 rounds off the scale and the minimum
    bound = spread / num_steps / 2 + groups.abs().amax(-1) * 2**-10 + 2.0**-24
    assert bool(((groups - rounded).abs() <= bound[..., None]).all())


def test_numbers_that_are_all_equal_stay_so() -> None:
    for number in (0.0, 1.0, -0.375):
        for block_type in (Q8_0, Q4_1):
            rounded = pack(block_type, torch.full((3, 32), number), 32).unpack()
            torch.testing.assert_close(rounded, torch.full((3, 32), number), rtol=1e-3, atol=0)


def test_numbers_are_quantised_to_two_formats_only() -> None:
    with pytest.raises(ValueError, match="to Q8_0 or Q4_1, not to Q4_K"):
        quantise_rows(Q4_K, torch.zeros(1, 256))


@given(exponent=st.integers(-140, 120), shift=st.sampled_from([0.0, 3.0, -200.0]), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_activations_are_rounded_as_defined(exponent: int, shift: float, seed: int) -> None:
    x = (randn(seed, 3, 96) + shift) * 2.0**exponent
    x[1, 32:64] = 0
    largest, codes, scales = reference.quantise_activations(x)
    numbers = largest + codes * scales.repeat_interleave(32, dim=1)
    assert torch.equal(round_activations(x), numbers)
    assert torch.equal(codes, codes.round()) and codes.abs().max() <= 127
    assert not numbers[1, 32:64].any()
    assert not codes[largest != 0].any()
    assert torch.equal(largest[largest != 0], x[largest != 0])
    groups = (x - largest).view(3, 3, 32)
    bound = groups.abs().amax(-1) * (1.001 / 254) + 2.0**-118
    assert bool(((numbers.view(3, 3, 32) - x.view(3, 3, 32)).abs() <= bound[..., None]).all())


def test_numbers_that_stand_out_cost_the_others_no_precision() -> None:
    x = randn(1, 2, 64)
    x[0, [5, 7, 40, 41, 42, 63]] = torch.tensor([500.0, -300.0, 20.0, 80.0, -90.0, 1000.0])
    rounded = round_activations(x)
    assert torch.equal(rounded[0, [5, 7, 40, 41, 42, 63]], x[0, [5, 7, 40, 41, 42, 63]])
    assert (rounded - x).abs().max() <= 4 / 127 / 2


def test_of_equal_numbers_the_first_stay_as_they_are() -> None:
    x = torch.tensor([0.1, -3.0, 3.0] + [0.0] * 29 + [3.0] * 32)[None]
    largest, _, _ = reference.quantise_activations(x)
    assert largest.nonzero()[:, 1].tolist() == [1, 2, 32, 33, 34, 35]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_not_rounded_away(value: float) -> None:
    x = randn(0, 3, 64)
    x[0, 40] = value
    x[1, 33:] = value
    rounded = round_activations(x)
    assert not rounded[0, 40].isfinite() and not rounded[1, 32:].isfinite().any()
    assert rounded[0, :40].isfinite().all() and rounded[1, :32].isfinite().all() and rounded[2].isfinite().all()


@block_types
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_product_in_pytorch_is_that_of_the_rounded_activations(block_type: BlockType, dtype: torch.dtype) -> None:
    matrix = pack(block_type, sane_blocks(block_type, 21, 256, seed=1), 256)
    x, bias = randn(2, 4, 256).to(dtype), randn(3, 21)
    expected = reference.quantised_linear(x, matrix.unpack(), bias)
    out = matrix.linear(x, bias)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-3)
