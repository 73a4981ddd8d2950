"""Choosing tokens from logits, so that a row's result does not depend on the other rows, bit for bit.

Axes: R rows, V vocabulary. Every operation here works along a row (softmax, cumulative sum, order statistics,
elementwise), never across rows, and never splits the sum of one row by the number of rows.

A token is drawn by inverting the cumulative distribution in the order of token ids: no sort, and rounding in the logits
moves the boundaries only a little. Randomness is counter-based: Philox4x32-10 of (seed, stream, counter), so a draw
needs no state and can be repeated from any point.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), for Philox.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUCLEUS_CANDIDATES = (1024, 8192)
"""How many of the largest probabilities are looked at for top_p, in turn, before a whole row is sorted."""

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Ten rounds of Philox4x32 on arrays of any one shape; each uint64 holds a 32-bit word.

    Returns:
        Four arrays of 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left = c0 * _MULTIPLIERS[0]
        right = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (right >> _HALF) ^ c1 ^ k0, right & _LOW, (left >> _HALF) ^ c3 ^ k1, left & _LOW
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: Words, streams: Words, counters: Words) -> npt.NDArray[np.float64]:
    """A number in [0, 1) with 53 random bits for each (seed, stream, counter).

    Args:
        seeds: [R], all 64 bits count.
        streams, counters: [R], each below 2**32.
    """
    zeros = np.zeros_like(counters)
    high, low, _, _ = philox4x32((counters, streams, zeros, zeros), (seeds & _LOW, seeds >> _HALF))
    bits = ((high >> np.uint64(5)) << np.uint64(26)) | (low >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


def _is_on_host(values: Tensor) -> bool:
    """Whether numpy can work on it in place."""
    return values.device.type == "cpu"


def argmax_rows(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The first largest entry of each row; a NaN counts as the largest.

    Args:
        logits: [R, V] float32.

    Returns:
        Token ids [R] int64 and their logits [R] float32.
    """
    if _is_on_host(logits):
        # numpy's argmax is vectorised; torch's took 12 times as long on [32, 49152].
        rows = logits.numpy()
        token_ids = rows.argmax(axis=1)
        return torch.from_numpy(token_ids), torch.from_numpy(rows[np.arange(len(rows)), token_ids])
    peaks, indices = logits.max(dim=1)
    return indices, peaks


def draw(
    logits: Tensor,
    peaks: Tensor,
    temperatures: Tensor,
    uniform: Tensor,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Draw one token a row after temperature, min_p, top_k and top_p, in this order.

    A filter keeps every token that ties with the last one it keeps, so its result does not depend on a sort's order.

    Args:
        logits: [R, V] float32, overwritten; -inf is never drawn, NaN and +inf must not occur.
        peaks: [R] float32, the largest logit of each row, finite.
        temperatures: [R] float32, above 0 and finite.
        uniform: [R] float64 in [0, 1).
        top_k: [R] int64, the most probable tokens kept; V or more: off. None: off for all rows.
        top_p: [R] float64, the probability that the most probable tokens kept must reach; 1: off. None: likewise.
        min_p: [R] float32, the least probability relative to the largest. 0: off. None: likewise.

    Returns:
        [R] int64.
    """
    if top_k is not None:
        _drop_below(logits, top_k_thresholds(logits, top_k), -torch.inf)
    # Shifted first: the quotient can then not overflow, whatever the temperature.
    logits.sub_(peaks[:, None]).div_(temperatures[:, None])
    if min_p is not None:
        _drop_below(logits, min_p.log()[:, None], -torch.inf)
    probabilities = torch.softmax(logits, dim=1)
    if top_p is not None:
        _drop_below(probabilities, top_p_thresholds(probabilities, top_p), 0.0)
    return _invert(probabilities, uniform)


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds `uniform` times the total; never one of probability 0."""
    cumulative = probabilities.cumsum(dim=1, dtype=torch.float64)
    total = cumulative[:, -1]
    # uniform * total may round up to total, past the last token.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)


def top_k_thresholds(values: Tensor, top_k: Tensor) -> Tensor:
    """[R, 1]: the k-th largest value of each row of [R, V]; where k >= V, -inf."""
    vocab_size = values.shape[1]
    limited = top_k < vocab_size
    if not bool(limited.any()):
        return torch.full_like(values[:, :1], -torch.inf)
    most = int(top_k[limited].max())
    index = top_k.clamp(1, most) - 1
    thresholds = _largest(values, most).gather(1, index[:, None])
    return thresholds.masked_fill_(~limited[:, None], -torch.inf)


def top_p_thresholds(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """[R, 1]: the largest threshold above which a row's probabilities add up to top_p; 0 keeps all, for top_p = 1 too.

    Args:
        probabilities: [R, V] float32, each row adds up to 1.
        top_p: [R] float64.
    """
    thresholds = torch.zeros_like(probabilities[:, :1])
    pending = torch.nonzero(top_p < 1.0).squeeze(1)
    vocab_size = probabilities.shape[1]
    for count in (*(size for size in NUCLEUS_CANDIDATES if size < vocab_size), vocab_size):
        if pending.numel() == 0:
            break
        candidates = _largest(probabilities.index_select(0, pending), count)
        mass = candidates.cumsum(dim=1, dtype=torch.float64)
        index = torch.searchsorted(mass, top_p[pending, None])  # first with mass >= top_p
        found = index.squeeze(1) < count
        thresholds[pending[found]] = candidates.gather(1, index.clamp(max=count - 1))[found]
        pending = pending[~found]
    return thresholds


def _drop_below(values: Tensor, thresholds: Tensor, fill: float) -> None:
    """Set what is less than its row's threshold to `fill`, in place; thresholds are [R, 1]."""
    if not _is_on_host(values):
        values.masked_fill_(values < thresholds, fill)
        return
    # A vectorised pass a row; masked_fill_ and where took 12 times as long. It drops up to and including its limit.
    limits = np.nextafter(thresholds.squeeze(1).numpy(), np.float32(-np.inf))
    for row, limit in zip(values, limits.tolist(), strict=True):
        torch.threshold_(row, limit, fill)


def _largest(values: Tensor, count: int) -> Tensor:
    """[R, count]: the largest values of each row, in descending order."""
    if not _is_on_host(values):
        return values.topk(count, dim=1).values
    # numpy partitions and sorts with vector instructions; torch's sort took 29 times as long on [32, 49152].
    rows = values.numpy()
    first = rows.shape[1] - count
    if first > 0:
        rows = np.partition(rows, first, axis=1)[:, first:]
    return torch.from_numpy(np.sort(rows, axis=1)).flip(1)


def score(logits: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the unmodified distribution and its most probable tokens.

    Args:
        logits: [R, V] float32.
        num_top: tokens wanted a row, most probable first; at most V are returned.

    Returns:
        Log-probabilities [R, V] float32, their largest [R, num_top] float32 and the token ids [R, num_top] int64.
    """
    logprobs = torch.log_softmax(logits, dim=1)
    top_logprobs, top_ids = logprobs.topk(min(num_top, logits.shape[1]), dim=1)
    return logprobs, top_logprobs, top_ids
