"""Products with matrices of plain numbers against their definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.linear import DenseFormat, packed_bytes
from kernels.native.activation import Activation
from kernels.native.linear import gated_linear, linear
from kernels.native.tiled_format import TiledFormat
from kernels.native_library import NativeLibrary
from kernels.packed_matrix import PackedMatrix
from tests.strided import randn, strided

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def pack(matrix: Tensor) -> PackedMatrix:
    """In a buffer of just its size, so that a sanitizer sees an access past it."""
    weight_format = TiledFormat(matrix.dtype)
    data = torch.full((packed_bytes(weight_format, *matrix.shape),), 255, dtype=torch.uint8)
    weight_format.pack(matrix, data)
    return PackedMatrix(weight_format, *matrix.shape, data)


@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@given(
    num_rows=st.one_of(st.integers(1, 20), st.integers(100, 300)),
    in_features=st.integers(1, 70),
    out_features=st.integers(1, 120),
    x_dtype=st.sampled_from(DTYPES),
    out_dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    accumulate=st.booleans(),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_linear(
    library: NativeLibrary,
    weight_dtype: torch.dtype,
    num_rows: int,
    in_features: int,
    out_features: int,
    x_dtype: torch.dtype,
    out_dtype: torch.dtype,
    has_bias: bool,
    accumulate: bool,
    padding: int,
    seed: int,
) -> None:
    matrix = (randn(seed, out_features, in_features) / in_features**0.5).to(weight_dtype)
    x = strided(randn(seed + 1, num_rows, in_features).to(x_dtype), padding)
    bias = randn(seed + 2, out_features) if has_bias else None
    before = randn(seed + 3, num_rows, out_features).to(torch.float32 if accumulate else out_dtype)
    out = strided(before, padding)
    # bfloat16 products may take x in bfloat16: then that is what they are compared with
    is_narrowed = weight_dtype == torch.bfloat16 and library.isa == "avx512bf16"
    expected = reference.linear(x.bfloat16().float() if is_narrowed else x.float(), matrix.float(), bias)

    linear(library, x, pack(matrix), out, bias, accumulate=accumulate)
    expected = (expected + before if accumulate else expected).to(out.dtype)
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    whole = out._base
    assert whole is not None and torch.isnan(whole[:, out_features:]).all()


@given(
    num_rows=st.one_of(st.integers(1, 20), st.integers(100, 300)),
    in_features=st.integers(1, 40),
    out_features=st.integers(1, 120),
    gate_dtype=st.sampled_from(DTYPES),
    up_dtype=st.one_of(st.none(), st.sampled_from(DTYPES)),
    has_bias=st.booleans(),
    activation=st.sampled_from(Activation),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_gated_linear(
    library: NativeLibrary,
    num_rows: int,
    in_features: int,
    out_features: int,
    gate_dtype: torch.dtype,
    up_dtype: torch.dtype | None,
    has_bias: bool,
    activation: Activation,
    seed: int,
) -> None:
    gate, up = (
        (randn(seed + i, out_features, in_features) / in_features**0.5).to(dtype)
        for i, dtype in enumerate((gate_dtype, up_dtype or gate_dtype))
    )
    x = strided(randn(seed + 2, num_rows, in_features).bfloat16(), 3)
    biases = (randn(seed + 3, out_features), randn(seed + 4, out_features)) if has_bias else None
    out = strided(torch.empty(num_rows, out_features), 2)
    gated_linear(library, x, pack(gate), pack(up), out, biases, activation)
    halves = [
        reference.linear(x.float(), matrix.float(), biases[i] if biases else None)
        for i, matrix in enumerate((gate, up))
    ]
    definition = reference.silu_gate if activation is Activation.SILU else reference.gelu_tanh_gate
    torch.testing.assert_close(out, definition(torch.cat(halves, dim=1)), rtol=1e-5, atol=1e-5)
    whole = out._base
    assert whole is not None and torch.isnan(whole[:, out_features:]).all()


@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@given(num_rows=st.integers(2, 150), first=st.integers(0, 149), seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_row_has_the_same_bits_in_every_company(
    library: NativeLibrary, weight_dtype: torch.dtype, num_rows: int, first: int, seed: int
) -> None:
    matrix = pack(randn(seed, 100, 301).to(weight_dtype))
    x = randn(seed + 1, num_rows, 301).to(weight_dtype)
    together, some = torch.empty(num_rows, 100), slice(first % num_rows, num_rows)
    linear(library, x, matrix, together)
    alone = torch.empty(len(x[some]), 100)
    linear(library, x[some].clone(), matrix, alone)
    assert torch.equal(alone, together[some])
    gated_linear(library, x, matrix, matrix, together)
    gated_linear(library, x[some].clone(), matrix, matrix, alone)
    assert torch.equal(alone, together[some])


@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
def test_tiles_hold_the_numbers_unchanged(weight_dtype: torch.dtype) -> None:
    numbers = randn(0, 37, 13).to(weight_dtype)
    matrix = pack(numbers)
    assert torch.equal(matrix.unpack(), numbers)
    rows = torch.tensor([36, 0, 15, 16, 0])
    assert torch.equal(matrix.gather(rows), numbers[rows])
    x = randn(1, 3, 13)
    torch.testing.assert_close(matrix.linear(x), x @ numbers.float().T)
    halves = torch.cat([pack(numbers[:16]).data, pack(numbers[16:]).data])
    assert torch.equal(halves, matrix.data)


def test_what_does_not_fit_is_refused(library: NativeLibrary) -> None:
    matrix, x, out = pack(torch.zeros(20, 6)), torch.zeros(2, 6), torch.zeros(2, 20)
    with pytest.raises(ValueError, match=r"out has shape \(2, 16\), expected \(2, 20\)"):
        linear(library, x, matrix, out[:, :16])
    with pytest.raises(ValueError, match=r"x has shape \(2, 5\), expected \(2, 6\)"):
        linear(library, x[:, :5], matrix, out)
    with pytest.raises(ValueError, match=r"out is torch\.bfloat16, expected torch\.float32"):
        linear(library, x, matrix, out.bfloat16(), accumulate=True)
    with pytest.raises(ValueError, match=r"bias has shape \(19,\), expected \(20,\)"):
        linear(library, x, matrix, out, torch.zeros(19))
    with pytest.raises(ValueError, match="no native kernel takes weights in the format float32"):
        linear(library, x, PackedMatrix(DenseFormat(torch.float32), 20, 6, torch.zeros(480, dtype=torch.uint8)), out)
    with pytest.raises(ValueError, match=r"float32 \[20, 6\] takes 768 bytes, not a tensor of shape \(480,\)"):
        PackedMatrix(TiledFormat(torch.float32), 20, 6, torch.zeros(480, dtype=torch.uint8))
