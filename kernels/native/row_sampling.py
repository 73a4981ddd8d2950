"""The native answer to what the sampler asks of the kernels: no row is copied or sorted."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from kernels.native.sampling import RowScores, argmax_rows, draw, score_rows, uniforms
from kernels.native_library import NativeLibrary
from kernels.sampling import Words


@dataclasses.dataclass(frozen=True, slots=True)
class NativeRowScores:
    """As `kernels.row_sampling.RowScores`; keeps the logits [L, V] instead of all log-probabilities."""

    logits: Tensor
    rows: Tensor | None
    scores: RowScores

    @property
    def top_logprobs(self) -> Tensor:
        return self.scores.top_logprobs

    @property
    def top_ids(self) -> Tensor:
        return self.scores.top_ids

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        if self.rows is None:
            chosen = self.logits.gather(1, token_ids[:, None]).squeeze(1)
        else:
            chosen = self.logits[self.rows, token_ids]
        return chosen - self.scores.peaks - self.scores.log_sums

    def finite_rows(self) -> Tensor:
        return self.scores.peaks.isfinite()


@dataclasses.dataclass(frozen=True, slots=True)
class NativeRowSampling:
    """As `kernels.row_sampling.RowSampling`, of float32 logits in host memory. The library is the caller's to close."""

    library: NativeLibrary

    def argmax_rows(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return argmax_rows(self.library, logits)

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
        return draw(
            self.library, logits, peaks, temperatures, uniform, rows=rows, top_k=top_k, top_p=top_p, min_p=min_p
        )

    def score(self, logits: Tensor, num_top: int, rows: Tensor | None = None) -> NativeRowScores:
        return NativeRowScores(logits, rows, score_rows(self.library, logits, num_top, rows))

    def uniforms(self, seeds: Words, streams: Words, counters: Words) -> Tensor:
        return uniforms(self.library, seeds, streams, counters)
