"""From the logits of a step to its sampled tokens and their log-probabilities.

The order of operations is vLLM's: log-probabilities are taken from the unmodified logits; then stop tokens are masked
until min_tokens, logit_bias is added, the repetition, frequency and presence penalties are applied; then a row is
greedy (temperature 0) or is divided by its temperature, filtered by min_p, top_k and top_p, and drawn from.
What nobody in the step asks for is skipped.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.logit_adjustments import LogitAdjustments, adjust, needs_adjustments
from engine.messages import TokenLogprob
from engine.sequence import Sequence
from kernels.row_sampling import RowSampling, RowScores, TorchRowSampling

LOGPROB_FLOOR = -9999.0
"""Stands for log-probabilities that JSON cannot carry, as in vLLM."""

NON_FINITE_LOGITS = "the model's logits for this token are not finite; check the weights and the dtype"
NOTHING_LEFT = "min_tokens and logit_bias leave no token to sample; lower min_tokens or allow more tokens"

Rows = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class SampledTokens:
    """One entry per row of logits."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    errors: dict[int, str]
    """Rows that could not be sampled, with the reason; their token id means nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class _RawScores:
    """Log-probabilities of the rows that asked for them, before any adjustment."""

    rows: Rows
    scores: RowScores


class Sampler:
    """Holds the sampling options of each row of the runner's table as arrays, so that a step gathers them at once.

    A sequence has a row from `assign` until the row is assigned to another one.
    """

    def __init__(self, max_num_seqs: int, kernels: RowSampling | None = None) -> None:
        """`kernels`: None: PyTorch's and numpy's."""
        self._kernels: RowSampling = kernels or TorchRowSampling()
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs, dtype=np.float64)
        self._min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self._seed = np.zeros(max_num_seqs, dtype=np.uint64)
        self._choice = np.zeros(max_num_seqs, dtype=np.uint64)
        self._num_logprobs = np.full(max_num_seqs, -1, dtype=np.int64)
        self._plain = np.ones(max_num_seqs, dtype=np.bool_)
        """Greedy without logprobs and adjustments: the largest logit is all there is to know."""
        self._adjustments: list[LogitAdjustments | None] = [None] * max_num_seqs

    def assign(self, row: int, sequence: Sequence) -> None:
        """Fill a row with the options of a sequence."""
        sampling = sequence.sampling
        limit = float(np.finfo(np.float32).max)
        self._temperature[row] = min(sampling.temperature, limit)
        self._top_k[row] = sampling.top_k if sampling.top_k > 0 else np.iinfo(np.int64).max
        self._top_p[row] = sampling.top_p
        self._min_p[row] = sampling.min_p
        self._seed[row] = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF
        self._choice[row] = sequence.choice
        self._num_logprobs[row] = -1 if sampling.num_logprobs is None else sampling.num_logprobs
        self._adjustments[row] = LogitAdjustments(sequence) if needs_adjustments(sequence) else None
        greedy = self._temperature[row] == 0
        self._plain[row] = greedy and sampling.num_logprobs is None and self._adjustments[row] is None

    def release(self, row: int) -> None:
        """Drop what the row holds of its sequence."""
        self._adjustments[row] = None

    def sample(self, logits: Tensor, rows: Rows, sequences: list[Sequence]) -> SampledTokens:
        """Choose a token for each row.

        Args:
            logits: [R, V] float32, contiguous, overwritten.
            rows: [R] the row assigned to each sequence.
            sequences: R sequences; their number of output tokens is the counter of the draw.
        """
        raw = None
        if not self._plain[rows].all():
            entries = [(index, self._adjustments[row]) for index, row in enumerate(rows.tolist())]
            adjusted = [(index, entry) for index, entry in entries if entry is not None]
            raw = self._score(logits, rows, keeps_logits=not adjusted)
            if adjusted:
                adjust(logits, adjusted)
        token_ids, peaks = self._kernels.argmax_rows(logits)
        finite = peaks.isfinite().numpy(force=True)
        drawn = np.flatnonzero((self._temperature[rows] > 0) & finite)
        if len(drawn):
            counters = np.array([sequences[index].num_output_tokens for index in drawn], dtype=np.uint64)
            token_ids[torch.from_numpy(drawn)] = self._draw(logits, peaks, drawn, rows[drawn], counters)
        logprobs: list[TokenLogprob | None] = [None] * len(rows)
        if raw is not None:
            self._report(raw, token_ids, rows, logprobs)
        errors = {int(index): _describe(float(peaks[index])) for index in np.flatnonzero(~finite)}
        return SampledTokens(token_ids.tolist(), logprobs, errors)

    def _draw(self, logits: Tensor, peaks: Tensor, drawn: Rows, rows: Rows, counters: npt.NDArray[np.uint64]) -> Tensor:
        """Draw for rows `drawn` of the logits, whose options are in rows `rows` of the table."""
        index = torch.from_numpy(drawn)
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        vocab_size = logits.shape[1]
        return self._kernels.draw(
            logits,
            index,
            peaks.index_select(0, index),
            torch.from_numpy(self._temperature[rows]),
            self._kernels.uniforms(self._seed[rows], self._choice[rows], counters),
            top_k=torch.from_numpy(top_k) if (top_k < vocab_size).any() else None,
            top_p=torch.from_numpy(top_p) if (top_p < 1.0).any() else None,
            min_p=torch.from_numpy(min_p) if (min_p > 0.0).any() else None,
        )

    def _score(self, logits: Tensor, rows: Rows, *, keeps_logits: bool) -> _RawScores | None:
        """Log-probabilities of the rows that return some; of a copy where the logits are about to change."""
        wanted = self._num_logprobs[rows]
        scored = np.flatnonzero(wanted >= 0)
        if len(scored) == 0:
            return None
        index = torch.from_numpy(scored)
        num_top = int(wanted.max())
        if not keeps_logits:
            return _RawScores(scored, self._kernels.score(logits.index_select(0, index), num_top))
        return _RawScores(scored, self._kernels.score(logits, num_top, None if len(scored) == len(rows) else index))

    def _report(self, raw: _RawScores, token_ids: Tensor, rows: Rows, logprobs: list[TokenLogprob | None]) -> None:
        """Fill in the log-probabilities of the scored rows."""
        chosen = token_ids[torch.from_numpy(raw.rows)]
        num_top = self._num_logprobs[rows[raw.rows]].tolist()
        records = token_logprobs(raw.scores, chosen, num_top)
        for index, record in zip(raw.rows.tolist(), records, strict=True):
            logprobs[index] = record


def token_logprobs(scores: RowScores, token_ids: Tensor, num_top: list[int]) -> list[TokenLogprob]:
    """Records of the scored rows, floored at `LOGPROB_FLOOR`.

    Args:
        token_ids: [R] int64, the chosen or given token of each row.
        num_top: tokens each row reports, at most as many as were scored.
    """
    own: list[float] = _floored(scores.logprobs_of(token_ids)).tolist()
    tops: list[list[float]] = _floored(scores.top_logprobs).tolist()
    ids: list[list[int]] = scores.top_ids.tolist()
    return [
        TokenLogprob(token_id, own[row], tuple(ids[row][:count]), tuple(tops[row][:count]))
        for row, (token_id, count) in enumerate(zip(token_ids.tolist(), num_top, strict=True))
    ]


def _floored(values: Tensor) -> Tensor:
    """No value below the floor, none NaN or infinite."""
    return values.nan_to_num(nan=LOGPROB_FLOOR, neginf=LOGPROB_FLOOR).clamp_(min=LOGPROB_FLOOR)


def _describe(peak: float) -> str:
    return NOTHING_LEFT if math.isinf(peak) and peak < 0 else NON_FINITE_LOGITS
