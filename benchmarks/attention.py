"""Attention of all layers of a step: native kernels against torch, in turns, in one process.

    python benchmarks/attention.py [--dtype bfloat16] [--threads 2] [--repetitions 15] [--shape 30,9,3,64] [--no-torch]

The shape is layers, query heads, key/value heads and head dimension; the default is SmolLM2-135M's. Blocks of a
sequence lie in random order in one block-major cache, in huge pages as the engine's. For each step it prints what must
at least be read and computed, and the median and the fastest pass of each. `read` is how fast torch adds up the cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.attention.base import AttentionBackend, AttentionMetadata, cache_shape, layer_view
from kernels.attention.native_attention import NativeAttention
from kernels.attention.torch_attention import TorchAttention
from kernels.native_library import NativeLibrary, build_library
from offload.host_memory import allocate_host

BLOCK_SIZE = 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STEPS = {
    "decode 1 x 200": (1, 1, 200),
    "decode 8 x 200": (8, 1, 200),
    "decode 32 x 200": (32, 1, 200),
    "decode 32 x 1000": (32, 1, 1000),
    "decode 1 x 8000": (1, 1, 8000),
    "prefill 512": (1, 512, 512),
    "prefill 512 of 1024": (1, 512, 1024),
    "prefill 476 of 1500": (1, 476, 1500),
    "prefill 4 x 128": (4, 128, 128),
}
"""Sequences, queries of each, context of each."""


@dataclasses.dataclass(frozen=True)
class Shape:
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def make_step(batch: int, query_len: int, context_len: int) -> AttentionMetadata:
    """Sequences of equal length in shuffled blocks."""
    blocks_each = -(-context_len // BLOCK_SIZE)
    tables = torch.randperm(batch * blocks_each, generator=torch.Generator().manual_seed(0)).view(batch, blocks_each)
    positions = torch.arange(context_len - query_len, context_len)
    slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return AttentionMetadata(
        (query_len,) * batch, (context_len,) * batch, tables, slots.flatten(), positions.repeat(batch)
    )


def make_cache(shape: Shape, num_blocks: int, dtype: torch.dtype) -> Tensor:
    size = cache_shape(num_blocks, shape.num_layers, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    cache = allocate_host(size.numel() * dtype.itemsize).view(dtype).view(size)
    return cache.copy_(torch.randn(size[1:], generator=torch.Generator().manual_seed(1)))


def all_layers(
    backend: AttentionBackend, metadata: AttentionMetadata, query: Tensor, cache: Tensor
) -> Callable[[], None]:
    """Plans as a step does, then attends in every layer."""

    def run() -> None:
        step = backend.plan(metadata, BLOCK_SIZE, cache.dtype)
        for layer in range(cache.shape[1]):
            step.attend(query, layer_view(cache, layer), 0.125)

    return run


def measure(functions: list[Callable[[], None]], repetitions: int) -> list[list[float]]:
    """Milliseconds of each, in turns, after two runs to warm up."""
    times: list[list[float]] = [[] for _ in functions]
    for repetition in range(repetitions + 2):
        for taken, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            if repetition >= 2:
                taken.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--shape", default="30,9,3,64")
    parser.add_argument("--isa", default="")
    parser.add_argument("--no-torch", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = Shape(*map(int, arguments.shape.split(",")))
    dtype = DTYPES[arguments.dtype]
    library = NativeLibrary(build_library(os.environ), arguments.threads, arguments.isa)
    backends: list[AttentionBackend] = [NativeAttention(library, shape.num_heads, shape.num_kv_heads)]
    if not arguments.no_torch:
        backends.append(TorchAttention())
    print(f"{library.isa}, {arguments.threads} threads, {arguments.dtype}, {shape}")
    print(
        f"{'step':20} {'MB':>6} {'read ms':>8} {'GFLOP':>6} | {'native ms':>15} {'GB/s':>5} {'GFLOP/s':>7} | torch ms"
    )
    for name, (batch, query_len, context_len) in STEPS.items():
        metadata = make_step(batch, query_len, context_len)
        cache = make_cache(shape, metadata.block_tables.numel(), dtype)
        query = torch.randn(metadata.num_tokens, shape.num_heads, shape.head_dim).to(dtype)
        words = cache.view(-1).view(torch.int32)
        functions = [lambda words=words: words.sum(dtype=torch.int32)]
        functions += [all_layers(backend, metadata, query, cache) for backend in backends]
        read, native, *others = measure(functions, arguments.repetitions)
        megabytes = cache.numel() * dtype.itemsize / 1e6
        seen = batch * query_len * (2 * context_len - query_len + 1) / 2
        gflop = seen * 4 * shape.num_heads * shape.head_dim * shape.num_layers / 1e9
        fastest, median = min(native), statistics.median(native)
        row = f"{name:20} {megabytes:6.1f} {min(read):8.2f} {gflop:6.2f} | {median:7.2f} {fastest:7.2f}"
        row += f" {megabytes / fastest:5.1f} {gflop / fastest * 1e3:7.0f} |"
        print(row, *(f"{statistics.median(other):7.2f} {min(other):7.2f}" for other in others), flush=True)
    library.close()


if __name__ == "__main__":
    main()
