"""Whether measurements can be true: a wrong unit or a damaged file is told before a plan is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from offload.errors import OffloadError
from offload.measurements import LayerPoint, Measurements, RowPoint
from offload.transfer import Direction

MAX_LAYER_S = 10.0
MAX_FIXED_S = 10.0
MIN_LINK_BYTES_PER_S = 0.01e9
MAX_LINK_BYTES_PER_S = 2000e9
MAX_WEIGHT_BYTES_PER_S = 20_000e9
"""No device reads weights faster: the limit that times in a unit a thousand times too large run into."""
MONOTONE_FACTOR = 3.0
MONOTONE_SLACK_S = 100e-6
"""A step that computes more may be measured faster by that much: noise, and tiles that smaller steps leave half empty.
A unit that is wrong in one place is wrong by more."""


class ImplausibleRecordError(OffloadError):
    """A number that no machine can have measured; names it, the limit and the way out."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; a unit is wrong or the file is damaged: delete it and measure again with `headrace profile`"
        )
        self.problem = problem


def check_measurements(measurements: Measurements) -> None:
    """
    Raises:
        ImplausibleRecordError: see there.
    """
    for problem in _problems(measurements):
        raise ImplausibleRecordError(problem)


def _problems(measurements: Measurements) -> Iterator[str]:
    for name in ("num_layers", "layer_bytes", "max_num_sequences", "max_num_tokens", "max_context_tokens"):
        if getattr(measurements, name) < 1:
            yield f"{name} is {getattr(measurements, name)}, it must be at least 1"
    yield from _layer_problems(measurements)
    yield from _row_problems("head", measurements.head)
    yield from _row_problems("overhead", measurements.overhead)
    yield from _link_problems(measurements)
    yield from _interference_problems(measurements)
    for sample_s in measurements.restart_samples_s:
        if not abs(sample_s) <= MAX_FIXED_S:  # a difference: noise may turn it negative
            yield f"restart_samples_s has {sample_s}, it must be between -{MAX_FIXED_S:g} and {MAX_FIXED_S:g}"
    if not measurements.restart_samples_s and not measurements.is_brief:
        yield "restart_samples_s is empty"


def _layer_problems(measurements: Measurements) -> Iterator[str]:
    for name, points in (("layers", measurements.layers), ("held_out", measurements.held_out)):
        for point in points:
            where = f"{name}: {_load_text(point)}"
            try:
                _ = point.load
            except ValueError as error:
                yield f"{where}: {error}"
                continue
            yield from _time_problems(where, point.samples_s, MAX_LAYER_S)
            if point.samples_s and measurements.layer_bytes / max(point.p50_s, 1e-300) > MAX_WEIGHT_BYTES_PER_S:
                yield (
                    f"{where}: {point.p50_s:.3g} s for {measurements.layer_bytes:,} bytes of weights is more than "
                    f"{MAX_WEIGHT_BYTES_PER_S / 1e9:,.0f} GB/s"
                )
    if not measurements.layers:
        yield "layers is empty"
    yield from _not_monotone(measurements.layers)


def _not_monotone(points: Sequence[LayerPoint]) -> Iterator[str]:
    """Points that are larger in every count and yet much faster.

    Of two steps with equal counts the one of fewer sequences attends more: each of its tokens sees the whole context.
    """
    for large in points:
        for small in points:
            is_smaller = (
                small.num_tokens <= large.num_tokens
                and small.num_sequences <= large.num_sequences
                and small.num_context_tokens <= large.num_context_tokens
                and _attended_pairs(small) <= _attended_pairs(large)
            )
            if is_smaller and small.p50_s > MONOTONE_FACTOR * large.p50_s + MONOTONE_SLACK_S:
                yield (
                    f"layers: {_load_text(small)} takes {small.p50_s:.3g} s and the larger {_load_text(large)} "
                    f"{large.p50_s:.3g} s: times must grow with the load"
                )


def _attended_pairs(point: LayerPoint) -> float:
    """Of a token and a key, at most, where all sequences are alike."""
    return point.num_tokens * point.num_context_tokens / point.num_sequences


def _row_problems(name: str, points: Sequence[RowPoint]) -> Iterator[str]:
    if not points:
        yield f"{name} is empty"
    for point in points:
        if point.num_rows < 1:
            yield f"{name}: num_rows is {point.num_rows}, it must be at least 1"
        yield from _time_problems(f"{name}: {point.num_rows} rows", point.samples_s, MAX_FIXED_S)


def _link_problems(measurements: Measurements) -> Iterator[str]:
    if len({point.direction for point in measurements.link}) < 2 and not measurements.is_brief:
        yield "link: both directions must have been measured"
    for point in measurements.link:
        where = f"link: {point.num_bytes:,} bytes {point.direction}"
        if point.num_bytes < 1:
            yield f"{where}: num_bytes must be at least 1"
        for name, samples_s in (("samples_s", point.samples_s), ("together_samples_s", point.together_samples_s)):
            yield from _time_problems(f"{where}: {name}", samples_s, math.inf)
    for direction in Direction:
        points = [point for point in measurements.link if point.direction is direction]
        largest = max(points, key=lambda point: point.num_bytes, default=None)
        if largest is not None and largest.samples_s and largest.together_samples_s:
            for rate in (largest.p50_bytes_per_s, largest.together_bytes_per_s):
                if not MIN_LINK_BYTES_PER_S <= rate <= MAX_LINK_BYTES_PER_S:
                    yield (
                        f"link: {rate / 1e9:.3g} GB/s {direction} for {largest.num_bytes:,} bytes, it must be between "
                        f"{MIN_LINK_BYTES_PER_S / 1e9:g} and {MAX_LINK_BYTES_PER_S / 1e9:,.0f} GB/s"
                    )


def _interference_problems(measurements: Measurements) -> Iterator[str]:
    for point in measurements.interference:
        where = f"interference at {point.copied_bytes_per_s / 1e9:.3g} GB/s"
        if not 0.0 < point.copied_bytes_per_s <= MAX_LINK_BYTES_PER_S:
            yield f"{where}: it must be above 0 and at most {MAX_LINK_BYTES_PER_S / 1e9:,.0f} GB/s"
        yield from _time_problems(f"{where}: quiet_samples_s", point.quiet_samples_s, MAX_LAYER_S)
        yield from _time_problems(f"{where}: busy_samples_s", point.busy_samples_s, MAX_LAYER_S)
        if len(point.quiet_samples_s) != len(point.busy_samples_s):
            yield f"{where}: {len(point.quiet_samples_s)} quiet samples and {len(point.busy_samples_s)} busy ones"


def _time_problems(where: str, samples_s: Sequence[float], max_s: float) -> Iterator[str]:
    if not samples_s:
        yield f"{where}: no samples"
    for sample_s in samples_s:
        if not (0.0 < sample_s <= max_s and math.isfinite(sample_s)):
            yield f"{where}: {sample_s} s, a time must be above 0 and at most {max_s:g} s"


def _load_text(point: LayerPoint) -> str:
    return (
        f"{point.num_tokens} tokens of {point.num_sequences} sequences with {point.num_context_tokens} context tokens"
    )
