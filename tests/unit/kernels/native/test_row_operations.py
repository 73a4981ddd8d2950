"""Gate, gather, and rotation with the write into the cache, against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.attention.base import cache_shape, layer_view
from kernels.linear import packed_bytes
from kernels.native.activation import Activation, gate
from kernels.native.gather import gather
from kernels.native.rotary import HeadNorms, Rotation, rope_write_kv
from kernels.native.tiled_format import TiledFormat
from kernels.native_library import NativeLibrary
from kernels.packed_matrix import PackedMatrix
from kernels.rotary import inverse_frequencies
from tests.strided import randn, strided

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
dtypes = st.sampled_from(list(TOLERANCE))
bounded = settings(max_examples=40, deadline=None, derandomize=True)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)


@given(
    num_rows=st.integers(1, 70),
    width=st.integers(1, 150),
    in_dtype=dtypes,
    out_dtype=dtypes,
    activation=st.sampled_from(Activation),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
@bounded
def test_gate(
    library: NativeLibrary,
    num_rows: int,
    width: int,
    in_dtype: torch.dtype,
    out_dtype: torch.dtype,
    activation: Activation,
    padding: int,
    seed: int,
) -> None:
    gate_up = strided((3 * randn(seed, num_rows, 2 * width)).to(in_dtype), padding)
    out = strided(torch.empty(num_rows, width, dtype=out_dtype), padding)
    gate(library, gate_up, out, activation)
    definition = reference.silu_gate if activation is Activation.SILU else reference.gelu_tanh_gate
    assert_near(out, definition(gate_up.float()))
    whole = out._base
    assert whole is not None and torch.isnan(whole[:, width:]).all()


@pytest.mark.parametrize("activation", Activation)
def test_gate_at_the_ends_of_the_number_line(library: NativeLibrary, activation: Activation) -> None:
    values = torch.tensor([-3e38, -1e4, -200.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 200.0, 1e4, float("nan")])
    out = torch.empty(1, len(values))
    gate(library, torch.cat([values, torch.ones(len(values))])[None], out, activation)
    expected = values.clamp(min=0) if activation is Activation.GELU_TANH else torch.nn.functional.silu(values)
    torch.testing.assert_close(out[0], expected, rtol=1e-5, atol=1e-29, equal_nan=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@given(vocab_size=st.integers(1, 60), width=st.integers(1, 70), num_rows=st.integers(1, 40), seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_gather(
    library: NativeLibrary, dtype: torch.dtype, vocab_size: int, width: int, num_rows: int, seed: int
) -> None:
    numbers, weight_format = randn(seed, vocab_size, width).to(dtype), TiledFormat(dtype)
    data = torch.empty(packed_bytes(weight_format, vocab_size, width), dtype=torch.uint8)
    weight_format.pack(numbers, data)
    rows = torch.randint(0, vocab_size, (num_rows,), generator=torch.Generator().manual_seed(seed))
    out = strided(torch.empty(num_rows, width), 2)
    gather(library, PackedMatrix(weight_format, vocab_size, width, data), rows, out, scale=0.5)
    assert torch.equal(out, 0.5 * numbers[rows].float())


def test_gather_refuses_rows_that_are_not_there(library: NativeLibrary) -> None:
    matrix = PackedMatrix(TiledFormat(torch.float32), 3, 4, torch.zeros(256, dtype=torch.uint8))
    for bad in (-1, 3):
        with pytest.raises(ValueError, match="the matrix has 3"):
            gather(library, matrix, torch.tensor([0, bad]), torch.empty(2, 4))


@given(
    num_tokens=st.integers(1, 40),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    half=st.integers(1, 40),
    unrotated=st.integers(0, 20),
    block_size=st.sampled_from([1, 3, 16]),
    qkv_dtype=dtypes,
    dtype=dtypes,
    has_norms=st.booleans(),
    seed=st.integers(0, 2**31),
)
@bounded
def test_rope_write_kv(
    library: NativeLibrary,
    num_tokens: int,
    num_kv_heads: int,
    group: int,
    half: int,
    unrotated: int,
    block_size: int,
    qkv_dtype: torch.dtype,
    dtype: torch.dtype,
    has_norms: bool,
    seed: int,
) -> None:
    num_heads, rotary_dim, head_dim = num_kv_heads * group, 2 * half, 2 * half + unrotated
    generator = torch.Generator().manual_seed(seed)
    qkv = strided(randn(seed, num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(qkv_dtype), 3)
    positions = torch.randint(0, 5000, (num_tokens,), generator=generator)
    frequencies = inverse_frequencies(rotary_dim, 10_000.0, None)
    num_blocks = num_tokens // block_size + 2
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens]
    slots[torch.randint(0, num_tokens, (1,), generator=generator)] = -1
    cache = torch.full(cache_shape(num_blocks, 3, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype)
    norms = HeadNorms(randn(seed + 1, head_dim), randn(seed + 2, head_dim), 1e-6) if has_norms else None
    query = strided(torch.empty(num_tokens, num_heads * head_dim, dtype=dtype), 5).unflatten(1, (num_heads, head_dim))

    rope_write_kv(library, qkv, Rotation.of(positions, frequencies), query, layer_view(cache, 1), slots, norms)

    heads = qkv.float().unflatten(1, (-1, head_dim))
    queries, keys, values = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    if norms is not None:
        queries = reference.rms_norm(queries, norms.query, norms.eps)
        keys = reference.rms_norm(keys, norms.key, norms.eps)
    queries, keys = (
        torch.cat((reference.rotate(x[..., :rotary_dim], positions, frequencies), x[..., rotary_dim:]), dim=-1)
        for x in (queries, keys)
    )
    assert_near(query, queries)
    written = slots >= 0
    blocks, offsets = slots[written] // block_size, slots[written] % block_size
    assert_near(cache[blocks, 1, 0, offsets], keys[written])
    assert_near(cache[blocks, 1, 1, offsets], values[written])
    assert int((~torch.isnan(cache)).sum()) == 2 * int(written.sum()) * num_kv_heads * head_dim


def test_a_slot_beyond_the_cache_is_refused(library: NativeLibrary) -> None:
    cache = torch.zeros(2, 2, 4, 1, 6)
    rotation = Rotation.of(torch.tensor([0]), torch.ones(3))
    with pytest.raises(ValueError, match="slots are 8 to 8, the cache has 8"):
        rope_write_kv(library, torch.zeros(1, 18), rotation, torch.zeros(1, 1, 6), cache, torch.tensor([8]))
