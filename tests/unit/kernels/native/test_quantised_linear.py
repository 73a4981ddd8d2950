"""Native kernels of quantised matrices against their definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.native.activation import Activation
from kernels.native.gather import gather
from kernels.native.linear import gated_linear, linear
from kernels.native.quantised import pack_blocks
from kernels.native_library import NativeLibrary
from kernels.quantised.block_type import BLOCK_TYPES, Q4_1, Q8_0, BlockType
from kernels.quantised.tiled_blocks import TiledBlocks
from tests.quantised_blocks import assert_same_bits, pack, random_blocks, sane_blocks
from tests.strided import randn, strided

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
block_types = pytest.mark.parametrize("block_type", BLOCK_TYPES.values(), ids=BLOCK_TYPES)


@block_types
@given(num_rows=st.integers(1, 40), num_blocks=st.integers(1, 3), seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_blocks_are_packed_and_read_as_defined(
    library: NativeLibrary, block_type: BlockType, num_rows: int, num_blocks: int, seed: int
) -> None:
    in_features = num_blocks * block_type.block_size
    blocks = random_blocks(block_type, num_rows, in_features, seed)
    matrix = pack(block_type, blocks, in_features)
    packed = torch.full_like(matrix.data, 255)
    pack_blocks(library, TiledBlocks(block_type), blocks, in_features, packed)
    assert torch.equal(packed, matrix.data)
    rows = torch.randint(0, num_rows, (9,), generator=torch.Generator().manual_seed(seed))
    out = strided(torch.empty(9, in_features), 3)
    gather(library, matrix, rows, out)
    assert_same_bits(out.contiguous(), matrix.gather(rows))


@block_types
@given(
    num_rows=st.one_of(st.integers(1, 20), st.integers(60, 300)),
    num_blocks=st.integers(1, 4),
    out_features=st.integers(1, 90),
    x_dtype=st.sampled_from(DTYPES),
    out_dtype=st.sampled_from(DTYPES),
    exponent=st.sampled_from([0, 0, -3, 5]),
    has_bias=st.booleans(),
    accumulate=st.booleans(),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_linear(
    library: NativeLibrary,
    block_type: BlockType,
    num_rows: int,
    num_blocks: int,
    out_features: int,
    x_dtype: torch.dtype,
    out_dtype: torch.dtype,
    exponent: int,
    has_bias: bool,
    accumulate: bool,
    padding: int,
    seed: int,
) -> None:
    in_features = num_blocks * block_type.block_size
    matrix = pack(block_type, sane_blocks(block_type, out_features, in_features, seed), in_features)
    weight = matrix.unpack()
    x = strided((randn(seed + 1, num_rows, in_features) * 2.0**exponent).to(x_dtype), padding)
    bias = randn(seed + 2, out_features) if has_bias else None
    before = randn(seed + 3, num_rows, out_features).to(torch.float32 if accumulate else out_dtype)
    out = strided(before, padding)
    expected = reference.quantised_linear(x, weight, bias)
    linear(library, x, matrix, out, bias, accumulate=accumulate)
    if accumulate:
        expected = expected + before.double()
    assert_near(out, expected, x, weight)
    whole = out._base
    assert whole is not None and torch.isnan(whole[:, out_features:]).all()


def assert_near(out: Tensor, expected: Tensor, x: Tensor, weight: Tensor) -> None:
    """Within what float32 sums of these magnitudes and the result's type round off."""
    magnitude = x.float().abs().sum(dim=1)[:, None] * weight.abs().amax(dim=1) + 1
    bound = 2e-6 * magnitude + ROUNDING[out.dtype] * expected.abs()
    assert bool(((out.double() - expected).abs() <= bound).all())


@block_types
@given(
    num_rows=st.one_of(st.integers(1, 20), st.integers(60, 150)),
    out_features=st.integers(1, 90),
    other=st.sampled_from([None, None, Q8_0]),
    has_bias=st.booleans(),
    activation=st.sampled_from(Activation),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=6, deadline=None, derandomize=True)
def test_gated_linear(
    library: NativeLibrary,
    block_type: BlockType,
    num_rows: int,
    out_features: int,
    other: BlockType | None,
    has_bias: bool,
    activation: Activation,
    seed: int,
) -> None:
    gate = pack(block_type, sane_blocks(block_type, out_features, 256, seed), 256)
    up = pack(other or block_type, sane_blocks(other or block_type, out_features, 256, seed + 9), 256)
    x = strided(randn(seed + 1, num_rows, 256).bfloat16(), 3)
    biases = (randn(seed + 2, out_features), randn(seed + 3, out_features)) if has_bias else None
    halves = torch.empty(2, num_rows, out_features)
    for half, matrix, index in zip(halves, (gate, up), (0, 1), strict=True):
        linear(library, x, matrix, half, biases[index] if biases else None)
    definition = reference.silu_gate if activation is Activation.SILU else reference.gelu_tanh_gate
    out = strided(torch.empty(num_rows, out_features), 2)
    gated_linear(library, x, gate, up, out, biases, activation)
    torch.testing.assert_close(out, definition(torch.cat(tuple(halves), dim=1)), rtol=1e-5, atol=1e-5)
    whole = out._base
    assert whole is not None and torch.isnan(whole[:, out_features:]).all()


