"""A trace as a picture: arrivals over time, and how long prompts and answers are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadgen.traces.naming import naming
from loadgen.traces.trace_file import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_BINS = 240
_LENGTH_BINS = 48
_DPI = 120
_NO_CLASS = "no class"


def write_picture(trace: Trace, path: Path) -> None:
    """Write a PNG; the same trace is the same bytes with the same matplotlib.

    Raises:
        TraceError: the file cannot be written.
    """
    figure = Figure(figsize=(11.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic([["arrivals", "arrivals"], ["prompts", "answers"]])
    _draw_arrivals(axes["arrivals"], trace)
    _draw_lengths(axes["prompts"], trace, "prompt", [each.in_tokens for each in trace.requests])
    _draw_lengths(axes["answers"], trace, "answer", [each.out_tokens for each in trace.requests])
    figure.suptitle(f"{trace.meta.source_file}: {len(trace.requests):,} requests", fontsize=11)
    with naming(path), path.open("wb") as file:
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})


def _classes(trace: Trace) -> dict[str, npt.NDArray[np.bool_]]:
    names = np.array([each.slo_class or _NO_CLASS for each in trace.requests])
    return {name: names == name for name in sorted(set(names.tolist()))}


def _draw_arrivals(axes: Axes, trace: Trace) -> None:
    times_s = np.array([each.t_s for each in trace.requests])
    length_s = max(float(times_s[-1] - times_s[0]), 1.0)
    step_s = max(1.0, np.ceil(length_s / _MAX_BINS))
    edges_s = times_s[0] + step_s * np.arange(int(length_s // step_s) + 2)
    classes = _classes(trace)
    counts = [np.histogram(times_s[chosen], edges_s)[0] / step_s for chosen in classes.values()]
    bottom = np.zeros(len(edges_s) - 1)
    for name, rate in zip(classes, counts, strict=True):
        axes.stairs(bottom + rate, edges_s, baseline=bottom, fill=True, label=name)
        bottom = bottom + rate
    axes.axhline(len(times_s) / length_s, color="black", linewidth=0.8, linestyle="--", label="mean")
    axes.set(xlabel="time in the trace, s", ylabel=f"requests/s, over {step_s:.0f} s", xlim=(edges_s[0], edges_s[-1]))
    axes.set_title("arrivals", fontsize=10, loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(classes) + 1, fontsize=8, frameon=False)


def _draw_lengths(axes: Axes, trace: Trace, name: str, tokens: list[int]) -> None:
    counts = np.array(tokens)
    edges = np.geomspace(0.999 * counts.min(), max(float(counts.max()), 2.0) * 1.001, _LENGTH_BINS + 1)
    classes = _classes(trace)
    for each, chosen in classes.items():
        share = np.histogram(counts[chosen], edges)[0] / chosen.sum()
        axes.stairs(100.0 * share, edges, fill=len(classes) == 1, label=each)
    p50, p99 = np.quantile(counts, (0.5, 0.99))
    for value, style in ((p50, "--"), (p99, ":")):
        axes.axvline(value, color="black", linewidth=0.8, linestyle=style)
    axes.set(xscale="log", xlabel=f"{name} tokens", ylabel="% of a class" if len(classes) > 1 else "% of requests")
    axes.set_title(f"{name}: p50 {p50:,.0f}, p99 {p99:,.0f} tokens (lines)", fontsize=10)
    if len(classes) > 1:
        axes.legend(fontsize=8)
