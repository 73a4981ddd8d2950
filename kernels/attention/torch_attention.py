"""Paged attention in plain PyTorch: right everywhere, and the fallback where no faster backend is.

Sequences with one query are gathered side by side and attended in one call per group of similar length; a sequence
with more queries gets a call of its own. Axes as in `kernels.attention.base`; in one call N sequences, Q queries and
K keys of each.
"""

from __future__ import annotations

import dataclasses
import itertools

import torch
from torch import Tensor

from kernels.attention.base import AttentionMetadata, StepAttention
from kernels.attention.dense_attention import additive_mask, attend_dense
from kernels.attention.slots import Slots, slots_of

GROUP_OVERHEAD_BLOCKS = 20
"""A further call a layer costs about as much as that many blocks gathered and attended for nothing: 40 us against
2.3 us a block of 16 tokens (bfloat16, 3 heads of 64, one Zen 5 core)."""


class TorchAttention:
    """Stateless: everything of a step lives in what `plan` returns."""

    def plan(
        self, metadata: AttentionMetadata, block_size: int, dtype: torch.dtype, sliding_window: int | None = None
    ) -> StepAttention:
        """As `AttentionBackend.plan`."""
        calls = _Planner(metadata, block_size, dtype, sliding_window).calls()
        return _Step(slots_of(metadata, block_size), calls)


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """One call of the attention kernel: N sequences of Q queries each over K gathered keys each."""

    tokens: Tensor | slice
    """Rows of the step: N * Q of them, in order."""
    num_sequences: int
    blocks: Tensor
    """[N * blocks a sequence] int64."""
    num_keys: int
    """K; the last gathered block may hold more."""
    mask: Tensor | None
    """[N or 1, 1, Q or 1, K], zero or minus infinity; None: plain causal, Q = K."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    slots: Slots
    calls: tuple[_Call, ...]

    def write_kv(self, key: Tensor, value: Tensor, layer_cache: Tensor) -> None:
        self.slots.write(key, value, layer_cache)

    def attend(self, query: Tensor, layer_cache: Tensor, scale: float, soft_cap: float | None = None) -> Tensor:
        if len(self.calls) == 1 and isinstance(self.calls[0].tokens, slice):
            return _run(self.calls[0], query, layer_cache, scale, soft_cap)
        out = torch.empty_like(query)
        for call in self.calls:
            out[call.tokens] = _run(call, query[call.tokens], layer_cache, scale, soft_cap)
        return out


def _run(call: _Call, query: Tensor, layer_cache: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    """query [N * Q, H, D] → the same shape."""
    keys, values = (_gather(layer_cache[:, part], call) for part in (0, 1))
    queries = query.view(call.num_sequences, -1, *query.shape[1:])
    return attend_dense(queries, keys, values, call.mask, scale, soft_cap).reshape(query.shape)


def _gather(cache: Tensor, call: _Call) -> Tensor:
    """[B, P, KH, D] → [N, K, KH, D]."""
    gathered = cache.index_select(0, call.blocks).view(call.num_sequences, -1, *cache.shape[2:])
    return gathered[:, : call.num_keys]


@dataclasses.dataclass(frozen=True, slots=True)
class _Planner:
    """Cuts a step into calls."""

    metadata: AttentionMetadata
    block_size: int
    dtype: torch.dtype
    sliding_window: int | None

    def calls(self) -> tuple[_Call, ...]:
        query_lens = self.metadata.query_lens
        starts = list(itertools.accumulate(query_lens, initial=0))
        spans = [self._key_span(index) for index in range(len(query_lens))]
        decodes = [index for index, length in enumerate(query_lens) if length == 1]
        groups = [self._decodes(group, spans, starts) for group in _group_by_length(decodes, spans)]
        prefills = [i for i, length in enumerate(query_lens) if length > 1]
        return (*groups, *(self._prefill(index, spans[index], starts[index]) for index in prefills))

    def _key_span(self, index: int) -> tuple[int, int]:
        """First and past-the-last column of the block table that any query of the sequence sees."""
        context_len = self.metadata.context_lens[index]
        first_key = 0
        if self.sliding_window is not None:
            first_key = max(0, context_len - self.metadata.query_lens[index] + 1 - self.sliding_window)
        return first_key // self.block_size, -(-context_len // self.block_size)

    def _decodes(self, group: list[int], spans: list[tuple[int, int]], starts: list[int]) -> _Call:
        """One call for sequences of one query each, padded to the longest."""
        metadata = self.metadata
        width = max(spans[index][1] - spans[index][0] for index in group)
        first = torch.tensor([spans[index][0] for index in group])[:, None]
        last = torch.tensor([spans[index][1] - 1 for index in group])[:, None]
        context = torch.tensor([metadata.context_lens[index] for index in group])[:, None]
        columns = torch.minimum(first + torch.arange(width), last)  # padding repeats an own block: others may hold NaN
        is_whole_step = len(group) == len(metadata.query_lens)
        tables = metadata.block_tables if is_whole_step else metadata.block_tables[torch.tensor(group)]
        positions = first * self.block_size + torch.arange(width * self.block_size)
        visible = positions < context
        if self.sliding_window is not None:
            visible &= positions >= context - self.sliding_window
        return _Call(
            tokens=slice(0, len(group)) if is_whole_step else torch.tensor([starts[index] for index in group]),
            num_sequences=len(group),
            blocks=tables.gather(1, columns).flatten(),
            num_keys=width * self.block_size,
            mask=additive_mask(visible, self.dtype)[:, None, None],
        )

    def _prefill(self, index: int, span: tuple[int, int], start: int) -> _Call:
        query_len, context_len = self.metadata.query_lens[index], self.metadata.context_lens[index]
        first_key = span[0] * self.block_size
        mask = None
        if query_len < context_len or self.sliding_window is not None:
            queries = torch.arange(context_len - query_len, context_len)[:, None]
            keys = torch.arange(first_key, context_len)
            visible = keys <= queries
            if self.sliding_window is not None:
                visible &= keys > queries - self.sliding_window
            mask = additive_mask(visible, self.dtype)[None, None]
        return _Call(
            tokens=slice(start, start + query_len),
            num_sequences=1,
            blocks=self.metadata.block_tables[index, span[0] : span[1]],
            num_keys=context_len - first_key,
            mask=mask,
        )


def _group_by_length(decodes: list[int], spans: list[tuple[int, int]]) -> list[list[int]]:
    """Cut the sequences so that padding each group to its longest costs less than another group would."""
    lengths = {index: spans[index][1] - spans[index][0] for index in decodes}
    ordered = sorted(decodes, key=lambda index: -lengths[index])
    groups: list[list[int]] = []
    for place, index in enumerate(ordered):
        longest = lengths[groups[-1][0]] if groups else 0
        saved_blocks = (longest - lengths[index]) * (len(ordered) - place)
        if not groups or saved_blocks > GROUP_OVERHEAD_BLOCKS:
            groups.append([])
        groups[-1].append(index)
    return [sorted(group) for group in groups]
