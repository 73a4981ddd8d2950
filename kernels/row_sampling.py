"""What the sampler asks of the kernels, and PyTorch's and numpy's answer; the native one is in kernels/native.

Axes: L rows of logits, R rows that are meant, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from kernels.sampling import Words, argmax_rows, draw, score, uniforms

MAX_DRAWN_ROWS = 8
"""Rows drawn from at a time: bounds the float64 cumulative sums and keeps them in the processor's cache."""


class RowScores(Protocol):
    """Log-probabilities of R rows."""

    @property
    def top_logprobs(self) -> Tensor:
        """[R, T] float32, most probable first."""

    @property
    def top_ids(self) -> Tensor:
        """[R, T] int64."""

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        """[R] float32, of one token a row, [R] int64. The logits must be as they were."""

    def finite_rows(self) -> Tensor:
        """[R] bool: whether the row is a distribution: no NaN, no +inf, not all -inf."""


class RowSampling(Protocol):
    """Every operation takes each row alone; the logits stay as they are."""

    def argmax_rows(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As `kernels.sampling.argmax_rows`."""

    def draw(
        self,
        logits: Tensor,
        rows: Tensor,
        peaks: Tensor,
        temperatures: Tensor,
        uniform: Tensor,
        *,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
    ) -> Tensor:
        """As `kernels.sampling.draw`, from rows `rows` [R] int64 of the logits [L, V]."""

    def score(self, logits: Tensor, num_top: int, rows: Tensor | None = None) -> RowScores:
        """As `kernels.sampling.score`, of rows `rows` [R] int64; None: of all."""

    def uniforms(self, seeds: Words, streams: Words, counters: Words) -> Tensor:
        """As `kernels.sampling.uniforms`, [R] float64."""


@dataclasses.dataclass(frozen=True, slots=True)
class TorchRowScores:
    """All log-probabilities, [R, V] float32, and the largest."""

    logprobs: Tensor
    top_logprobs: Tensor
    top_ids: Tensor

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        return self.logprobs.gather(1, token_ids[:, None]).squeeze(1)

    def finite_rows(self) -> Tensor:
        return ~self.logprobs.amax(dim=1).isnan()


class TorchRowSampling:
    """On any device."""

    def argmax_rows(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return argmax_rows(logits)

    def draw(
        self,
        logits: Tensor,
        rows: Tensor,
        peaks: Tensor,
        temperatures: Tensor,
        uniform: Tensor,
        *,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty_like(rows)
        for start in range(0, len(rows), MAX_DRAWN_ROWS):
            part = slice(start, start + MAX_DRAWN_ROWS)
            out[part] = draw(
                logits.index_select(0, rows[part]),
                peaks[part],
                temperatures[part],
                uniform[part],
                top_k=None if top_k is None else top_k[part],
                top_p=None if top_p is None else top_p[part],
                min_p=None if min_p is None else min_p[part],
            )
        return out

    def score(self, logits: Tensor, num_top: int, rows: Tensor | None = None) -> RowScores:
        return TorchRowScores(*score(logits if rows is None else logits.index_select(0, rows), num_top))

    def uniforms(self, seeds: Words, streams: Words, counters: Words) -> Tensor:
        return torch.from_numpy(uniforms(seeds, streams, counters))
