"""Residual sum and norm against their definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.native.norm import add_rms_norm
from kernels.native_library import NativeLibrary
from tests.strided import randn, strided

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
dtypes = st.sampled_from(list(TOLERANCE))


@given(
    num_rows=st.integers(1, 70),
    width=st.integers(1, 150),
    delta_dtype=st.one_of(st.none(), dtypes),
    out_dtype=dtypes,
    has_post_norm=st.booleans(),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_add_rms_norm(
    library: NativeLibrary,
    num_rows: int,
    width: int,
    delta_dtype: torch.dtype | None,
    out_dtype: torch.dtype,
    has_post_norm: bool,
    padding: int,
    seed: int,
) -> None:
    hidden = strided(randn(seed, num_rows, width), padding)
    delta = None if delta_dtype is None else strided(randn(seed + 1, num_rows, width).to(delta_dtype), padding)
    weight, post_weight = randn(seed + 2, width), randn(seed + 3, width)
    out = strided(torch.empty(num_rows, width, dtype=out_dtype), padding)
    post = post_weight if has_post_norm and delta is not None else None
    expected_hidden, expected = reference.add_rms_norm(hidden, weight, 1e-5, delta, post)

    add_rms_norm(library, hidden, weight, out, 1e-5, delta, post)
    torch.testing.assert_close(hidden, expected_hidden, rtol=1e-5, atol=1e-5)
    tolerance = TOLERANCE[out_dtype]
    torch.testing.assert_close(out, expected.to(out_dtype), rtol=tolerance, atol=tolerance)
    for tensor in (hidden, out) if delta is None else (hidden, out, delta):
        assert_padding_is_untouched(tensor)


def assert_padding_is_untouched(tensor: torch.Tensor) -> None:
    whole = tensor._base
    assert whole is not None
    assert torch.isnan(whole[:, tensor.shape[1] :]).all()


def test_a_row_has_the_same_bits_in_every_company(library: NativeLibrary) -> None:
    hidden, delta, weight = randn(1, 50, 77), randn(2, 50, 77), randn(3, 77)
    alone = torch.empty(50, 77)
    for row in range(50):
        add_rms_norm(library, hidden[row : row + 1].clone(), weight, alone[row : row + 1], 1e-6, delta[row : row + 1])
    together = torch.empty(50, 77)
    add_rms_norm(library, hidden, weight, together, 1e-6, delta)
    assert torch.equal(alone, together)


def test_what_does_not_fit_is_refused(library: NativeLibrary) -> None:
    hidden, weight, out = torch.zeros(2, 6), torch.zeros(6), torch.zeros(2, 6)
    with pytest.raises(ValueError, match=r"weight has shape \(5,\), expected \(6,\)"):
        add_rms_norm(library, hidden, weight[:5], out, 1e-5)
    with pytest.raises(ValueError, match=r"weight is torch\.bfloat16, expected torch\.float32"):
        add_rms_norm(library, hidden, weight.bfloat16(), out, 1e-5)
    with pytest.raises(ValueError, match=r"out is torch\.float64"):
        add_rms_norm(library, hidden, weight, out.double(), 1e-5)
    with pytest.raises(ValueError, match="stride 2 along its last axis"):
        add_rms_norm(library, torch.zeros(6, 2).T, weight, out, 1e-5)
