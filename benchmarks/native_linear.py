"""The products of all decoder layers: native kernels against torch, in turns, in one process.

    python benchmarks/native_linear.py [--dtype bfloat16] [--threads 1,2] [--rows 1,8,32,128,512] [--repetitions 9]

The matrices are those of SmolLM2-135M (30 layers of 960x576, 576x576, 3072x576, 576x1536): 106 M numbers, so that they
come from main memory at every pass as they do in a step. Prints the median and the fastest pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels.linear import packed_bytes
from kernels.native.linear import linear
from kernels.native.tiled_format import TiledFormat
from kernels.native_library import NativeLibrary, build_library
from kernels.packed_matrix import PackedMatrix
from offload.host_memory import allocate_host

NUM_LAYERS = 30
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def make_matrices(dtype: torch.dtype) -> tuple[list[Tensor], list[PackedMatrix]]:
    """The same numbers as rows and in tiles."""
    weight_format = TiledFormat(dtype)
    sizes = [packed_bytes(weight_format, *shape) for shape in SHAPES] * NUM_LAYERS
    regions = allocate_host(sum(sizes)).split(sizes)
    rows, packed = [], []
    for shape, data in zip(SHAPES * NUM_LAYERS, regions, strict=True):
        matrix = torch.randn(shape).mul_(0.05).to(dtype)
        weight_format.pack(matrix, data)
        rows.append(matrix)
        packed.append(PackedMatrix(weight_format, *shape, data))
    return rows, packed


def time_ms(function: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    function()
    return (clock() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rows", default="1,8,32,128,512")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--isa", default="")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="of the process, for one thread on a busy machine")
    arguments = parser.parse_args()
    dtype = DTYPES[arguments.dtype]
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    rows, packed = make_matrices(dtype)
    num_bytes = sum(matrix.data.nbytes for matrix in packed)
    num_products = sum(matrix.out_features * matrix.in_features for matrix in packed)
    print(f"{arguments.dtype}: {num_bytes / 1e6:.0f} MB, {2 * num_products / 1e9:.3f} GFLOP a row")
    print(f"{'threads':>7} {'rows':>5} {'':8} {'median ms':>10} {'min ms':>8} {'GB/s':>7} {'GFLOP/s':>8}   (at best)")
    for threads in map(int, arguments.threads.split(",")):
        library = NativeLibrary(build_library(os.environ), threads, arguments.isa)
        torch.set_num_threads(threads)
        for num_rows in map(int, arguments.rows.split(",")):
            inputs = {k: torch.randn(num_rows, k).to(dtype) for _, k in SHAPES}
            outputs = {n: torch.empty(num_rows, n, dtype=dtype) for n, _ in SHAPES}

            def run_native(library=library, inputs=inputs, outputs=outputs) -> None:
                for matrix in packed:
                    linear(library, inputs[matrix.in_features], matrix, outputs[matrix.out_features])

            def run_torch(inputs=inputs) -> None:
                for matrix in rows:
                    functional.linear(inputs[matrix.shape[1]], matrix)

            subjects = (
                {library.isa: run_native} if arguments.no_torch else {library.isa: run_native, "torch": run_torch}
            )
            times: dict[str, list[float]] = {name: [] for name in subjects}
            for repetition in range(arguments.repetitions + 1):
                for name, function in subjects.items():
                    elapsed = time_ms(function, clock)
                    if repetition:
                        times[name].append(elapsed)
            for name, values in times.items():
                fastest = min(values)
                print(
                    f"{threads:7} {num_rows:5} {name[-8:]:8} {statistics.median(values):10.2f} {fastest:8.2f} "
                    f"{num_bytes / fastest / 1e6:7.1f} {2 * num_products * num_rows / fastest / 1e6:8.0f}"
                )
        library.close()


if __name__ == "__main__":
    main()
