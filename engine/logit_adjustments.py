"""What a request changes in its logits before a token is chosen: masked stop tokens, biases and penalties.

Only the touched entries are read and written, and requests without adjustments cost nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


class TokenCounts:
    """The distinct tokens of a sequence and how often each was sampled; follows the sequence as it grows.

    Invariant: `ids[:num_ids]` are distinct, `counts[i]` is the number of times `ids[i]` is in the counted output.
    """

    def __init__(self, sequence: Sequence, counts_prompt: bool) -> None:
        self._sequence = sequence
        prompt = np.unique(sequence.token_ids[: sequence.num_prompt_tokens]) if counts_prompt else np.empty(0, np.int64)
        capacity = len(prompt) + sequence.sampling.max_tokens
        self._ids: Ids = np.empty(capacity, dtype=np.int64)
        self._ids[: len(prompt)] = prompt
        self._counts: Values = np.zeros(capacity, dtype=np.float32)
        self._index_of = {token_id: index for index, token_id in enumerate(prompt.tolist())}
        self._num_counted = 0

    def update(self) -> tuple[Ids, Values]:
        """Count the output sampled since the last call; views of the distinct tokens and their output counts."""
        for token_id in self._sequence.output_token_ids[self._num_counted :].tolist():
            index = self._index_of.setdefault(token_id, len(self._index_of))
            self._ids[index] = token_id
            self._counts[index] += 1.0
        self._num_counted = self._sequence.num_output_tokens
        size = len(self._index_of)
        return self._ids[:size], self._counts[:size]


class LogitAdjustments:
    """The adjustments of one sequence, prepared once."""

    def __init__(self, sequence: Sequence) -> None:
        sampling = sequence.sampling
        self._sequence = sequence
        self.stop_ids: Ids = np.array(sorted(sequence.stop_token_ids), dtype=np.int64)
        self.bias_ids: Ids = np.array(list(sampling.logit_bias), dtype=np.int64)
        self.bias_values: Values = np.array(list(sampling.logit_bias.values()), dtype=np.float32)
        self.penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self.counts: TokenCounts | None = None
        if has_penalties(sampling):
            # The repetition penalty looks at the prompt too, the others at the output alone.
            self.counts = TokenCounts(sequence, counts_prompt=sampling.repetition_penalty != 1.0)

    @property
    def masks_stop_tokens(self) -> bool:
        """True until `min_tokens` were sampled."""
        return self._sequence.num_output_tokens < self._sequence.sampling.min_tokens and len(self.stop_ids) > 0


def has_penalties(sampling: SamplingParams) -> bool:
    """Whether earlier tokens change the logits."""
    return sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0


def needs_adjustments(sequence: Sequence) -> bool:
    """Whether the sequence may ever change its logits."""
    sampling = sequence.sampling
    masks = sampling.min_tokens > 0 and len(sequence.stop_token_ids) > 0
    return masks or bool(sampling.logit_bias) or has_penalties(sampling)


def adjust(logits: Tensor, rows: list[tuple[int, LogitAdjustments]]) -> None:
    """Apply the adjustments in place: stop tokens to -inf, then biases, then the penalties.

    Args:
        logits: [R, V] float32, contiguous.
        rows: row of `logits` and its adjustments, each row at most once.
    """
    flat = logits.view(-1)
    vocab_size = logits.shape[1]
    masked = [row * vocab_size + entry.stop_ids for row, entry in rows if entry.masks_stop_tokens]
    if masked:
        flat[torch.from_numpy(np.concatenate(masked))] = -torch.inf
    biased = [(row * vocab_size + entry.bias_ids, entry.bias_values) for row, entry in rows if len(entry.bias_ids)]
    if biased:
        places = torch.from_numpy(np.concatenate([ids for ids, _ in biased]))
        flat[places] += torch.from_numpy(np.concatenate([values for _, values in biased]))
    _penalize(flat, vocab_size, [(row, entry, entry.counts) for row, entry in rows if entry.counts is not None])


def _penalize(flat: Tensor, vocab_size: int, rows: list[tuple[int, LogitAdjustments, TokenCounts]]) -> None:
    """Repetition penalty (divides a positive logit, multiplies a negative one), then frequency and presence.

    Sources: Keskar et al., "CTRL" (2019), section 4.1, in the sign-aware form that transformers and vLLM use; OpenAI's
    API reference, "frequency and presence penalties".
    """
    seen = [(row, entry, *counts.update()) for row, entry, counts in rows]
    seen = [item for item in seen if len(item[2])]
    if not seen:
        return
    lengths = [len(ids) for _, _, ids, _ in seen]
    places = torch.from_numpy(np.concatenate([row * vocab_size + ids for row, _, ids, _ in seen]))
    counts = np.concatenate([counts for _, _, _, counts in seen])
    per_row = np.array([entry.penalties for _, entry, _, _ in seen], dtype=np.float32)
    repetition, frequency, presence = np.repeat(per_row, lengths, axis=0).T
    values = flat[places].numpy(force=True)
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts + presence * (counts > 0)
    flat[places] = torch.from_numpy(values).to(flat.device)
