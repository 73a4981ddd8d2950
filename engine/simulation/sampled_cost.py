"""What a profile would have measured on a machine whose costs are known, for the fit that a record gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from engine.latency_fit import fit_measurements
from engine.profile_grid import ProfileLimits, StepShape, grid, held_out_grid
from offload.measurements import LayerPoint, Measurements, RowPoint
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from scheduler.latency_coefficients import LatencyCoefficients


def fit_cost(cost: StepCost, num_layers: int, limits: ProfileLimits, streamed_bytes: int = 0) -> LatencyCoefficients:
    """The latency model of a machine by its costs, sampled over the grid of a profile.

    Where the costs are of the model's own form, it is exact and its P95 is its mean; else the P95 holds what the fit
    is off by. A roofline bends where the grid need not have a knot.

    Args:
        streamed_bytes: copied for each streamed layer.
    """
    fitted = fit_measurements(sample_cost(cost, num_layers, limits), cost.fixed_s())
    chunk = min(limits.max_num_tokens, limits.max_context_tokens)
    return dataclasses.replace(
        fitted,
        decode_slowdown=_slowdown(cost, StepLoad(1, 1, 1)),
        prefill_slowdown=_slowdown(cost, StepLoad(chunk, 1, chunk)),
        streamed_layer_bytes=streamed_bytes,
    )


def sample_cost(cost: StepCost, num_layers: int, limits: ProfileLimits) -> Measurements:
    """One noiseless repetition of each step of the grid; nothing of a link, and no overhead by rows."""
    return Measurements(
        num_layers=num_layers,
        layer_bytes=0,
        max_num_sequences=limits.max_num_sequences,
        max_num_tokens=limits.max_num_tokens,
        max_context_tokens=limits.max_context_tokens,
        layers=tuple(_points(cost, grid(limits))),
        held_out=tuple(_points(cost, held_out_grid(limits))),
        head=tuple(_head(cost, limits)),
        overhead=(),
        link=(),
        restart_samples_s=(),
        interference=(),
        wall_s=0.0,
        created_unix_s=0.0,
    )


def _points(cost: StepCost, shapes: Iterable[StepShape]) -> Iterator[LayerPoint]:
    for shape in shapes:
        load, layer_s = shape.load, cost.quiet_layer_s(shape.load, Quantile.P50)
        yield LayerPoint(load.num_tokens, load.num_sequences, load.num_context_tokens, (layer_s,))


def _head(cost: StepCost, limits: ProfileLimits) -> Iterator[RowPoint]:
    """Of the batches of the grid."""
    for num_rows in sorted({shape.num_sequences for shape in grid(limits)}):
        yield RowPoint(num_rows, (cost.head_s(num_rows, Quantile.P50),))


def _slowdown(cost: StepCost, load: StepLoad) -> float:
    """Of a layer while the link copies, at least 1."""
    return max(1.0, cost.layer_s(load, Quantile.P50) / cost.quiet_layer_s(load, Quantile.P50))
