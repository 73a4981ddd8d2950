"""Every operation of the decoder in plain PyTorch: its definition, and the oracle of the tests.

Written to be read, not to be fast: one token, one head, float32. Axes: T tokens, H query heads, KH key/value heads,
D head dimension, B blocks, P tokens in a block, N/M features.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Args:
        x: [..., N] any float dtype; computed in float32, returned in x's dtype.
        weight: [N].

    Source: Zhang and Sennrich, 2019.
    """
    wide = x.float()
    normed = wide / torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.float()).to(x.dtype)


def add_rms_norm(
    hidden: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None, post_weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The residual stream with `delta` added, and its norm, both in float32.

    Args:
        hidden: [T, N] float32, not changed.
        delta: [T, N]; normalised with `post_weight` [N] before it is added, where that is given.
    """
    if delta is not None:
        hidden = hidden + (delta.float() if post_weight is None else rms_norm(delta.float(), post_weight, eps))
    return hidden, rms_norm(hidden, weight, eps)


def rotate(x: Tensor, positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Rotary embedding: the pair (x[d], x[d + D/2]) turns by position * inverse_frequencies[d].

    Args:
        x: [T, H, D].
        positions: [T] int64.
        inverse_frequencies: [D/2] float32, radians a position.

    Source: RoFormer (Su et al., 2021), in the half-split layout of Hugging Face checkpoints.
    """
    half = x.shape[-1] // 2
    angles = positions.float()[:, None, None] * inverse_frequencies.float()
    first, second = x[..., :half].float(), x[..., half:].float()
    turned_first = first * angles.cos() - second * angles.sin()
    turned_second = second * angles.cos() + first * angles.sin()
    return torch.cat((turned_first, turned_second), dim=-1).to(x.dtype)


def silu_gate(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2N] = gate and up side by side; returns [..., N]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def gelu_tanh_gate(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, gelu in its tanh form; as `silu_gate`.

    Source: Hendrycks and Gimpel, 2016.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + torch.tanh(inner)) * up).to(gate_up.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias, summed in float32; x [T, N], weight [M, N], bias [M]; returns [T, M] in x's dtype."""
    out = x.float() @ weight.float().T
    if bias is not None:
        out = out + bias.float()
    return out.to(x.dtype)


def write_kv(key: Tensor, value: Tensor, layer_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value into its slot, in place.

    Args:
        key, value: [T, KH, D].
        layer_cache: [B, 2, P, KH, D].
        slot_mapping: [T] int64, block * P + offset.

    Source: PagedAttention (Kwon et al., SOSP 2023), section 4.
    """
    block_size = layer_cache.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        layer_cache[block, 0, offset] = key[token]
        layer_cache[block, 1, offset] = value[token]


def paged_attention(
    query: Tensor,
    layer_cache: Tensor,
    query_lens: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_tables: Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Causal attention of each sequence's last `query_len` tokens over its `context_len` tokens in the cache.

    Args:
        query: [T, H, D], sequences back to back.
        layer_cache: [B, 2, P, KH, D]; query head h reads key/value head h // (H / KH).
        block_tables: [S, max blocks] int64.
        sliding_window: a query sees at most that many last positions, itself included.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).

    Returns:
        [T, H, D] in the query's dtype.
    """
    _, _, block_size, num_kv_heads, _ = layer_cache.shape
    group = query.shape[1] // num_kv_heads
    out = torch.empty_like(query)
    token = 0
    for sequence, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
        slots = [divmod(position, block_size) for position in range(context_len)]
        blocks = torch.tensor([int(block_tables[sequence, index]) for index, _ in slots])
        offsets = torch.tensor([offset for _, offset in slots])
        keys = layer_cache[blocks, 0, offsets].float()
        values = layer_cache[blocks, 1, offsets].float()
        for position in range(context_len - query_len, context_len):
            first = 0 if sliding_window is None else max(0, position + 1 - sliding_window)
            for head in range(query.shape[1]):
                key = keys[first : position + 1, head // group]
                scores = key @ query[token, head].float() * scale
                if soft_cap is not None:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                out[token, head] = (torch.softmax(scores, dim=0) @ values[first : position + 1, head // group]).to(
                    query.dtype
                )
            token += 1
    return out


def quantise_activations(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each row in groups of 32 as integers of 8 bits, but for a few numbers, as quantised matrices are multiplied.

    Some channels of a decoder stand out far, and would cost the others in their group most of their precision.

    Args:
        x: [T, K], K a multiple of 32, finite.

    Returns:
        The 6 numbers of a row with the largest magnitudes, of equal ones the first, with zeros elsewhere: [T, K]
        float32.
        Of what is left, codes [T, K] in -127..127, as float32, and scales [T, K / 32] float32. A number is one of the
        6, or about code * scale.
    """
    x = x.float()
    largest = torch.zeros_like(x)
    for row, numbers in zip(largest, x, strict=True):
        columns = torch.sort(numbers.abs(), descending=True, stable=True).indices[:6]
        row[columns] = numbers[columns]
    groups = (x - largest).view(len(x), -1, 32)
    magnitudes = groups.abs().amax(dim=2, keepdim=True)
    factors = torch.div(torch.tensor(127.0), magnitudes)  # `127 / magnitudes` would be rounded twice
    factors = torch.where(magnitudes < 2.0**-118, 0, factors)  # below, the quotient may be infinite
    codes = torch.round(groups * factors)  # ties to even
    return largest, codes.view(x.shape), torch.div(magnitudes[..., 0], torch.tensor(127.0))


def quantised_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Quantised activations @ weight^T + bias, in float64; x [T, K], weight [M, K] dequantised, bias [M]."""
    largest, codes, scales = (part.double() for part in quantise_activations(x))
    out = (largest + codes * scales.repeat_interleave(32, dim=1)) @ weight.double().T
    return out if bias is None else out + bias.double()
