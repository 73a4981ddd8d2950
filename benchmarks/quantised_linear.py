"""Products with quantised matrices against dense ones: native kernels and torch, in turns, in one process.

    python benchmarks/quantised_linear.py [--model smollm2] [--formats Q4_1,Q8_0] [--threads 1] [--rows 1,8,32,128,512]

The matrices are those of the layers of a model: SmolLM2-135M's 30 layers, or two of Llama 3.2 1B's, more than caches
hold, so that they come from main memory at every pass as they do in a step. A pass quantises its activations too.
Prints the median and the fastest pass of each subject, bytes of weights and operations by the fastest, and how often
faster than the dense product in bfloat16 the median is.
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

from kernels.linear import WeightFormat, packed_bytes
from kernels.native.linear import linear
from kernels.native.quantised import pack_blocks
from kernels.native.tiled_format import TiledFormat
from kernels.native_library import NativeLibrary, build_library
from kernels.packed_matrix import PackedMatrix
from kernels.quantised.block_type import BLOCK_TYPES
from kernels.quantised.tiled_blocks import TiledBlocks
from offload.host_memory import allocate_host

SHAPES = {
    "smollm2": ((960, 576), (576, 576), (3072, 576), (576, 1536)) * 30,
    "llama-1b": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)) * 2,
}
DENSE = "bfloat16"
TORCH = "torch bf16"


def make_matrices(name: str, shapes: tuple[tuple[int, int], ...], library: NativeLibrary) -> list[PackedMatrix]:
    """Random ones in one region; every layer has the same bytes, each its own memory."""
    weight_format: WeightFormat = TiledFormat(torch.bfloat16) if name == DENSE else TiledBlocks(BLOCK_TYPES[name])
    sizes = [packed_bytes(weight_format, *shape) for shape in shapes]
    first: dict[tuple[int, int], Tensor] = {}
    matrices = []
    for shape, data in zip(shapes, allocate_host(sum(sizes)).split(sizes), strict=True):
        if shape in first:
            data.copy_(first[shape])
        elif isinstance(weight_format, TiledBlocks):
            row_bytes = weight_format.block_type.stored_row_bytes(shape[1])
            blocks = torch.randint(0, 60, (shape[0], row_bytes), dtype=torch.uint8)  # scales stay finite
            pack_blocks(library, weight_format, blocks, shape[1], data)
        else:
            weight_format.pack(torch.randn(shape) * 0.05, data)
        first.setdefault(shape, data)
        matrices.append(PackedMatrix(weight_format, *shape, data))
    return matrices


def pass_of(
    matrices: list[PackedMatrix], library: NativeLibrary, inputs: dict[int, Tensor], outputs: dict[int, Tensor]
) -> Callable[[], None]:
    def run() -> None:
        for matrix in matrices:
            linear(library, inputs[matrix.in_features], matrix, outputs[matrix.out_features])

    return run


def torch_pass_of(matrices: list[Tensor], inputs: dict[int, Tensor]) -> Callable[[], None]:
    def run() -> None:
        for matrix in matrices:
            functional.linear(inputs[matrix.shape[1]], matrix)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="smollm2")
    parser.add_argument("--formats", help="default: all whose blocks fit the model's rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,8,32,128,512")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--isa", default="")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="of the process, for one thread on a busy machine")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    shapes = SHAPES[arguments.model]
    fitting = [name for name, kind in BLOCK_TYPES.items() if all(k % kind.block_size == 0 for _, k in shapes)]
    names = [DENSE, *(arguments.formats.split(",") if arguments.formats else fitting)]
    library = NativeLibrary(build_library(os.environ), arguments.threads, arguments.isa)
    torch.set_num_threads(arguments.threads)
    packed = {name: make_matrices(name, shapes, library) for name in names}
    plain = [] if arguments.no_torch else [torch.randn(shape).mul_(0.05).bfloat16() for shape in shapes]
    num_products = sum(n * k for n, k in shapes)
    num_bytes = {name: sum(matrix.data.nbytes for matrix in matrices) for name, matrices in packed.items()}
    num_bytes[TORCH] = 2 * num_products
    print(f"{library.isa}, {arguments.threads} threads, {arguments.model}: {2 * num_products / 1e9:.3f} GOP a row")
    print(f"{'rows':>5} {'':10} {'MB':>6} {'median ms':>10} {'min ms':>8} {'GB/s':>6} {'GOP/s':>6} {'x dense':>8}")
    for num_rows in map(int, arguments.rows.split(",")):
        inputs = {k: torch.randn(num_rows, k).bfloat16() for _, k in shapes}
        outputs = {n: torch.empty(num_rows, n) for n, _ in shapes}
        subjects = {name: pass_of(matrices, library, inputs, outputs) for name, matrices in packed.items()}
        if plain:
            subjects[TORCH] = torch_pass_of(plain, inputs)
        times = time_in_turns(subjects, arguments.repetitions, clock)
        dense = statistics.median(times[DENSE])
        for name, values in times.items():
            median, fastest = statistics.median(values), min(values)
            print(
                f"{num_rows:5} {name:10} {num_bytes[name] / 1e6:6.0f} {median:10.2f} {fastest:8.2f} "
                f"{num_bytes[name] / fastest / 1e6:6.1f} {2 * num_products * num_rows / fastest / 1e6:6.0f} "
                f"{dense / median:8.2f}"
            )
    library.close()


def time_in_turns(
    subjects: dict[str, Callable[[], None]], repetitions: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Milliseconds of each pass, the first left out."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for repetition in range(repetitions + 1):
        for name, run in subjects.items():
            start = clock()
            run()
            if repetition:
                times[name].append((clock() - start) * 1e3)
    return times


if __name__ == "__main__":
    main()
