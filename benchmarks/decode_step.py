"""Time of the forward pass alone: decode steps at several batch sizes, and prefill, native kernels against torch.

    python benchmarks/decode_step.py MODEL [--dtype bfloat16] [--threads 2] [--context 190] [--repetitions 20]

The subjects take turns in one process. Prints the median and the fastest of the repetitions, and with --profile where
the time of torch's decode step goes. Sequences have the contexts of S3 of the peers' benchmark by default: 128 prompt
tokens, in the middle of 128 output tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.weights import load_model
from kernels.attention.base import AttentionMetadata, cache_shape
from kernels.native_library import NativeLibrary, build_library

AnyDecoder = Decoder | NativeDecoder
BLOCK_SIZE = 16


def make_step(batch: int, query_len: int, context_len: int, num_blocks: int) -> AttentionMetadata:
    """`batch` sequences of equal length in shuffled blocks."""
    blocks_each = -(-context_len // BLOCK_SIZE)
    generator = torch.Generator().manual_seed(0)
    tables = torch.randperm(num_blocks, generator=generator)[: batch * blocks_each].view(batch, blocks_each)
    positions = torch.arange(context_len - query_len, context_len)
    slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return AttentionMetadata(
        (query_len,) * batch, (context_len,) * batch, tables, slots.flatten(), positions.repeat(batch)
    )


def run_step(decoder: AnyDecoder, token_ids: Tensor, cache: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Forward and the logits of each sequence's last token."""
    hidden = decoder.forward(token_ids, cache, metadata)
    last = torch.tensor(metadata.query_lens).cumsum(0) - 1
    return decoder.logits(hidden[last])


class Subject:
    """One decoder, with the threads it computes on."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name = name
        self._threads = arguments.threads
        library = None
        if name == "native":
            library = NativeLibrary(build_library(os.environ), arguments.threads, arguments.isa)
            self.name, self._threads = library.isa, 1
        start = time.perf_counter()
        model = load_model(
            arguments.model, arguments.dtype, lambda _: None, batch_invariant=arguments.batch_invariant, library=library
        )
        print(f"{self.name}: {model.dtype}, {arguments.threads} threads, loaded in {time.perf_counter() - start:.1f} s")
        self.config, self.decoder, self.dtype = model.config, model.decoder, model.dtype
        self.times_ms: list[float] = []

    def step(self, token_ids: Tensor, cache: Tensor, metadata: AttentionMetadata, clock: Callable[[], float]) -> None:
        torch.set_num_threads(self._threads)
        start = clock()
        run_step(self.decoder, token_ids, cache, metadata)
        self.times_ms.append((clock() - start) * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--context", type=int, default=190)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--kernels", default="native,torch")
    parser.add_argument("--isa", default="")
    parser.add_argument("--batch-invariant", action="store_true", help="of torch; native always is")
    parser.add_argument("--cpu-time", action="store_true", help="of the process: for one thread on a busy machine")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    subjects = [Subject(name, arguments) for name in arguments.kernels.split(",")]
    config = subjects[0].config
    num_blocks = 32 * -(-max(arguments.context, 64) // BLOCK_SIZE) + 128
    shape = cache_shape(num_blocks, config.num_layers, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    cache = torch.zeros(shape, dtype=subjects[0].dtype)
    print(f"{'step':28} {'kernels':>10} {'median ms':>10} {'min ms':>8} {'tokens/s':>9}")
    cases = [(f"decode, {b} x context {arguments.context}", b, 1, arguments.context) for b in (1, 8, 32)]
    cases += [("prefill, 1 x 512", 1, 512, 512), ("prefill chunk, 512 of 1500", 1, 512, 1500)]
    cases += [("prefill, 4 x 128", 4, 128, 128)]
    for name, batch, query_len, context_len in cases:
        metadata = make_step(batch, query_len, context_len, num_blocks)
        token_ids = torch.arange(metadata.num_tokens) % config.vocab_size
        repetitions = arguments.repetitions if query_len == 1 else max(3, arguments.repetitions // 4)
        for subject in subjects * (repetitions + 2):
            subject.step(token_ids, cache, metadata, clock)
        for subject in subjects:
            times_ms, subject.times_ms = subject.times_ms[2:], []
            median = statistics.median(times_ms)
            rate = metadata.num_tokens / median * 1e3
            print(f"{name:28} {subject.name:>10} {median:10.1f} {min(times_ms):8.1f} {rate:9.0f}")
            if arguments.profile and query_len == 1:
                with torch.profiler.profile() as profile:
                    run_step(subject.decoder, token_ids, cache, metadata)
                print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=14))


if __name__ == "__main__":
    main()
