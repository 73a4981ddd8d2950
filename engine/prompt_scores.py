"""Log-probabilities of prompt tokens, in bounded memory: at most a block of rows has logits at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from engine.messages import TokenLogprob
from engine.sampler import NON_FINITE_LOGITS, token_logprobs
from engine.sequence import Sequence
from kernels.row_sampling import RowSampling


@dataclasses.dataclass(frozen=True, slots=True)
class PromptSpan:
    """Consecutive tokens of a step whose rows score the prompt tokens that follow them."""

    request_id: str
    sequence: Sequence
    batch_start: int
    """Index in the batch of the first of them."""
    first_position: int
    num_rows: int


@dataclasses.dataclass(slots=True)
class PromptScores:
    """Of one span."""

    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    error: str | None = None


def score_prompts(
    spans: list[PromptSpan],
    hidden: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    kernels: RowSampling,
    max_rows: int,
) -> dict[str, PromptScores]:
    """Score the rows of all spans, `max_rows` at a time; of each block only the given and the top tokens are kept.

    Args:
        hidden: [T, hidden size] of the step.
        logits_of: [R, hidden size] to [R, V] float32.
    """
    results = {span.request_id: PromptScores() for span in spans}
    for pieces in _blocks(spans, max_rows):
        index = np.concatenate([np.arange(piece.batch_start, piece.batch_start + piece.num_rows) for piece in pieces])
        targets = np.concatenate([_targets(piece) for piece in pieces])
        num_top = [top for piece in pieces for top in [_num_top(piece.sequence)] * piece.num_rows]
        logits = logits_of(hidden.index_select(0, torch.from_numpy(index)))
        scores = kernels.score(logits, max(num_top))
        finite = scores.finite_rows().numpy(force=True)
        records = token_logprobs(scores, torch.from_numpy(targets), num_top)
        first = 0
        for piece in pieces:
            rows = slice(first, first + piece.num_rows)
            results[piece.request_id].logprobs += records[rows]
            if not finite[rows].all():
                results[piece.request_id].error = NON_FINITE_LOGITS
            first += piece.num_rows
    return results


def _blocks(spans: list[PromptSpan], max_rows: int) -> Iterator[list[PromptSpan]]:
    """Cut the spans into groups of at most `max_rows` rows, in order."""
    group: list[PromptSpan] = []
    room = max_rows
    for span in spans:
        done = 0
        while done < span.num_rows:
            count = min(room, span.num_rows - done)
            group.append(
                dataclasses.replace(
                    span,
                    batch_start=span.batch_start + done,
                    first_position=span.first_position + done,
                    num_rows=count,
                )
            )
            done += count
            room -= count
            if room == 0:
                yield group
                group, room = [], max_rows
    if group:
        yield group


def _targets(span: PromptSpan) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The prompt tokens that the rows of a span score."""
    first = span.first_position + 1
    return span.sequence.token_ids[first : first + span.num_rows].astype(np.int64)


def _num_top(sequence: Sequence) -> int:
    return sequence.sampling.num_prompt_logprobs or 0
