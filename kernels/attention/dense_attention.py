"""Attention over keys that lie side by side: the arithmetic that the paged backends in PyTorch share.

Axes: N sequences, Q queries of each, K keys of each, H query heads, KH key/value heads, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend_dense(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, soft_cap: float | None
) -> Tensor:
    """Grouped-query attention, scores and accumulators in float32.

    Args:
        query: [N, Q, H, D].
        keys, values: [N, K, KH, D].
        mask: [N or 1, 1, Q or 1, K] of the query's dtype, zero or minus infinity, at least one zero a query;
            None: causal, the last query sees all keys.
        scale: factor on the dot products.
        soft_cap: scores become soft_cap * tanh(score / soft_cap); None: unchanged.

    Returns:
        [N, Q, H, D].
    """
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if soft_cap is not None:
        return _soft_capped(query, keys, values, mask, scale, soft_cap)
    if query.shape[1] == 1:
        return _single_queries(query, keys, values, mask, scale)
    if mask is None and query.shape[1] != keys.shape[2]:
        mask = _causal_mask(query.shape[1], keys.shape[2], query.dtype)
    out = functional.scaled_dot_product_attention(
        query.transpose(1, 2), keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where visible, minus infinity elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))


def _causal_mask(num_queries: int, num_keys: int, dtype: torch.dtype) -> Tensor:
    return additive_mask(torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries), dtype)


def _single_queries(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The heads that share keys take the place of queries: one pass over the keys serves them all."""
    num_sequences, _, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    return out.reshape(query.shape)


def _soft_capped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, soft_cap: float
) -> Tensor:
    """One key/value head after the other, so that the scores of one group exist at a time."""
    group = query.shape[2] // keys.shape[1]
    if mask is None:
        mask = _causal_mask(query.shape[1], keys.shape[2], query.dtype)
    out = torch.empty_like(query)
    for head in range(keys.shape[1]):
        heads = slice(head * group, (head + 1) * group)
        queries = query[:, :, heads].transpose(1, 2).float()
        scores = queries @ keys[:, head, None].float().transpose(2, 3) * scale
        weights = torch.softmax(soft_cap * torch.tanh(scores / soft_cap) + mask, dim=-1)
        out[:, :, heads] = (weights @ values[:, head, None].float()).transpose(1, 2).to(out.dtype)
    return out
