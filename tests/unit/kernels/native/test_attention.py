"""Native paged attention against its definition, and that a row's bits depend on the row alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.attention.base import layer_view
from kernels.attention.native_attention import NativeAttention
from kernels.native.attention import AttentionWork, attend, plan_attention
from kernels.native_library import NativeLibrary
from tests.attention_cases import Case, cases, filled_cache, metadata_of
from tests.strided import strided

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
HEAD_DIMS = (1, 5, 8, 16, 24, 40, 64, 72, 96, 128, 256)
SPLIT = 512
"""HR_ATTENTION_SPLIT."""


@pytest.fixture(scope="module")
def lone_library(library: NativeLibrary, library_path: Path) -> Iterator[NativeLibrary]:
    """The same instruction set with one thread."""
    native = NativeLibrary(library_path, 1, library.isa)
    yield native
    native.close()


def check(library: NativeLibrary, case: Case, dtype: torch.dtype) -> None:
    """Through the backend: write the step's keys and values, then attend."""
    generator = torch.Generator().manual_seed(case.seed)
    metadata, num_blocks = metadata_of(case, generator)
    cache = filled_cache(case, metadata, num_blocks, generator, zeroed=False).to(dtype)
    query, key, value = (
        torch.randn(metadata.num_tokens, heads, case.head_dim, generator=generator).to(dtype)
        for heads in (case.num_heads, case.num_kv_heads, case.num_kv_heads)
    )
    expected_cache = layer_view(cache, 1).clone()
    backend = NativeAttention(library, case.num_heads, case.num_kv_heads)
    step = backend.plan(metadata, case.block_size, dtype, case.sliding_window)
    step.write_kv(key, value, layer_view(cache, 1))
    out = step.attend(query, layer_view(cache, 1), 0.3, case.soft_cap)

    reference.write_kv(key, value, expected_cache, metadata.slot_mapping)
    expected = reference.paged_attention(
        query, expected_cache, case.query_lens, case.context_lens, metadata.block_tables, 0.3, case.sliding_window,
        case.soft_cap,
    )  # fmt: skip
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@given(
    case=cases(HEAD_DIMS, max_group=7, block_sizes=(1, 3, 16, 32), max_queries=14, max_cached=150),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_step_is_the_reference_and_no_slot_past_a_context_is_read(
    library: NativeLibrary, case: Case, dtype: torch.dtype
) -> None:
    check(library, case, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("sliding_window", [None, 3, 530])
def test_contexts_of_several_splits(library: NativeLibrary, dtype: torch.dtype, sliding_window: int | None) -> None:
    check(library, Case((1, 20, 1), (1300, 700, 20), 16, 1, 2, 8, sliding_window, None, seed=1), dtype)


class Step:
    """Sequences whose keys and values all lie in a cache, of which any queries can be asked for."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(case.seed)
        whole = Case(
            tuple(length for length in case.context_lens), (0,) * len(case.query_lens), case.block_size,
            case.num_kv_heads, case.group, case.head_dim, case.sliding_window, case.soft_cap, case.seed,
        )  # fmt: skip
        metadata, num_blocks = metadata_of(whole, generator)
        self.case, self.tables = case, metadata.block_tables.numpy()
        filled = Case((1,) * len(case.query_lens), case.context_lens, *_rest(case))
        self.cache = layer_view(filled_cache(filled, metadata, num_blocks, generator, zeroed=False).to(dtype), 2)
        self.query = [
            torch.randn(length, case.num_heads, case.head_dim, generator=generator).to(dtype)
            for length in case.context_lens
        ]
        """One of every position."""

    def plan(self, library: NativeLibrary, spans: list[tuple[int, int, int]]) -> AttentionWork:
        """Queries at positions first..end-1 of sequences, each (sequence, first, end)."""
        case = self.case
        return plan_attention(
            library,
            [end - first for _, first, end in spans],
            [end for _, _, end in spans],
            self.tables[[sequence for sequence, _, _ in spans]],
            case.num_heads,
            case.num_kv_heads,
            case.block_size,
            case.sliding_window,
        )

    def attend(self, library: NativeLibrary, spans: list[tuple[int, int, int]]) -> list[Tensor]:
        """Results of each span."""
        query = torch.cat([self.query[sequence][first:end] for sequence, first, end in spans])
        out = torch.full_like(query, float("nan"))
        attend(library, self.plan(library, spans), query, self.cache, out, 0.2, self.case.soft_cap)
        return list(out.split([end - first for _, first, end in spans]))


def _rest(case: Case) -> tuple[int, int, int, int, int | None, float | None, int]:
    return (
        case.block_size, case.num_kv_heads, case.group, case.head_dim, case.sliding_window, case.soft_cap, case.seed
    )  # fmt: skip


@given(
    case=cases((8, 40, 64), max_group=5, block_sizes=(3, 16), max_queries=100, max_cached=700),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_token_has_the_same_bits_in_every_batch_chunk_and_number_of_threads(
    library: NativeLibrary, lone_library: NativeLibrary, case: Case, dtype: torch.dtype
) -> None:
    step = Step(case, dtype)
    spans = [
        (index, cached, length)
        for index, (cached, length) in enumerate(zip(case.cached_lens, case.context_lens, strict=True))
    ]
    together = step.attend(library, spans)
    assert not any(out.isnan().any() for out in together)
    for span, out in zip(spans, together, strict=True):
        sequence, first, end = span
        middle = (first + end) // 2
        chunks = [(sequence, a, b) for a, b in ((first, middle), (middle, end)) if a < b]
        assert torch.equal(torch.cat(step.attend(lone_library, chunks)), out)
        decodes = [(sequence, position, position + 1) for position in range(first, end)]
        assert torch.equal(torch.cat(step.attend(library, decodes)), out)
        (last,) = step.attend(library, decodes[-1:])  # alone, where a long context is cut into splits
        assert torch.equal(last, out[-1:])


def test_splits_computed_apart_have_the_bits_of_those_computed_together(
    library: NativeLibrary, lone_library: NativeLibrary
) -> None:
    case = Case((1, 40), (5 * SPLIT + 77, 3 * SPLIT), 16, 2, 3, 24, None, None, seed=4)
    step = Step(case, torch.bfloat16)
    span = (0, case.cached_lens[0], case.context_lens[0])
    apart, together = step.plan(library, [span]), step.plan(library, [(1, 3 * SPLIT, 3 * SPLIT + 40), *[span] * 30])
    assert apart.plan.num_merges == 2 and together.plan.num_merges == 0
    (alone,) = step.attend(library, [span])
    assert torch.equal(step.attend(library, [(1, 3 * SPLIT, 3 * SPLIT + 40), *[span] * 30])[-1], alone)
    assert torch.equal(step.attend(lone_library, [span])[0], alone)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3000)), min_size=0, max_size=12),
    num_kv_heads=st.integers(1, 8),
    group=st.sampled_from([1, 3, 8, 71, 300]),
    sliding_window=st.one_of(st.none(), st.integers(1, 2000)),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_plan_covers_every_query_head_and_split_once(
    library: NativeLibrary,
    lengths: list[tuple[int, int]],
    num_kv_heads: int,
    group: int,
    sliding_window: int | None,
) -> None:
    contexts = [query_len + cached for query_len, cached in lengths]
    tables = np.zeros((len(lengths), -(-max(contexts, default=0) // 16)), dtype=np.int32)
    query_lens = [query_len for query_len, _ in lengths]
    work = plan_attention(library, query_lens, contexts, tables, num_kv_heads * group, num_kv_heads, 16, sliding_window)
    covered = [
        np.zeros((q, num_kv_heads, -(-c // SPLIT)), dtype=int) for q, c in zip(query_lens, contexts, strict=True)
    ]
    partials = np.zeros(work.plan.num_partials, dtype=int)
    for sequence, first_head, end_head, first, end, first_split, end_split, partial in work.tasks[
        : work.plan.num_tasks
    ]:
        assert first < end and first_head < end_head and first_split < end_split
        covered[sequence][first:end, first_head:end_head, first_split:end_split] += 1
        rows = (end_head - first_head) * (end - first) * group
        assert rows <= work.plan.max_task_rows
        if partial >= 0:
            partials[partial : partial + rows * (end_split - first_split)] += 1
    assert (partials == 1).all()
    for seen, query_len, context in zip(covered, query_lens, contexts, strict=True):
        assert seen.max() == 1
        for query in range(query_len):
            position = context - query_len + query
            first = 0 if sliding_window is None else max(0, position + 1 - sliding_window)
            assert (seen[query, :, first // SPLIT : position // SPLIT + 1] == 1).all()


def test_tokens_of_query_and_out_may_be_strided(library: NativeLibrary) -> None:
    step = Step(Case((3, 1), (20, 9), 4, 2, 2, 24, None, None, seed=5), torch.float32)
    spans = [(0, 20, 23), (1, 9, 10)]
    expected = torch.cat(step.attend(library, spans))
    query = strided(torch.cat([step.query[0][20:23], step.query[1][9:10]]).flatten(1), 7)
    out = strided(torch.empty(4, 4 * 24), 5)
    shape = (4, 4, 24)
    attend(
        library, step.plan(library, spans), query.unflatten(1, shape[1:]), step.cache, out.unflatten(1, shape[1:]), 0.2
    )
    assert torch.equal(out.view(shape) if out.is_contiguous() else out.reshape(shape), expected)
    assert out._base is not None and out._base[:, 4 * 24 :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_far_apart_neither_overflow_nor_vanish(library: NativeLibrary, dtype: torch.dtype) -> None:
    step = Step(Case((5,), (200,), 16, 1, 2, 16, None, None, seed=6), dtype)
    step.query = [query * 300 for query in step.query]
    (out,) = step.attend(library, [(0, 200, 205)])
    expected = reference.paged_attention(
        step.query[0][200:205].float(), step.cache.float(), (5,), (205,), torch.from_numpy(step.tables), 0.2
    )
    torch.testing.assert_close(out.float(), expected, rtol=TOLERANCE[dtype], atol=max(TOLERANCE[dtype], 2e-3))


def test_nan_reaches_the_rows_that_see_it_and_no_other(library: NativeLibrary) -> None:
    step = Step(Case((1, 1, 2), (70, 130, 90), 16, 1, 3, 64, None, None, seed=7), torch.bfloat16)
    spans = [(0, 70, 71), (1, 130, 131), (2, 90, 92)]
    clean = torch.cat(step.attend(library, spans))
    step.query[2][91, 1] = float("nan")
    block, offset = divmod(66, 16)
    step.cache[step.tables[0, block], 1, offset] = float("nan")
    out = torch.cat(step.attend(library, spans))
    assert out[0].isnan().all() and out[3, 1].isnan().all()
    assert torch.equal(out[1:3], clean[1:3]) and torch.equal(out[3, ::2], clean[3, ::2])


def test_what_does_not_fit_is_refused(library: NativeLibrary) -> None:
    tables = np.zeros((1, 2), dtype=np.int64)
    with pytest.raises(ValueError, match="a context of 33 tokens needs more than the tables' 2 blocks of 16"):
        plan_attention(library, [1], [33], tables, 4, 2, 16)
    with pytest.raises(ValueError, match="4 query heads cannot share 3"):
        plan_attention(library, [1], [3], tables, 4, 3, 16)
    with pytest.raises(ValueError, match="1 query lengths, 2 context lengths"):
        plan_attention(library, [1], [3, 4], tables, 4, 2, 16)
    with pytest.raises(ValueError, match="a context that holds its queries"):
        plan_attention(library, [4], [3], tables, 4, 2, 16)
    with pytest.raises(ValueError, match="sliding_window is 0"):
        plan_attention(library, [1], [3], tables, 4, 2, 16, sliding_window=0)
    with pytest.raises(ValueError, match="block ids start at 0"):
        plan_attention(library, [1], [3], tables - 1, 4, 2, 16)
    work = plan_attention(library, [2], [20], tables + 4, 4, 2, 16)
    query, cache = torch.zeros(2, 4, 8), torch.zeros(5, 2, 16, 2, 8)
    out = torch.zeros(2, 4, 8)
    attend(library, work, query, cache, out, 1.0)
    with pytest.raises(ValueError, match="name block 4, the cache has 4 blocks"):
        attend(library, work, query, cache[:4], out, 1.0)
    with pytest.raises(ValueError, match=r"layer_cache is torch\.bfloat16"):
        attend(library, work, query, cache.bfloat16(), out, 1.0)
    with pytest.raises(ValueError, match=r"query has shape \(1, 4, 8\)"):
        attend(library, work, query[:1], cache, out, 1.0)
    with pytest.raises(ValueError, match="out: the heads of a token are 16 apart, expected 8"):
        attend(library, work, query, cache, torch.zeros(2, 4, 16)[:, :, :8], 1.0)
    with pytest.raises(ValueError, match="scale is -1"):
        attend(library, work, query, cache, out, -1.0)
    with pytest.raises(ValueError, match="soft_cap is 0"):
        attend(library, work, query, cache, out, 1.0, soft_cap=0.0)
