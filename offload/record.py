"""The performance record: what a step costs on this machine with this model, as measured.

Source: the performance record of Select-N (Ma et al., ICS 2026), which keeps the decision for each of a grid of
targets; here the times themselves are kept, so that targets, memory and link may change afterwards.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from functools import cached_property

from offload.fingerprint import Fingerprint
from offload.measurements import LinkPoint, Measurements, median, p95
from offload.record_fit import LayerFit, RowFit
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.transfer import Direction

LARGE_COPY_BYTES = 2**20
"""From here on the start of a copy hardly counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeldOutError:
    """|predicted - measured| / measured of the points that the fit has not seen."""

    num_points: int
    median: float
    p95: float


@dataclasses.dataclass(frozen=True)
class PerformanceRecord:
    """Implements `StepCost`. Every time grows with the load; the link is the measured one under an emulation cap.

    Times of layers are those while the link copies at its bandwidth; `quiet_layer_s` is for a step that streams
    nothing. P95 is the fit times the 95th percentile of measured over fitted, prefill and decode apart.
    """

    fingerprint: Fingerprint
    measurements: Measurements
    caps_bytes_per_s: Mapping[Direction, float] = dataclasses.field(default_factory=dict)
    """Bandwidth at most, where a slower link is emulated."""

    def capped(self, h2d_bytes_per_s: float | None, d2h_bytes_per_s: float | None = None) -> PerformanceRecord:
        """The same machine behind a slower link; None: as it is."""
        caps = {Direction.H2D: h2d_bytes_per_s, Direction.D2H: d2h_bytes_per_s}
        return dataclasses.replace(
            self, caps_bytes_per_s={direction: cap for direction, cap in caps.items() if cap is not None}
        )

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """One average layer while the link copies."""
        pace = self.link_bytes_per_s(Direction.H2D, Quantile.P50)
        return self.quiet_layer_s(load, quantile) * self.slowdown(load.is_decode, pace)

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """One average layer while nothing is copied."""
        factor = self._p95_factors[load.is_decode] if quantile is Quantile.P95 else 1.0
        return self._layer_fit(load) * factor

    def head_s(self, num_rows: int, quantile: Quantile) -> float:
        """Head and sampling of `num_rows` rows. The embedding is part of the layers' time."""
        factor = self._head_p95_factor if quantile is Quantile.P95 else 1.0
        return self._head_fit(num_rows) * factor + self._overhead_fit.by_rows(num_rows)

    def fixed_s(self) -> float:
        """Scheduler, batch and messages of a step."""
        return self._overhead_fit.base_s

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:
        """Of copies as large as a layer's slab, beside a step that computes."""
        measured = self._bandwidth[direction]
        if quantile is Quantile.P95:
            measured *= self._p5_factors[direction]
        return min(measured, self.caps_bytes_per_s.get(direction, math.inf))

    def coupling(self, direction: Direction) -> float:
        """Share of its bandwidth that a direction keeps while the other copies, at most 1.

        Under a cap, two directions that together need less than the machine can copy do not slow each other.
        """
        cap = self.caps_bytes_per_s.get(direction, math.inf)
        shares = [
            min(point.together_bytes_per_s, cap) / min(point.p50_bytes_per_s, cap) for point in self._large(direction)
        ]
        return min(1.0, median(shares))

    def slowdown(self, is_decode: bool, copied_bytes_per_s: float) -> float:
        """Factor on a layer's time while the link copies at that pace."""
        points = self._slowdowns[is_decode]
        for (slow_pace, slow), (fast_pace, fast) in itertools.pairwise(points):
            if copied_bytes_per_s <= fast_pace:
                return slow + (fast - slow) * (copied_bytes_per_s - slow_pace) / (fast_pace - slow_pace)
        return points[-1][1]

    @cached_property
    def restart_s(self) -> float:
        """What a load that waited for its slot costs on top of its bytes."""
        return max(0.0, median(self.measurements.restart_samples_s))

    @cached_property
    def held_out_error(self) -> HeldOutError:
        """Of the fit, at the median of each held-out point."""
        errors = [abs(self._layer_fit(point.load) / point.p50_s - 1.0) for point in self.measurements.held_out]
        if not errors:
            return HeldOutError(0, math.nan, math.nan)
        return HeldOutError(len(errors), median(errors), p95(errors))

    @cached_property
    def _layer_fit(self) -> LayerFit:
        points = self.measurements.layers
        return LayerFit.of([point.load for point in points], [point.p50_s for point in points])

    @cached_property
    def _p95_factors(self) -> Mapping[bool, float]:
        """By whether the step is a decode."""
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for point in (*self.measurements.layers, *self.measurements.held_out):
            fitted = self._layer_fit(point.load)
            ratios[point.load.is_decode] += [sample / fitted for sample in point.samples_s]
        return {key: max(1.0, p95(values)) if values else 1.0 for key, values in ratios.items()}

    @cached_property
    def _head_fit(self) -> RowFit:
        points = self.measurements.head
        return RowFit.of([point.num_rows for point in points], [point.p50_s for point in points])

    @cached_property
    def _head_p95_factor(self) -> float:
        points = self.measurements.head
        ratios = [sample / self._head_fit(point.num_rows) for point in points for sample in point.samples_s]
        return max(1.0, p95(ratios))

    @cached_property
    def _overhead_fit(self) -> RowFit:
        points = self.measurements.overhead
        return RowFit.of([point.num_rows for point in points], [point.p50_s for point in points], is_straight=True)

    def _large(self, direction: Direction) -> list[LinkPoint]:
        """Points of one direction with large copies; the largest one, if none is large."""
        points = [point for point in self.measurements.link if point.direction is direction]
        large = [point for point in points if point.num_bytes >= LARGE_COPY_BYTES]
        return large or [max(points, key=lambda point: point.num_bytes)]

    @cached_property
    def _bandwidth(self) -> Mapping[Direction, float]:
        """By direction, of a copy as large as a slab: between measured sizes, and beside computation."""
        return {
            direction: _bandwidth_at(self._large(direction), self.measurements.layer_bytes) * self._busy_share
            for direction in Direction
        }

    @cached_property
    def _busy_share(self) -> float:
        """Share of its bandwidth that the link keeps while a step computes, at most 1."""
        alone = _bandwidth_at(self._large(Direction.H2D), self.measurements.layer_bytes)
        shares = [
            point.copied_bytes_per_s / alone
            for point in self.measurements.interference
            if point.cap_bytes_per_s is None
        ]
        return min(1.0, *shares) if shares else 1.0

    @cached_property
    def _p5_factors(self) -> Mapping[Direction, float]:
        """By direction, 5th percentile of the bandwidth / its median, over all large copies."""
        factors = {}
        for direction in Direction:
            slower = [
                sample / median(point.samples_s) for point in self._large(direction) for sample in point.samples_s
            ]
            factors[direction] = 1.0 / max(1.0, p95(slower))
        return factors

    @cached_property
    def _slowdowns(self) -> Mapping[bool, list[tuple[float, float]]]:
        """By whether the step is a decode: (bytes copied a second, factor), ascending in both, from (0, 1)."""
        curves: dict[bool, list[tuple[float, float]]] = {True: [(0.0, 1.0)], False: [(0.0, 1.0)]}
        for point in sorted(self.measurements.interference, key=lambda point: point.copied_bytes_per_s):
            curve = curves[point.load.is_decode]
            pace, factor = curve[-1]
            if point.copied_bytes_per_s > pace:
                curve.append((point.copied_bytes_per_s, max(factor, point.slowdown)))
        return curves


def _bandwidth_at(points: list[LinkPoint], num_bytes: int) -> float:
    """Of a copy of `num_bytes`: its time lies straight between those of the nearest measured sizes."""
    ordered = sorted(points, key=lambda point: point.num_bytes)
    for small, large in itertools.pairwise(ordered):
        if small.num_bytes <= num_bytes <= large.num_bytes:
            share = (num_bytes - small.num_bytes) / (large.num_bytes - small.num_bytes)
            small_s, large_s = median(small.samples_s), median(large.samples_s)
            return num_bytes / (small_s + share * (large_s - small_s))
    nearest = ordered[0] if num_bytes < ordered[0].num_bytes else ordered[-1]
    return nearest.p50_bytes_per_s
