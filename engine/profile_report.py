"""A performance record as rows of tables: plain numbers, for whoever shows them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from offload.measurements import LayerPoint, p95
from offload.step_cost import Quantile

if TYPE_CHECKING:
    from offload.record import PerformanceRecord


@dataclasses.dataclass(frozen=True, slots=True)
class LayerRow:
    """One measured step, and what the fit makes of it."""

    is_decode: bool
    num_sequences: int
    num_tokens: int
    context_each: int
    p50_s: float
    p95_s: float
    fitted_s: float
    is_held_out: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LinkRow:
    direction: str
    num_bytes: int
    p50_bytes_per_s: float
    p5_bytes_per_s: float
    together_bytes_per_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class SlowdownRow:
    is_decode: bool
    num_tokens: int
    cap_bytes_per_s: float | None
    copied_bytes_per_s: float
    slowdown: float


@dataclasses.dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Relative errors."""

    num_points: int
    median: float
    p95: float


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileReport:
    """What there is to show of a record."""

    layers: tuple[LayerRow, ...]
    link: tuple[LinkRow, ...]
    slowdowns: tuple[SlowdownRow, ...]
    held_out: HeldOutRow
    head_rows: int
    head_one_s: float
    head_all_s: float
    fixed_s: float
    restart_s: float
    wall_s: float
    num_samples: int
    num_dropped: int


def make_report(record: PerformanceRecord) -> ProfileReport:
    """Gather the rows."""
    measured = record.measurements
    error = record.held_out_error
    points = (*measured.layers, *measured.held_out)
    num_dropped = sum(point.num_dropped for point in points)
    return ProfileReport(
        layers=tuple(
            _layer_row(record, point, is_held_out)
            for is_held_out, part in ((False, measured.layers), (True, measured.held_out))
            for point in part
        ),
        link=tuple(
            LinkRow(
                str(point.direction),
                point.num_bytes,
                point.p50_bytes_per_s,
                point.p5_bytes_per_s,
                point.together_bytes_per_s,
            )
            for point in measured.link
        ),
        slowdowns=tuple(
            SlowdownRow(
                point.load.is_decode,
                point.num_tokens,
                point.cap_bytes_per_s,
                point.copied_bytes_per_s,
                point.slowdown,
            )
            for point in measured.interference
        ),
        held_out=HeldOutRow(error.num_points, error.median, error.p95),
        head_rows=measured.max_num_sequences,
        head_one_s=record.head_s(1, Quantile.P50),
        head_all_s=record.head_s(measured.max_num_sequences, Quantile.P50),
        fixed_s=record.fixed_s(),
        restart_s=record.restart_s,
        wall_s=measured.wall_s,
        num_samples=sum(len(point.samples_s) for point in points) + num_dropped,
        num_dropped=num_dropped,
    )


def _layer_row(record: PerformanceRecord, point: LayerPoint, is_held_out: bool) -> LayerRow:
    return LayerRow(
        is_decode=point.load.is_decode,
        num_sequences=point.num_sequences,
        num_tokens=point.num_tokens,
        context_each=point.num_context_tokens // point.num_sequences,
        p50_s=point.p50_s,
        p95_s=p95(point.samples_s),
        fitted_s=record.quiet_layer_s(point.load, Quantile.P50),
        is_held_out=is_held_out,
    )