@block_types
@given(num_rows=st.integers(2, 300), first=st.integers(0, 299), seed=st.integers(0, 2**31))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_a_row_has_the_same_bits_in_every_company(
    library: NativeLibrary, block_type: BlockType, num_rows: int, first: int, seed: int
) -> None:
    matrix = pack(block_type, sane_blocks(block_type, 100, 512, seed), 512)
    x = randn(seed + 1, num_rows, 512)
    together, some = torch.empty(num_rows, 100), slice(first % num_rows, num_rows)
    linear(library, x, matrix, together)
    alone = torch.empty(len(x[some]), 100)
    linear(library, x[some].clone(), matrix, alone)
    assert torch.equal(alone, together[some])


@block_types
def test_extreme_codes_do_not_overflow(library: NativeLibrary, block_type: BlockType) -> None:
    for byte in (0x00, 0xFF, 0x80, 0x7F):
        blocks = sane_blocks(block_type, 16, 256, seed=5)
        scaled = blocks.view(16, -1, block_type.block_bytes)
        start = 2 * block_type.scale_kind.num_halves if block_type.block_size == 32 else 16
        scaled[..., start : block_type.block_bytes - (18 if block_type.name == "Q6_K" else 0)] = byte
        matrix = pack(block_type, blocks, 256)
        x = torch.ones(3, 256)
        x[1], x[2, ::2] = -1, -1
        out = torch.empty(3, 16)
        linear(library, x, matrix, out)
        assert_near(out, reference.quantised_linear(x, matrix.unpack()), x, matrix.unpack())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_shows_in_its_row_alone(library: NativeLibrary, value: float) -> None:
    matrix = pack(Q4_1, sane_blocks(Q4_1, 48, 96, seed=1), 96)
    x = randn(1, 7, 96)
    x[3, 70] = value
    x[5, 20:90] = value
    out = torch.empty(7, 48)
    linear(library, x, matrix, out)
    assert not out[[3, 5]].isfinite().any()
    assert out[[0, 1, 2, 4, 6]].isfinite().all()


@block_types
def test_the_numbers_that_stand_out_are_multiplied_as_they_are(library: NativeLibrary, block_type: BlockType) -> None:
    matrix = pack(block_type, sane_blocks(block_type, 90, 512, seed=1), 512)
    x = torch.zeros(13, 512)
    columns = torch.stack([torch.randperm(512, generator=torch.Generator().manual_seed(row))[:6] for row in range(13)])
    x.scatter_(1, columns, randn(2, 13, 6) * 1000)
    out = torch.empty(13, 90)
    linear(library, x, matrix, out)
    assert_near(out, x.double() @ matrix.unpack().double().T, x, matrix.unpack())


@block_types
def test_equal_magnitudes_are_told_apart_by_their_place(library: NativeLibrary, block_type: BlockType) -> None:
    matrix = pack(block_type, sane_blocks(block_type, 33, 256, seed=4), 256)
    x = (randn(3, 9, 256) * 2).round()  # many equal ones
    out = torch.empty(9, 33)
    linear(library, x, matrix, out)
    assert_near(out, reference.quantised_linear(x, matrix.unpack()), x, matrix.unpack())


def test_tiny_and_huge_activations(library: NativeLibrary) -> None:
    matrix = pack(Q4_1, sane_blocks(Q4_1, 16, 64, seed=1), 64)
    x = randn(1, 4, 64) * torch.tensor([2.0**-140, 2.0**-110, 2.0**100, 0.0])[:, None]
    out = torch.empty(4, 16)
    linear(library, x, matrix, out)
    assert out[0].abs().max() < 2.0**-110 and not out[3].any()
    scale = torch.tensor([2.0**110, 2.0**-100])[:, None]
    expected = reference.quantised_linear(x[1:3], matrix.unpack()) * scale
    torch.testing.assert_close((out[1:3] * scale).double(), expected, rtol=0, atol=1e-3)


def test_what_does_not_fit_is_refused(library: NativeLibrary) -> None:
    blocks = sane_blocks(Q4_1, 20, 64, seed=1)
    out = torch.empty(32 * 40, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"blocks has shape \(20, 40\), expected \(20, 60\)"):
        pack_blocks(library, TiledBlocks(Q4_1), blocks, 96, out)
    with pytest.raises(ValueError, match=r"out has shape \(1279,\), expected \(1280,\)"):
        pack_blocks(library, TiledBlocks(Q4_1), blocks, 64, out[:-1])
    with pytest.raises(ValueError, match="blocks is not contiguous"):
        pack_blocks(library, TiledBlocks(Q4_1), blocks[::2], 64, out[: 16 * 40])
