"""From a performance record to the scheduler's latency model: one non-negative fit of the measured steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from offload.measurements import LayerPoint, Measurements, RowPoint, p95
from offload.plan import OffloadPlan
from offload.record import PerformanceRecord
from offload.record_fit import Ramps, RowFit, nnls
from offload.step_cost import Quantile
from offload.transfer import Direction
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.ramp import Ramp
from scheduler.step_features import StepFeatures


def fit_latency(record: PerformanceRecord, streamed_bytes: int = 0) -> LatencyCoefficients:
    """The coefficients of a whole step without or with streamed layers; of a brief record, without.

    Args:
        streamed_bytes: copied for each streamed layer.

    Raises:
        ValueError: nothing was measured.
    """
    alone = fit_measurements(record.measurements, record.fixed_s())
    if record.measurements.is_brief:
        return alone
    pace = record.link_bytes_per_s(Direction.H2D, Quantile.P50)
    return dataclasses.replace(
        alone,
        decode_slowdown=record.slowdown(True, pace),
        prefill_slowdown=record.slowdown(False, pace),
        streamed_layer_bytes=streamed_bytes,
    )


def fit_measurements(measured: Measurements, sync_s: float) -> LatencyCoefficients:
    """The coefficients of a step beside which nothing is copied.

    The sequences of a measured step are all alike: no skew can be seen in it, so its coefficient is 0.

    Args:
        sync_s: what a step takes besides.

    Raises:
        ValueError: nothing was measured.
    """
    points = measured.layers
    if not points:
        raise ValueError("the record holds no measured step: measure again with `headrace profile --force`")
    knots = tuple(float(rows) for rows in sorted({point.num_tokens for point in points}))
    fitted = _fit_layers(points, knots)
    start_s, *rest = (measured.num_layers * value for value in fitted)
    slopes, (per_prefill, per_decode, per_context, per_pair) = rest[: len(knots)], rest[len(knots) :]
    prefill, decode = _p95_factors(measured, knots, fitted)
    return LatencyCoefficients(
        rows=Ramp(start_s, knots, tuple(slopes)),
        samples=_head(measured),
        s_per_prefill_token=per_prefill,
        s_per_decode=per_decode,
        s_per_decode_context_token=per_context,
        s_per_prefill_pair=per_pair,
        sync_s=sync_s,
        p95_factors=(decode, max(prefill, decode), prefill),
    )


def streamed_layer_bytes(plan: OffloadPlan) -> int:
    """Copied for a streamed layer, on average over those that may be."""
    candidates = [plan.unit_bytes[layer] for layer in plan.layer_order[: plan.max_streamed_layers]]
    return round(sum(candidates) / len(candidates)) if candidates else 0


def features_of(point: LayerPoint) -> StepFeatures:
    """Of a measured step, whose sequences are all alike."""
    load, count = point.load, point.num_sequences
    if load.is_decode:
        longest = -(-load.num_context_tokens // count)
        return StepFeatures(0, count, load.num_context_tokens, longest, 0.0, count)
    each, context = load.num_tokens / count, load.num_context_tokens / count
    return StepFeatures(load.num_tokens, 0, 0, 0, load.num_tokens * (context - each / 2), count)


def _row(features: StepFeatures, knots: tuple[float, ...]) -> list[float]:
    return [
        1.0,
        *Ramps.parts(knots, features.num_rows),
        features.prefill_tokens,
        features.num_decodes,
        features.decode_context_tokens,
        features.prefill_pairs,
    ]


def _fit_layers(points: Iterable[LayerPoint], knots: tuple[float, ...]) -> list[float]:
    """Coefficients of an average layer whose relative errors are least in squares."""
    rows = np.array([_row(features_of(point), knots) for point in points], dtype=np.float64)
    times = np.array([point.p50_s for point in points], dtype=np.float64)
    found: list[float] = nnls(rows / times[:, None], np.ones(len(times))).tolist()
    return found


def _p95_factors(measured: Measurements, knots: tuple[float, ...], fitted: list[float]) -> tuple[float, float]:
    """Of prefill and of decode: 95th percentile of measured over fitted, also of points that the fit has not seen."""
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for point in (*measured.layers, *measured.held_out):
        expected_s = sum(a * b for a, b in zip(fitted, _row(features_of(point), knots), strict=True))
        ratios[point.load.is_decode] += [sample / expected_s for sample in point.samples_s]
    prefill, decode = (max(1.0, p95(values)) if values else 1.0 for values in (ratios[False], ratios[True]))
    return prefill, decode


def _head(measured: Measurements) -> Ramp:
    """Head by rows, and what the engine itself spends on each."""
    head = RowFit.of([point.num_rows for point in measured.head], [point.p50_s for point in measured.head])
    per_row_s = _overhead_per_row_s(measured.overhead)
    return Ramp(head.base_s, head.by_rows.knots, tuple(slope + per_row_s for slope in head.by_rows.slopes))


def _overhead_per_row_s(points: Sequence[RowPoint]) -> float:
    """0 where none was measured."""
    if not points:
        return 0.0
    rows, times_s = [point.num_rows for point in points], [point.p50_s for point in points]
    return RowFit.of(rows, times_s, is_straight=True).by_rows.slopes[0]
