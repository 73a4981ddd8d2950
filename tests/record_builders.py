"""Performance records of machines that do not exist, made from a formula: what a fit must find again."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from engine.profile_grid import ProfileLimits, StepShape, grid, held_out_grid
from offload.fingerprint import Fingerprint
from offload.measurements import InterferencePoint, LayerPoint, LinkPoint, Measurements, RowPoint
from offload.record import PerformanceRecord
from offload.record_fit import num_pairs
from offload.step_load import StepLoad
from offload.transfer import Direction

LIMITS = ProfileLimits(max_num_sequences=64, max_num_tokens=512, max_context_tokens=8192, kv_tokens=23_000)
HEAD_S, HEAD_PER_ROW_S = 1e-3, 5e-5
FIXED_S, OVERHEAD_PER_ROW_S = 4e-4, 2e-5
LINK_BYTES_PER_S = 8e9
COPY_START_S = 20e-6
RESTART_S = 5e-4
SLOWDOWN_AT_2_GBPS = 1.08


def true_layer_s(load: StepLoad) -> float:
    """A roofline over the matrices, and attention: 7 MB of weights, 4 us a token above 20 tokens."""
    matrices_s = max(300e-6, 15e-6 * load.num_tokens)
    return 20e-6 + matrices_s + 30e-9 * load.num_context_tokens + 8e-9 * num_pairs(load)


def make_fingerprint(**changed: Any) -> Fingerprint:
    """Of that machine."""
    made = Fingerprint(
        device="Imaginary Processor 9000",
        processor_features="0123456789abcdef",
        driver="Linux x86_64",
        num_cores=2,
        num_threads=1,
        model="fedcba9876543210",
        dtype="bfloat16",
        weights="stored",
        kernels="native avx512bf16 06f9f8c6933eb065",
        torch_version="2.13.0",
        is_batch_invariant=False,
    )
    return dataclasses.replace(made, **changed)


def make_measurements(noise: float = 0.0, seed: int = 0, num_samples: int = 7) -> Measurements:
    """What a profile of it measures.

    Args:
        noise: standard deviation of every sample, relative.
    """
    source = random.Random(seed)

    def samples(time_s: float) -> tuple[float, ...]:
        return tuple(time_s * max(0.1, source.gauss(1.0, noise)) for _ in range(num_samples))

    def layer(shape: StepShape) -> LayerPoint:
        load = shape.load
        return LayerPoint(
            load.num_tokens, load.num_sequences, load.num_context_tokens, samples(true_layer_s(load)), num_dropped=1
        )

    def interference(shape: StepShape, cap: float | None) -> InterferencePoint:
        load, pace = shape.load, cap or LINK_BYTES_PER_S
        quiet = samples(true_layer_s(load))
        factor = 1.0 + (SLOWDOWN_AT_2_GBPS - 1.0) * pace / 2e9
        counts = (load.num_tokens, load.num_sequences, load.num_context_tokens)
        return InterferencePoint(*counts, cap, pace, quiet, tuple(time_s * factor for time_s in quiet))

    def copy_s(size: int, share: float) -> float:
        return COPY_START_S + size / (LINK_BYTES_PER_S * share)

    rows = (1, 8, 64)
    return Measurements(
        num_layers=30,
        layer_bytes=7_000_000,
        max_num_sequences=LIMITS.max_num_sequences,
        max_num_tokens=LIMITS.max_num_tokens,
        max_context_tokens=LIMITS.max_context_tokens,
        layers=tuple(layer(shape) for shape in grid(LIMITS)),
        held_out=tuple(layer(shape) for shape in held_out_grid(LIMITS)),
        head=tuple(RowPoint(num, samples(HEAD_S + HEAD_PER_ROW_S * num)) for num in rows),
        overhead=tuple(RowPoint(num, samples(FIXED_S + OVERHEAD_PER_ROW_S * num)) for num in rows),
        link=tuple(
            LinkPoint(direction, size, samples(copy_s(size, 1.0)), samples(copy_s(size, 0.5)))
            for direction in Direction
            for size in (4096, 2**20, 2**24, 2**26)
        ),
        restart_samples_s=samples(RESTART_S),
        interference=tuple(
            interference(shape, cap)
            for cap in (0.5e9, 2e9, None)
            for shape in (StepShape(8, 1, 1), StepShape(1, 64, 64))
        ),
        wall_s=20.0,
        created_unix_s=1_780_000_000.0,
    )


def make_record(noise: float = 0.0, seed: int = 0) -> PerformanceRecord:
    """Of that machine."""
    return PerformanceRecord(make_fingerprint(), make_measurements(noise, seed))
