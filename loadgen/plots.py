"""The pictures of a load test, as SVG for `loadgen.html_report`. No picture tells anything by colour alone."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

import numpy as np

from loadgen.metrics import ClassSummary, Latencies, Outcome, measure
from loadgen.outcome_group import GROUP_TEXT, OutcomeGroup, group_of
from loadgen.result import BenchResult
from loadgen.svg_chart import WIDTH, Axis, Chart, Key, legend_line, path
from loadgen.targets import Targets
from loadgen.trace import TraceEnd

NUM_SERIES = 6
"""Colours and dashes; a class beyond them begins anew."""
_MAX_POINTS = 200
_MAX_BINS = 50
_MAX_NAME_CHARS = 24
_TAIL = 0.995
"""Share of a distribution that its axis surely shows."""
_MAX_RATIO = 20.0
"""Of an axis's end to the least median: beyond it a class would be pressed to the edge, and the axis has decades."""
_MOST_MS = 5000.0
"""Where an axis ends at the latest that is in milliseconds: larger numbers do not fit beside it."""
_PERCENT = tuple((tick / 100.0, f"{tick}%") for tick in (0, 25, 50, 75, 100))


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """One measure that has a target."""

    name: str
    what: str
    value_s: Callable[[Latencies], float | None]
    target_s: Callable[[Targets], float | None]


TTFT = Latency("TTFT", "time to first token", lambda v: v.ttft_s, lambda t: t.ttft_s)
TPOT = Latency("TPOT", "time per output token", lambda v: v.tpot_s, lambda t: t.tpot_s)


def plot_attainment(result: BenchResult) -> str:
    """A bar a class: what became of its requests; and where its objective lies."""
    groups = [group for group in OutcomeGroup if any(_counts(c)[group] for c in result.classes)]
    keys = [Key(_swatch(group), GROUP_TEXT[group]) for group in groups]
    if any(name in result.server.objectives for name in _names(result)):
        keys.append(Key(_marker(15.0, 0.0, 12.0), "objective of the class"))
    head = 18.0 * len(keys) + 14.0
    parts = [legend_line(key, 2.0, 2.0 + 18.0 * i) for i, key in enumerate(keys)]
    for i, summary in enumerate(result.classes):
        parts.append(_class_bar(summary, head + 58.0 * i, result.server.objectives.get(summary.name)))
    height = head + 58.0 * len(result.classes)
    text = "; ".join(f"{c.name}: {_attained(c)}" for c in result.classes)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{html.escape(f"Outcomes by class. {text}")}">' + "\n".join(parts) + "</svg>"
    )


def plot_cdf(result: BenchResult, latency: Latency) -> str | None:
    """Share of the completed requests of each class within a latency; None: there is none to show."""
    values = {name: _values_ms(result, name, latency) for name in _names(result)}
    values = {name: series for name, series in values.items() if series.size}
    if not values:
        return None
    targets = {name: _targets_ms(result, name, latency) for name in values}
    edges = [float(np.quantile(series, _TAIL)) for series in values.values()]
    edges += [high for _, high in filter(None, targets.values())]
    keys = [
        Key(
            _line_sample(_series(result, name)),
            f"{_short(name)}: median {_ms(float(np.median(series)))}{_aim(targets[name])}",
        )
        for name, series in values.items()
    ]
    x = _axis_ms(latency.what, [float(np.median(series)) for series in values.values()], max(edges) * 1.04)
    chart = Chart(x, Axis("completed requests", 0.0, 1.0, _PERCENT), keys)
    for name, series in values.items():
        _draw_target(chart, targets[name], _series(result, name))
        _draw_cdf(chart, series, _series(result, name), x.high)
    return chart.render(f"Distribution of the {latency.what}. " + "; ".join(key.text for key in keys))


