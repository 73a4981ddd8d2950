# ruff: noqa: ARG002
"""The runner's own time per step of decodes, without a model: `python benchmarks/runner_overhead.py`.

The decoder returns tensors made beforehand, so what is left is the layout of the step, the sampler and the records.
The sampler is also timed alone on logits of SmolLM2's vocabulary. Medians of processor time, one compute thread, on
PyTorch's and numpy's kernels and on the native ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import Tensor

from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.model_runner import ModelRunner
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from kernels.attention.base import AttentionMetadata
from kernels.native.row_sampling import NativeRowSampling
from kernels.native_library import load_native_library
from kernels.row_sampling import RowSampling, TorchRowSampling
from scheduler.output import ScheduledRequest, SchedulerOutput

BLOCK_SIZE = 16
PROMPT_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    num_layers: int = 2
    num_kv_heads: int = 1
    head_dim: int = 8


class NoDecoder:
    """Takes a step and gives back the same tensors every time."""

    dtype = torch.float32

    def __init__(self, num_seqs: int, vocab_size: int) -> None:
        self._hidden = torch.zeros(num_seqs, 8)
        self._logits = torch.randn(num_seqs, vocab_size, generator=torch.Generator().manual_seed(0))

    def forward(
        self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE
    ) -> Tensor:
        return self._hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits


@dataclasses.dataclass(frozen=True)
class Model:
    decoder: NoDecoder
    config: Shape = dataclasses.field(default_factory=Shape)


def make_sequences(count: int, options: dict[str, Any]) -> list[Sequence]:
    sampling = SamplingParams(**({"max_tokens": 512, "temperature": 0.0} | options))
    sequences = [
        Sequence(f"r{index}", 0, tuple(range(PROMPT_TOKENS)), sampling, frozenset({2}), BLOCK_SIZE)
        for index in range(count)
    ]
    for sequence in sequences:
        for token in range(64):
            sequence.append(token)
    return sequences


def median_us(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 5):
        start = time.thread_time()
        action()
        times.append((time.thread_time() - start) * 1e6)
    return statistics.median(times[5:])


def execute_us(kernels: RowSampling, num_seqs: int, vocab_size: int, options: dict[str, Any], repeats: int) -> float:
    """One decode step of `num_seqs` sequences."""
    blocks = -(-(PROMPT_TOKENS + 512) // BLOCK_SIZE)
    runner = ModelRunner(
        Model(NoDecoder(num_seqs, vocab_size)),
        num_seqs * blocks,
        BLOCK_SIZE,
        num_seqs,
        num_seqs,
        blocks * BLOCK_SIZE,
        kernels,
    )
    records = []
    for index, sequence in enumerate(make_sequences(num_seqs, options)):
        runner.add(sequence)
        table = tuple(range(index * blocks, (index + 1) * blocks))
        first = ScheduledRequest(sequence.request_id, 1, sequence.num_tokens - 1, 0, table, True)
        runner.execute(SchedulerOutput(0, 0.0, (first,)))
        records.append(dataclasses.replace(first, first_block=blocks, new_block_ids=()))
    step = SchedulerOutput(1, 0.0, tuple(records))
    return median_us(lambda: runner.execute(step), repeats)


def sampler_us(kernels: RowSampling, num_seqs: int, vocab_size: int, options: dict[str, Any], repeats: int) -> float:
    """The sampler alone, on logits that it may not change for good."""
    sampler = Sampler(num_seqs, kernels)
    sequences = make_sequences(num_seqs, options)
    for row, sequence in enumerate(sequences):
        sampler.assign(row, sequence)
    logits = torch.randn(num_seqs, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    rows = np.arange(num_seqs)
    return median_us(lambda: sampler.sample(logits, rows, sequences), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--num-seqs", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count, vocab_size, repeats = arguments.num_seqs, arguments.vocab_size, arguments.repeats
    library = load_native_library(1)
    both: tuple[RowSampling, RowSampling] = (TorchRowSampling(), NativeRowSampling(library))
    print(f"{count} decodes, vocabulary {vocab_size}, medians of {repeats}, ms: torch, native {library.isa}")
    for vocabulary in (64, vocab_size):
        times = [execute_us(kernels, count, vocabulary, {}, repeats) / 1000 for kernels in both]
        print(f"execute, greedy, vocabulary {vocabulary:6d}: {times[0]:8.3f} {times[1]:8.3f}")
    cases: dict[str, dict[str, Any]] = {
        "greedy": {},
        "greedy, logprobs 5": {"num_logprobs": 5},
        "greedy, penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.5},
        "temperature 1": {"temperature": 1.0},
        "temperature 1, top_k 50": {"temperature": 1.0, "top_k": 50},
        "temperature 1, top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
        "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
        "temperature 0.4, top_p 0.95": {"temperature": 0.4, "top_p": 0.95},
        "temperature 1, min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    }
    for name, options in cases.items():
        times = [sampler_us(kernels, count, vocab_size, options, repeats) / 1000 for kernels in both]
        print(f"sampler, {name:28s}: {times[0]:8.3f} {times[1]:8.3f}")
    library.close()


if __name__ == "__main__":
    main()
