"""Executes a step on the model: block copies, the forward pass, logits of the needed rows, samples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.block_tables import BlockTables
from engine.forward_batch import ForwardBatch, make_forward_batch
from engine.kv_cache import KVCache
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.messages import TokenLogprob
from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.prompt_scores import PromptScores, PromptSpan, score_prompts
from engine.sampler import SampledTokens, Sampler
from engine.sequence import Sequence
from kernels.row_sampling import RowSampling, TorchRowSampling
from scheduler.output import ScheduledRequest, SchedulerOutput

if TYPE_CHECKING:
    from engine.weights import LoadedModel

MAX_LOGITS_ROWS = 256
"""Rows of logits that exist at a time."""


@dataclasses.dataclass(slots=True)
class _Live:
    """A sequence that the runner knows."""

    sequence: Sequence
    row: int | None = None
    """Its row of block table and sampling options while it holds blocks."""
    num_scored: int = 0
    """Prompt positions whose log-probabilities were returned; a recomputation does not return them again."""


class ModelRunner:
    """Owns the KV region and one row of block table and sampling options per sequence that holds blocks.

    A sequence takes a row at its (re)start and gives it back when it is preempted or removed, so a sequence that waits
    costs nothing.
    """

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        kv_memory: Tensor | None = None,
        sampling: RowSampling | None = None,
        gate: LayerGate = OPEN_GATE,
    ) -> None:
        """
        Args:
            kv_memory: see `KVCache`.
            sampling: None: PyTorch's and numpy's.
            gate: what a step waits for before its layers.
        """
        self._decoder = model.decoder
        self._gate = gate
        self._max_num_batched_tokens = max_num_batched_tokens
        self.kv_cache = KVCache(model.config, model.decoder.dtype, num_blocks, block_size, kv_memory)
        self._block_tables = BlockTables(max_num_seqs, max_model_len, block_size)
        self._sampling: RowSampling = sampling or TorchRowSampling()
        self._sampler = Sampler(max_num_seqs, self._sampling)
        self._live: dict[str, _Live] = {}

    def add(self, sequence: Sequence) -> None:
        """Make a sequence known before its first step."""
        self._live[sequence.request_id] = _Live(sequence)

    def remove(self, request_id: str) -> None:
        """Forget a sequence; unknown ids are ignored."""
        live = self._live.pop(request_id, None)
        if live is not None:
            self._release(live)

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the step: block copies first, then the tokens, then the samples.

        A request whose logits are not finite gets an `error` in its output; the others are not affected.

        Raises:
            KeyError: a scheduled request was never added.
            ValueError: the step does not fit what the runner was made for or what the sequences hold.
        """
        if output.num_tokens > self._max_num_batched_tokens:
            raise ValueError(
                f"{output.num_tokens} tokens in a step, at most {self._max_num_batched_tokens} are allowed"
            )
        for request_id in output.preempted:
            if request_id in self._live:
                self._release(self._live[request_id])
        self.kv_cache.copy_blocks(output.block_copies)
        if not output.scheduled:
            return ModelRunnerOutput(output.step_id, ())
        live = [self._live[record.request_id] for record in output.scheduled]
        rows = np.array([self._place(*pair) for pair in zip(live, output.scheduled, strict=True)], dtype=np.int64)
        sequences = [entry.sequence for entry in live]
        batch = make_forward_batch(output.scheduled, sequences, rows, self._block_tables)
        hidden = self._decoder.forward(batch.token_ids, self.kv_cache.region, batch.metadata, self._gate)
        samples = [index for index, record in enumerate(output.scheduled) if record.samples]
        sampled = self._sample(hidden, batch, samples, rows, sequences)
        scores = self._score_prompts(hidden, batch, output, live)
        return ModelRunnerOutput(output.step_id, _outputs(output, samples, sampled, scores))

    def check(self) -> None:
        """Assert that rows are assigned to live sequences, one each."""
        rows = [live.row for live in self._live.values() if live.row is not None]
        assert len(rows) == len(set(rows))
        self._block_tables.check(set(rows))

    def _place(self, live: _Live, record: ScheduledRequest) -> int:
        """Give the sequence a row at its (re)start and write its new blocks; the row."""
        if live.row is None:
            if record.first_block != 0 or not record.new_block_ids:
                raise ValueError(f"{record.request_id} starts without a whole block table")
            live.row = self._block_tables.assign()
            self._sampler.assign(live.row, live.sequence)
        if record.new_block_ids:
            self._block_tables.write(live.row, record.first_block, record.new_block_ids)
        return live.row

    def _release(self, live: _Live) -> None:
        """Take the row of a sequence that lost its blocks."""
        if live.row is not None:
            self._block_tables.release(live.row)
            self._sampler.release(live.row)
            live.row = None

    def _sample(
        self,
        hidden: Tensor,
        batch: ForwardBatch,
        samples: list[int],
        rows: npt.NDArray[np.int64],
        sequences: list[Sequence],
    ) -> SampledTokens:
        """Sample for the scheduled records `samples`, `MAX_LOGITS_ROWS` at a time."""
        token_ids: list[int] = []
        logprobs: list[TokenLogprob | None] = []
        errors: dict[int, str] = {}
        for start in range(0, len(samples), MAX_LOGITS_ROWS):
            part = samples[start : start + MAX_LOGITS_ROWS]
            last = batch.last_tokens[part]
            needed = hidden if len(last) == len(hidden) else hidden.index_select(0, torch.from_numpy(last))
            logits = self._decoder.logits(needed)
            result = self._sampler.sample(logits, rows[part], [sequences[index] for index in part])
            token_ids += result.token_ids
            logprobs += result.logprobs
            errors |= {start + index: error for index, error in result.errors.items()}
        return SampledTokens(token_ids, logprobs, errors)

    def _score_prompts(
        self, hidden: Tensor, batch: ForwardBatch, output: SchedulerOutput, live: list[_Live]
    ) -> dict[str, PromptScores]:
        """Log-probabilities of the prompt tokens of this step, of the requests that want them."""
        spans = []
        for index, (record, entry) in enumerate(zip(output.scheduled, live, strict=True)):
            sequence = entry.sequence
            if sequence.sampling.num_prompt_logprobs is None:
                continue
            first = max(record.num_computed_tokens, entry.num_scored)
            end = min(record.num_computed_tokens + record.num_tokens, sequence.num_prompt_tokens - 1)
            if first < end:
                place = int(batch.first_tokens[index]) + first - record.num_computed_tokens
                spans.append(PromptSpan(record.request_id, sequence, place, first, end - first))
                entry.num_scored = end
        if not spans:
            return {}
        return score_prompts(spans, hidden, self._decoder.logits, self._sampling, MAX_LOGITS_ROWS)


def _outputs(
    output: SchedulerOutput, samples: list[int], sampled: SampledTokens, scores: dict[str, PromptScores]
) -> tuple[RequestOutput, ...]:
    """One record per scheduled request, in the order of the step."""
    sample_of = {index: place for place, index in enumerate(samples)}
    nothing = PromptScores()
    outputs = []
    for index, record in enumerate(output.scheduled):
        place = sample_of.get(index, -1)
        prompt = scores.get(record.request_id, nothing)
        error = sampled.errors.get(place) or prompt.error
        if error is not None:
            outputs.append(RequestOutput(record.request_id, None, error=error))
            continue
        token_id, logprob = (sampled.token_ids[place], sampled.logprobs[place]) if place >= 0 else (None, None)
        outputs.append(RequestOutput(record.request_id, token_id, logprob, tuple(prompt.logprobs)))
    return tuple(outputs)