def plot_timeline(result: BenchResult) -> str | None:
    """Requests by the moment they were due, and what became of them; None: nothing was sent."""
    offsets_s = _offsets_s(result)
    if not offsets_s.size:
        return None
    width_s, num_bins = _bins(offsets_s)
    counts = {group: np.zeros(num_bins, dtype=np.int64) for group in OutcomeGroup}
    for offset_s, (_, outcome) in zip(offsets_s, result.judged, strict=True):
        counts[group_of(outcome)][min(int(offset_s / width_s), num_bins - 1)] += 1
    shown = [group for group in OutcomeGroup if counts[group].any()]
    keys = [Key(_swatch(group), GROUP_TEXT[group]) for group in shown]
    tallest = int(np.sum(list(counts.values()), axis=0).max())
    x = Axis.up_to("seconds since the start, by the time a request was due", float(width_s * num_bins))
    chart = Chart(x, Axis.from_zero(f"requests per {width_s:g} s", tallest), keys)
    _shade_phases(chart, result, x.high)
    _draw_stacks(chart, [(group, counts[group]) for group in shown], width_s)
    total = ", ".join(f"{counts[group].sum()} {group.value}" for group in shown)
    return chart.render(f"Requests over time: {total}.")


def plot_first_tokens(result: BenchResult) -> str | None:
    """The time to first token of each completed request by the moment it was due; None: none was completed."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in _names(result)}
    for trace, _ in result.judged:
        if trace.end is TraceEnd.COMPLETED:
            due_s = max(trace.intended_s - result.run.started_s, 0.0)
            points[trace.planned.slo_class].append((due_s, measure(trace).ttft_s * 1e3))
    shown = {name: each for name, each in points.items() if each}
    if not shown:
        return None
    targets = {name: _targets_ms(result, name, TTFT) for name in shown}
    keys = [
        Key(
            _dot(_series(result, name), 15.0, 6.0),
            f"{_short(name)}{_aim(targets[name])}{' (dotted)' * bool(targets[name])}",
        )
        for name in shown
    ]
    x = Axis.up_to("seconds since the start, by the time a request was due", math.prod(_bins(_offsets_s(result))))
    highs_ms = [ms for each in shown.values() for _, ms in each]
    highs_ms += [target[1] for target in targets.values() if target is not None]
    medians_ms = [float(np.median([ms for _, ms in each])) for each in shown.values()]
    chart = Chart(x, _axis_ms("first token after", medians_ms, max(highs_ms)), keys)
    _shade_phases(chart, result, x.high)
    for name, each in shown.items():
        target_ms, series = targets[name], _series(result, name)
        if target_ms is not None:
            y = chart.y(target_ms[1])
            chart.add(
                f'<line class="target s{series}" x1="{chart.x(0.0):.1f}" x2="{chart.x(x.high):.1f}" '
                f'y1="{y:.1f}" y2="{y:.1f}"/>'
            )
        for due_s, ttft_ms in each:
            chart.add(_dot(series, chart.x(due_s), chart.y(ttft_ms)))
    slowest = "; ".join(f"{name}: at most {_ms(max(ms for _, ms in each))}" for name, each in shown.items())
    return chart.render(f"Time to first token over time. {slowest}.")


def plot_send_lag(result: BenchResult) -> str | None:
    """How late this client sent, over time; None: nothing was sent."""
    offsets_s = _offsets_s(result)
    if not offsets_s.size:
        return None
    width_s, num_bins = _bins(offsets_s)
    lags_ms = np.asarray([trace.send_lag_s for trace, _ in result.judged]) * 1000.0
    bins = np.minimum((offsets_s / width_s).astype(np.int64), num_bins - 1)
    filled = [i for i in range(num_bins) if (bins == i).any()]
    limit_ms = result.max_send_lag_s * 1000.0
    top_ms = float(lags_ms.max())
    limit_fits = limit_ms <= 4.0 * max(top_ms, 0.25)
    where = "" if limit_fits else ", far above this picture"
    keys = [
        Key('<line class="stem" x1="15" x2="15" y1="0" y2="12"/><circle class="dot" cx="15" cy="2" r="3"/>',
            f"latest request of each {width_s:g} s"),
        Key('<line class="limit" x1="0" x2="30" y1="6" y2="6"/>', f"limit at p99 {_ms(limit_ms)}{where}"),
    ]  # fmt: skip
    x = Axis.up_to("seconds since the start", float(width_s * num_bins))
    chart = Chart(x, Axis.from_zero("sent late, ms", max(top_ms, limit_ms if limit_fits else 0.0, 0.1)), keys, 120.0)
    _shade_phases(chart, result, x.high)
    for i in filled:
        at, y = chart.x((i + 0.5) * width_s), chart.y(float(lags_ms[bins == i].max()))
        chart.add(f'<line class="stem" x1="{at:.1f}" x2="{at:.1f}" y1="{chart.bottom:.1f}" y2="{y:.1f}"/>')
        chart.add(f'<circle class="dot" cx="{at:.1f}" cy="{y:.1f}" r="2.5"/>')
    if limit_fits:
        y = chart.y(limit_ms)
        chart.add(f'<line class="limit" x1="{chart.x(0.0):.1f}" x2="{chart.x(x.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return chart.render(f"Send lag over time: at most {_ms(top_ms)}; the limit at p99 is {_ms(limit_ms)}.")


def _names(result: BenchResult) -> tuple[str, ...]:
    return tuple(summary.name for summary in result.classes)


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"


def _series(result: BenchResult, name: str) -> int:
    return _names(result).index(name) % NUM_SERIES


def _counts(summary: ClassSummary) -> dict[OutcomeGroup, int]:
    counts = dict.fromkeys(OutcomeGroup, 0)
    for outcome in Outcome:
        counts[group_of(outcome)] += summary.outcomes[outcome]
    return counts


def _attained(summary: ClassSummary) -> str:
    if summary.offered_attainment is None:
        return f"{summary.num_sent} sent, not judged"
    return f"{summary.outcomes[Outcome.MET]} of {summary.num_sent} met, {summary.offered_attainment * 100.0:.1f}%"


def _class_bar(summary: ClassSummary, top: float, objective: float | None) -> str:
    left, width, y = 2.0, WIDTH - 4.0, top + 20.0
    parts = [
        f'<text class="name" x="{left}" y="{top + 13:.1f}">{html.escape(summary.name)}</text>',
        f'<text class="key" x="{left + width}" y="{top + 13:.1f}" text-anchor="end">{_attained(summary)}</text>',
        f'<rect class="empty" x="{left}" y="{y:.1f}" width="{width}" height="22"/>',
    ]
    x = left
    for group, count in _counts(summary).items():
        part = width * count / summary.num_sent if summary.num_sent else 0.0
        if count:
            parts.append(_block(group, x, y, part, 22.0))
        x += part
    if objective is not None:
        parts.append(_marker(left + width * objective, y - 4.0, 30.0))
    return "".join(parts)


def _block(group: OutcomeGroup, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="block" style="fill:url(#{group.fill})" x="{x:.2f}" y="{y:.2f}" '
        f'width="{max(width, 0.8):.2f}" height="{height:.2f}"/>'
    )


def _swatch(group: OutcomeGroup) -> str:
    return f'<rect class="block" style="fill:url(#{group.fill})" x="0" y="0" width="30" height="12"/>'


def _marker(x: float, y: float, height: float) -> str:
    return f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + height:.1f}"/>'


def _line_sample(series: int) -> str:
    return f'<line class="line s{series}" x1="0" x2="30" y1="6" y2="6"/>'


def _axis_ms(what: str, medians_ms: Sequence[float], high_ms: float) -> Axis:
    """From zero where that shows every class; else of decades, from below the least median."""
    least_ms = min(medians_ms)
    if 0.0 < least_ms < high_ms / _MAX_RATIO:
        return Axis.of_decades(f"{what}, s", least_ms / 3.0, high_ms, shown=1e-3)
    if high_ms > _MOST_MS:
        return Axis.from_zero(f"{what}, s", high_ms, shown=1e-3)
    return Axis.from_zero(f"{what}, ms", high_ms)


def _dot(series: int, x: float, y: float) -> str:
    """A mark whose shape differs from series to series."""
    if series == 0:
        return f'<circle class="spot s0" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    shapes = ("M-3 -3h6v6h-6z", "M0 -4l4 7h-8z", "M-4 0l4 -4 4 4 -4 4z", "M-3 -3l6 6M-3 3l6 -6", "M-4 0h8M0 -4v8")
    return f'<path class="spot s{series}" transform="translate({x:.1f} {y:.1f})" d="{shapes[series - 1]}"/>'


def _values_ms(result: BenchResult, name: str, latency: Latency) -> np.ndarray:
    values = (
        latency.value_s(measure(trace))
        for trace, _ in result.counted
        if trace.end is TraceEnd.COMPLETED and trace.planned.slo_class == name
    )
    return np.sort(np.asarray([value for value in values if value is not None])) * 1000.0


def _targets_ms(result: BenchResult, name: str, latency: Latency) -> tuple[float, float] | None:
    """From the least to the greatest; None: no request has one."""
    targets = (
        latency.target_s(result.targets_of(trace)) for trace, _ in result.counted if trace.planned.slo_class == name
    )
    values = [value * 1000.0 for value in targets if value is not None]
    return (min(values), max(values)) if values else None


def _aim(target_ms: tuple[float, float] | None) -> str:
    if target_ms is None:
        return ""
    low, high = (_ms(value) for value in target_ms)
    same_unit = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    span = high if low == high else f"{low.rpartition(' ')[0] if same_unit else low}–{high}"
    return f", target {span}"


def _draw_target(chart: Chart, target_ms: tuple[float, float] | None, series: int) -> None:
    """A line with a head, where it grows with the prompt a band as well."""
    if target_ms is None:
        return
    low, high = (chart.x(value) for value in target_ms)
    if high - low > 1.0:
        height = chart.bottom - chart.top
        chart.add(
            f'<rect class="band s{series}" x="{low:.1f}" y="{chart.top}" width="{high - low:.1f}" height="{height}"/>'
        )
    chart.add(
        f'<line class="target s{series}" x1="{high:.1f}" x2="{high:.1f}" y1="{chart.top}" y2="{chart.bottom}"/>'
        f'<path class="head s{series}" d="M{high - 5:.1f} {chart.top - 7}h10l-5 7z"/>'
    )


def _draw_cdf(chart: Chart, sorted_ms: np.ndarray, series: int, high_ms: float) -> None:
    num = sorted_ms.size
    picks = np.unique(np.linspace(0, num - 1, min(num, _MAX_POINTS)).astype(np.int64))
    points = [(chart.x(0.0), chart.y(0.0))]
    for i in picks:
        if sorted_ms[i] > high_ms:
            break
        x = chart.x(float(sorted_ms[i]))
        points += [(x, points[-1][1]), (x, chart.y((int(i) + 1) / num))]
    else:
        points.append((chart.x(high_ms), points[-1][1]))
    chart.add(f'<path class="line s{series}" d="{path(points)}"/>')


def _offsets_s(result: BenchResult) -> np.ndarray:
    return np.asarray([max(trace.intended_s - result.run.started_s, 0.0) for trace, _ in result.judged])


def _bins(offsets_s: np.ndarray) -> tuple[float, int]:
    """Width and number: round widths, so that an axis can name them."""
    span_s = max(float(offsets_s.max()), 1e-3)
    width_s = next(
        factor * 10.0**power
        for power in range(-5, 9)
        for factor in (1.0, 2.0, 5.0)
        if span_s / (factor * 10.0**power) <= _MAX_BINS
    )
    return width_s, int(span_s / width_s) + 1


def _shade_phases(chart: Chart, result: BenchResult, high_s: float) -> None:
    """What is not counted."""
    window = result.window
    spans = [("warm-up", "start", 0.0, window.start_s)] if window.start_s > 0.0 else []
    if window.end_s is not None:
        spans.append(("cool-down", "end", window.end_s, high_s))
    for name, anchor, start_s, end_s in spans:
        left, right = chart.x(start_s), chart.x(end_s)
        chart.add(
            f'<rect class="shade" x="{left:.1f}" y="{chart.top}" width="{right - left:.1f}" '
            f'height="{chart.bottom - chart.top}"/>'
            f'<text class="tick" x="{left if anchor == "start" else right:.1f}" y="{chart.top - 4:.1f}" '
            f'text-anchor="{anchor}">{name}</text>'
        )


def _draw_stacks(chart: Chart, groups: Sequence[tuple[OutcomeGroup, np.ndarray]], width_s: float) -> None:
    below = np.zeros_like(groups[0][1])
    for group, counts in groups:
        for i in np.flatnonzero(counts):
            left, right = chart.x(i * width_s), chart.x((i + 1) * width_s)
            low, high = chart.y(float(below[i])), chart.y(float(below[i] + counts[i]))
            chart.add(_block(group, left, high, right - left - 0.6, low - high))
        below = below + counts


def _ms(value_ms: float) -> str:
    if value_ms >= 10_000.0:
        return f"{value_ms / 1000.0:,.0f} s"
    return f"{value_ms:,.0f} ms" if value_ms >= 100.0 else f"{value_ms:.1f} ms"
