"""A trace and its figures as lines of text."""

from __future__ import annotations

from pathlib import Path

from loadgen.traces.description import (
    LengthQuantiles,
    SessionFigures,
    TraceDescription,
    describe,
    describe_classes,
)
from loadgen.traces.ties import is_stepped
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import TraceMeta, Transform


def written_lines(trace: Trace, out_path: Path) -> list[str]:
    """What was read, what became of it, and where it is."""
    lines = [f"{out_path}: {_counts(trace.meta)}", *_origin(trace.meta)]
    return [*lines, *_warnings(trace)]


def describe_lines(trace: Trace) -> list[str]:
    """The figures, as `headrace trace describe` shows them."""
    figures = describe(trace.requests)
    return [
        _line("rows", _counts(trace.meta)),
        *_origin(trace.meta),
        *_arrivals(figures),
        _line("input", _lengths(figures.in_tokens)),
        _line("output", _lengths(figures.out_tokens)),
        _line("prefixes", _prefixes(figures)),
        _line("sessions", _sessions(figures.sessions)),
        _line("classes", _classes(figures)),
        *_class_lines(trace, figures),
        *_warnings(trace),
    ]


def _line(name: str, text: str) -> str:
    return f"{name:<10} {text}"


def _counts(meta: TraceMeta) -> str:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in meta.num_dropped.items())
    return (
        f"{meta.num_rows_read:,} read = {meta.num_rows_emitted:,} emitted + "
        f"{sum(meta.num_dropped.values()):,} dropped{dropped and f' ({dropped})'}"
    )


def _origin(meta: TraceMeta) -> list[str]:
    lines = [
        _line("source", f"{meta.source.name}; {meta.source_file}, sha256 {meta.source_sha256}"),
        _line("licence", meta.source.licence),
    ]
    if meta.source.attribution is not None:
        lines.append(_line("cite", meta.source.attribution))
    for part in meta.parts:
        lines.append(_line("part", f"{part.source_file}: {_counts(part)}"))
        lines.extend(_line("", _transform(transform)) for transform in part.transforms)
    lines.extend(_line("transform", _transform(transform)) for transform in meta.transforms)
    return lines


def _transform(transform: Transform) -> str:
    return " ".join([transform.name, *(f"{name}={value}" for name, value in transform.details.items())])


def _arrivals(figures: TraceDescription) -> list[str]:
    return [
        _line(
            "rate",
            f"{_number(figures.rate_per_s)} requests/s: {figures.num_requests:,} in {figures.duration_s:,.1f} s, at "
            f"most {figures.max_in_one_second} in one second, longest silence {figures.longest_gap_s:,.1f} s",
        ),
        _line(
            "burstiness",
            f"CV of gaps {_number(figures.gap_cv)}, variance / mean per second {_number(figures.dispersion)} "
            "(Poisson arrivals: 1 and 1)",
        ),
        _line("times", f"{figures.num_distinct_times:,} distinct for {figures.num_requests:,} requests"),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _lengths(lengths: LengthQuantiles) -> str:
    return (
        f"tokens mean {lengths.mean:,.0f}, p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f}, p99 {lengths.p99:,.0f}, "
        f"max {lengths.max:,}"
    )


def _prefixes(figures: TraceDescription) -> str:
    rate = figures.block_hit_rate
    if rate is None:
        return "not told by this trace"
    return f"{100 * rate:.1f} % of {figures.num_blocks:,} blocks are hits of an endless cache"


def _classes(figures: TraceDescription) -> str:
    if figures.num_by_class.keys() == {None}:
        return "not told by this trace"
    named = sorted(figures.num_by_class.items(), key=lambda item: (item[0] is None, item[0] or ""))
    return ", ".join(f"{name or 'none'} {count / figures.num_requests:.1%}" for name, count in named)


def _class_lines(trace: Trace, figures: TraceDescription) -> list[str]:
    """Each class alone, where there are several."""
    if len(figures.num_by_class) < 2:
        return []
    return [
        _line(
            f"  {name or 'none'}",
            f"{_number(each.rate_per_s)} requests/s, CV of gaps {_number(each.gap_cv)}, variance / mean "
            f"{_number(each.dispersion)}; input p50 {each.in_tokens.p50:,.0f}, p99 {each.in_tokens.p99:,.0f}; output "
            f"p50 {each.out_tokens.p50:,.0f}, p99 {each.out_tokens.p99:,.0f}",
        )
        for name, each in describe_classes(trace.requests).items()
    ]


def _sessions(figures: SessionFigures | None) -> str:
    if figures is None:
        return "not told by this trace"
    think = "not told" if figures.mean_think_s is None else f"{figures.mean_think_s:,.3g} s on average"
    return (
        f"{figures.num_sessions:,} of {figures.num_requests:,} requests, {figures.mean_turns:.3g} turns on average, at "
        f"most {figures.max_turns:,}; {figures.num_waiting:,} requests wait for an answer; think time {think}"
    )


def _warnings(trace: Trace) -> list[str]:
    if not is_stepped(trace.requests):
        return []
    num_times = len({request.t_s for request in trace.requests})
    return [
        f"note: {len(trace.requests):,} requests at {num_times:,} distinct times, the steps of a coarse clock: "
        "replayed as they are, they come in volleys; `headrace trace import --spread-ties` spreads them"
    ]
