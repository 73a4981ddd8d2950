"""The result of a simulation for people: what was simulated, and a line for each class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scheduler.slo import SLOClasses
from server.simulated_requests import SimulatedRun
from server.simulation_report import Attainment, attainment, by_class


def show(values: dict[str, Any], run: SimulatedRun, classes: SLOClasses, out: Console) -> None:
    """Write the result for people."""

    def line(text: str) -> None:
        out.print(text, highlight=False, markup=False, soft_wrap=True)

    for text in (*_settings(values), *_load(values, run)):
        line(text)
    if values["clipped"]:
        line(f"{values['clipped']} requests were longer than {values['max_model_len']:,} tokens, and were cut.")
    out.print()
    rows = {name: _row(found, values["classes"][name]) for name, found in by_class(run.records, classes).items()}
    rows["overall"] = _row(attainment(run.records, classes), values["overall"])
    hidden = set() if values["overall"]["cancelled"] else {"cancelled"}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("class", no_wrap=True)
    for title in rows["overall"]:
        if title not in hidden:
            table.add_column(title, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(name, *(text for title, text in cells.items() if title not in hidden))
    out.print(table)


def _settings(values: dict[str, Any]) -> Iterator[str]:
    """What was simulated, and what of it is not as it would be without options."""
    yield f"{values['model']} on {values['machine']}"
    yield f"policy {values['policy']}, admission {values['admission']}, seed {values['seed']}"
    named = [
        f"--{option} {values[key]:g}" if isinstance(values[key], float) else f"--{option} {values[key]}"
        for option, key, plain in (
            *(("noise", "noise", 1.0), ("cv", "cv", 1.0), ("burst", "burst", 1.0), ("cancel", "cancel", 0.0)),
            *(("streamed-layers", "streamed_layers", 0), ("trace", "trace", None), ("classes", "classes_file", None)),
        )
        if values[key] != plain
    ]
    mix = [
        f"--mix {c['class']}:{c['share']:g},prompt={_range(c, 'prompt')},output={_range(c, 'output')}"
        for c in values["mix"]
    ]
    yield " ".join((*mix, *named))


def _range(values: dict[str, Any], name: str) -> str:
    low, high = values[f"{name}_tokens"]
    return str(low) if low == high else f"{low}-{high}"


def _load(values: dict[str, Any], run: SimulatedRun) -> Iterator[str]:
    capacity = values["capacity_per_s"]
    of_capacity = "" if capacity is None else f", {values['load']:.3g} x the capacity of {capacity:.4g}/s"
    yield f"{len(run.records)} requests at {values['rate_per_s']:.4g}/s{of_capacity}"
    yield f"arrivals over {values['arrivals_s']:.4g} s, the last one done after {values['duration_s']:.4g} s"


def _row(found: Attainment, values: dict[str, Any]) -> dict[str, str]:
    """By the title of the column."""
    return {
        "sent": str(found.num_sent),
        "met": str(values["met"]),
        "offered": _share(found.offered),
        "admitted": _share(found.admitted),
        "refused": str(values["refused"]),
        "expired": str(values["expired"]),
        "cancelled": str(values["cancelled"]),
        "late": str(found.num_late),
        "TTFT p50": _milliseconds(values["ttft_s"]["p50"]),
        "p99": _milliseconds(values["ttft_s"]["p99"]),
        "TPOT p50": _milliseconds(values["tpot_s"]["p50"]),
    }


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
