"""Paged attention against its definition, over random shapes, block tables and strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from kernels import reference
from kernels.attention.base import AttentionBackend, cache_shape, layer_view
from kernels.attention.invariant_attention import InvariantAttention
from kernels.attention.torch_attention import TorchAttention
from tests.attention_cases import Case, cases, filled_cache, metadata_of

BACKENDS: list[AttentionBackend] = [TorchAttention(), InvariantAttention()]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def check(case: Case, backend: AttentionBackend, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(case.seed)
    metadata, num_blocks = metadata_of(case, generator)
    cache = filled_cache(case, metadata, num_blocks, generator).to(dtype)
    query, key, value = (
        torch.randn(metadata.num_tokens, heads, case.head_dim, generator=generator).to(dtype)
        for heads in (case.num_heads, case.num_kv_heads, case.num_kv_heads)
    )
    expected_cache = layer_view(cache, 1).clone()
    others = cache[:, ::2].clone()
    step = backend.plan(metadata, case.block_size, dtype, case.sliding_window)
    step.write_kv(key, value, layer_view(cache, 1))
    out = step.attend(query, layer_view(cache, 1), 0.3, case.soft_cap)

    reference.write_kv(key, value, expected_cache, metadata.slot_mapping)
    expected = reference.paged_attention(
        query, expected_cache, case.query_lens, case.context_lens, metadata.block_tables, 0.3, case.sliding_window,
        case.soft_cap,
    )  # fmt: skip
    assert out.dtype == dtype and out.shape == query.shape
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(cache[:, ::2], others, rtol=0, atol=0, equal_nan=True)
    for block, offset in ((int(s) // case.block_size, int(s) % case.block_size) for s in metadata.slot_mapping):
        assert torch.equal(cache[block, 1, :, offset], expected_cache[block, :, offset])


@given(case=cases(head_dims=(4, 16, 24)))
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize("backend", BACKENDS, ids=["torch", "invariant"])
def test_attention_over_pages_is_the_reference_in_float32(backend: AttentionBackend, case: Case) -> None:
    check(case, backend, torch.float32)


@given(case=cases(head_dims=(4, 16, 24)))
@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_attention_over_pages_is_the_reference_in_half_precision(dtype: torch.dtype, case: Case) -> None:
    check(case, TorchAttention(), dtype)


@pytest.mark.parametrize("backend", BACKENDS, ids=["torch", "invariant"])
@pytest.mark.parametrize("sliding_window", [None, 3, 530])
def test_keys_beyond_one_tile_of_the_kernel(backend: AttentionBackend, sliding_window: int | None) -> None:
    case = Case((1, 30, 1), (1300, 700, 20), 16, 1, 2, 8, sliding_window, None, seed=1)
    check(case, backend, torch.float32)


def test_decodes_of_very_different_length_are_not_padded_to_the_longest() -> None:
    lengths = (16 * 200, *(40,) * 12)
    case = Case((1,) * 13, lengths, 16, 1, 1, 4, None, None, seed=2)
    metadata, _ = metadata_of(case, torch.Generator().manual_seed(2))
    step = TorchAttention().plan(metadata, 16, torch.float32)
    gathered = [call.blocks.numel() for call in step.calls]  # type: ignore[attr-defined]
    assert sum(gathered) == 201 + 12 * 3
    check(case, TorchAttention(), torch.float32)


def test_a_fresh_block_is_zeroed_beyond_what_was_written() -> None:
    case = Case((2,), (0,), 4, 1, 1, 4, None, None, seed=3)
    metadata, num_blocks = metadata_of(case, torch.Generator().manual_seed(3))
    cache = torch.full(cache_shape(num_blocks, 1, 4, 1, 4), float("nan"))
    ones = torch.ones(2, 1, 4)
    TorchAttention().plan(metadata, 4, torch.float32).write_kv(ones, ones, layer_view(cache, 0))
    block = int(metadata.block_tables[0, 0])
    assert torch.equal(cache[block, 0, 0, :, 0, 0], torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert torch.isnan(cache).sum() == cache.numel() - cache[block].numel()
