"""Norm, rotation, gate and linear against their definitions in `kernels.reference`."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.activation import gelu_tanh_gate, silu_gate
from kernels.linear import DenseFormat
from kernels.norm import rms_norm
from kernels.packed_matrix import PackedMatrix
from kernels.rotary import (
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Rope,
    inverse_frequencies,
    rotate,
    rotation,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
rows = st.integers(1, 40)
widths = st.integers(1, 70)
seeds = st.integers(0, 2**31)
bounded = settings(max_examples=30, deadline=None, derandomize=True)


def randn(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[actual.dtype], atol=TOLERANCE[actual.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=rows, width=widths, seed=seeds)
@bounded
def test_rms_norm(dtype: torch.dtype, num_rows: int, width: int, seed: int) -> None:
    x, weight = randn(seed, num_rows, width, dtype=dtype), randn(seed + 1, width, dtype=dtype)
    assert_near(rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=rows, width=widths, seed=seeds)
@bounded
def test_gates(dtype: torch.dtype, num_rows: int, width: int, seed: int) -> None:
    gate_up = randn(seed, num_rows, 2 * width, dtype=dtype)
    before = gate_up.clone()
    assert_near(silu_gate(gate_up), reference.silu_gate(gate_up))
    assert_near(gelu_tanh_gate(gate_up), reference.gelu_tanh_gate(gate_up))
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=rows, heads=st.integers(1, 4), half=st.integers(1, 20), seed=seeds, far=st.integers(0, 100_000))
@bounded
def test_rotation(dtype: torch.dtype, num_rows: int, heads: int, half: int, seed: int, far: int) -> None:
    whole = randn(seed, num_rows, heads + 1, 2 * half, dtype=dtype)
    x = whole[:, :heads]  # a strided view, as the queries and keys of a fused projection are
    positions = torch.arange(num_rows) + far
    frequencies = inverse_frequencies(2 * half, 10_000.0, None)
    actual = rotate(x, *rotation(positions, frequencies))
    assert_near(actual, reference.rotate(x, positions, frequencies))


@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=rows, inputs=widths, outputs=widths, has_bias=st.booleans(), seed=seeds)
@bounded
def test_a_dense_matrix_multiplies_from_any_place_in_a_slab(
    dtype: torch.dtype, num_rows: int, inputs: int, outputs: int, has_bias: bool, seed: int
) -> None:
    weight_format = DenseFormat(dtype)
    matrix, x = randn(seed, outputs, inputs, dtype=torch.float32), randn(seed + 1, num_rows, inputs, dtype=dtype)
    bias = randn(seed + 2, outputs, dtype=dtype) if has_bias else None
    row_bytes = weight_format.row_bytes(inputs)
    slab = torch.zeros(256 + outputs * row_bytes, dtype=torch.uint8)
    for row in range(outputs):
        weight_format.pack(matrix[row : row + 1], slab[256 + row * row_bytes : 256 + (row + 1) * row_bytes])
    packed = PackedMatrix(weight_format, outputs, inputs, slab[256:])
    view = packed.unpack()
    assert view.untyped_storage().data_ptr() == slab.untyped_storage().data_ptr()
    assert torch.equal(view, matrix.to(dtype))
    scale = math.sqrt(inputs)  # sums of `inputs` products: keep them of order one
    assert_near(packed.linear(x, bias) / scale, reference.linear(x, view, bias) / scale)


def test_linear_scaling_is_a_slower_position() -> None:
    plain, scaled = (inverse_frequencies(16, 10_000.0, scaling) for scaling in (None, LinearScaling(4.0)))
    torch.testing.assert_close(scaled * 4, plain)


def test_llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    plain = inverse_frequencies(64, 500_000.0, None)
    scaled = inverse_frequencies(64, 500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    wavelengths = 2 * math.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    assert torch.equal(scaled[short], plain[short])
    torch.testing.assert_close(scaled[long] * 8, plain[long])
    between = ~short & ~long
    assert between.any() and (scaled[between] < plain[between]).all() and (scaled[between] * 8 > plain[between]).all()


def test_frequency_divisors_divide_each_frequency() -> None:
    divisors = FrequencyDivisors((1.0, 2.0, 4.0, 8.0))
    plain, scaled = inverse_frequencies(8, 10_000.0, None), inverse_frequencies(8, 10_000.0, divisors)
    assert torch.equal(scaled, plain / torch.tensor(divisors.divisors))
    with pytest.raises(ValueError, match="4 frequency divisors for 16 rotated dimensions"):
        inverse_frequencies(16, 10_000.0, divisors)


def test_long_scaling_takes_the_divisors_of_the_longest_sequence_served() -> None:
    plain = inverse_frequencies(4, 10_000.0, None)
    for context_tokens, divisors in ((16, (1.0, 2.0)), (17, (3.0, 4.0))):
        scaling = LongScaling((1.0, 2.0), (3.0, 4.0), original_max_position_tokens=16, context_tokens=context_tokens)
        assert torch.equal(inverse_frequencies(4, 10_000.0, scaling), plain / torch.tensor(divisors))


def test_the_amplitude_scales_what_turns_and_the_rest_of_a_head_stays() -> None:
    x, positions = randn(3, 5, 2, 10, dtype=torch.float32), torch.arange(5)
    rope = Rope(100.0, rotary_dim=6, amplitude=1.5)
    rotated = rotate(x, *rotation(positions, rope.frequencies, rope.amplitude))
    assert_near(rotated[..., :6], 1.5 * reference.rotate(x[..., :6], positions, rope.frequencies))
    assert torch.equal(rotated[..., 6:], x[..., 6:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wider_norm_multiplies_before_the_result_is_rounded(dtype: torch.dtype) -> None:
    x, weight = randn(1, 7, 33, dtype=dtype), 1 + randn(2, 33, dtype=torch.float32)
    expected = reference.rms_norm(x.float(), weight, 1e-5).to(dtype)
    wide, narrow = (rms_norm(x, norm, 1e-5) != expected for norm in (weight, weight.to(dtype)))
    assert wide.float().mean() < 0.02 < 0.1 < narrow.float().mean()
