"""Shows a comparison: a table and a verdict line, or one JSON object."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loadgen.bootstrap import Bootstrap
from loadgen.compare import ALL, ATTAINMENT, Comparison, Finding, Row
from loadgen.saved_run import SavedRun

JSON_VERSION = 1
_TABLE_WIDTH_CHARS = 120
"""Where the output is no terminal."""
_SHORT = {Finding.NO_DIFFERENCE: "none shown", Finding.TOO_FEW: "too few"}
"""In the table."""
_STYLES = {Finding.BETTER: "green", Finding.WORSE: "bold red", Finding.MIXED: "yellow"}


@dataclasses.dataclass(frozen=True, slots=True)
class CompareReport:
    """A comparison and the conditions that were put to it."""

    first: SavedRun
    second: SavedRun
    bootstrap: Bootstrap
    plan_differences: tuple[str, ...]
    """Empty where it is paired."""
    comparison: Comparison
    conditions: tuple[tuple[str, bool], ...]
    """Each as it was written, and whether it is met."""

    @property
    def met_conditions(self) -> tuple[str, ...]:
        return tuple(text for text, is_met in self.conditions if is_met)


def print_comparison(report: CompareReport, console: Console) -> None:
    """The table, the notes, and the verdict."""
    if not console.is_terminal:
        console.width = max(console.width, _TABLE_WIDTH_CHARS)
    console.print(Group(_table(report), *_notes(report), *_verdict(report)))


def encode_compare_json(report: CompareReport) -> str:
    """The comparison as one JSON object; shares and seconds, null where there is nothing to compare."""
    comparison, bootstrap = report.comparison, report.bootstrap
    body: dict[str, Any] = {
        "headrace_compare": JSON_VERSION,
        "first": report.first.path,
        "second": report.second.path,
        "paired": comparison.is_paired,
        "plan_differences": list(report.plan_differences),
        "pairs": comparison.num_pairs if comparison.is_paired else None,
        "without_partner": comparison.num_alone if comparison.is_paired else None,
        "other_targets": comparison.has_other_targets,
        "invalid_reasons": {run.path: list(run.invalid_reasons) for run in (report.first, report.second)},
        "bootstrap": dataclasses.asdict(bootstrap),
        "verdict": comparison.verdict.value,
        "metrics": {row.name: _row_json(row) for row in comparison.rows},
        "conditions": [{"condition": text, "met": is_met} for text, is_met in report.conditions],
    }
    return json.dumps(body, indent=2)


def _row_json(row: Row) -> dict[str, Any]:
    difference = row.difference
    return {
        "first_count": row.num_first,
        "second_count": row.num_second,
        "first": None if difference is None else difference.first,
        "second": None if difference is None else difference.second,
        "change": None if difference is None else difference.change,
        "interval": None if difference is None else {"low": difference.interval.low, "high": difference.interval.high},
        "relative_change": row.relative_change,
        "mcnemar_p": row.p_value,
        "finding": row.finding.value,
    }


def _table(report: CompareReport) -> Table:
    comparison = report.comparison
    table = Table(title=f"{report.second.path} beside {report.first.path}", title_justify="left")
    table.add_column("metric", no_wrap=True)
    counted = "pairs" if comparison.is_paired else "requests"
    for title in (counted, "first", "second", f"change [{report.bootstrap.confidence:.0%}]", "relative", "McNemar p"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("finding", no_wrap=True)
    for row in _shown_rows(comparison):
        count = str(row.num_first) if comparison.is_paired else f"{row.num_first} / {row.num_second}"
        relative = "-" if row.metric == ATTAINMENT or row.relative_change is None else f"{row.relative_change:+.1%}"
        p_value = "-" if row.p_value is None else f"{row.p_value:.2g}"
        finding = Text(_SHORT.get(row.finding, row.finding.value), style=_STYLES.get(row.finding, ""))
        table.add_row(row.name, count, *_cells(row), relative, p_value, finding)
    return table


def _shown_rows(comparison: Comparison) -> list[Row]:
    """Of one class alone the sum of all is the same once more."""
    names = {row.slo_class for row in comparison.rows} - {ALL}
    return [row for row in comparison.rows if row.difference is not None and (row.slo_class != ALL or len(names) != 1)]


def _cells(row: Row) -> tuple[str, str, str]:
    """First, second and change: percent and points, or milliseconds."""
    difference = row.difference
    if difference is None:
        return "-", "-", "-"
    scale, unit, digits = (100.0, "%", 2) if row.metric == ATTAINMENT else (1000.0, " ms", 1)
    ends = (f"{end * scale:+.{digits}f}" for end in (difference.interval.low, difference.interval.high))
    first, second = (f"{value * scale:.{digits}f}{unit}" for value in (difference.first, difference.second))
    return first, second, f"{difference.change * scale:+.{digits}f} [{', '.join(ends)}]"


def _notes(report: CompareReport) -> list[Text]:
    comparison = report.comparison
    notes = []
    if not comparison.is_paired:
        what = "; ".join(report.plan_differences) or "nothing"
        notes.append(Text(f"unpaired: what differs may be the load. Planned differently: {what}", style="yellow"))
    elif comparison.num_alone:
        notes.append(Text(f"{comparison.num_alone} requests have no partner in the other run and are left out"))
    if comparison.has_other_targets:
        notes.append(Text("the servers told different targets: attainment measures these, too", style="yellow"))
    for run in (report.first, report.second):
        notes += [Text(f"INVALID RUN {run.path}: {reason}", style="bold red") for reason in run.invalid_reasons]
    return notes


def _verdict(report: CompareReport) -> list[Text]:
    comparison = report.comparison
    shown = [row for row in _shown_rows(comparison) if row.finding in (Finding.BETTER, Finding.WORSE)]
    details = [f"{row.name} {_cells(row)[2].partition(' [')[0]}{_unit(row)} {row.finding.value}" for row in shown]
    text = f"verdict: {comparison.verdict.value}" + (f" ({'; '.join(details)})" if details else "")
    lines = [Text(text, style=_STYLES.get(comparison.verdict, "bold"))]
    for condition, is_met in report.conditions:
        state = "FAILED" if is_met else "ok"
        lines.append(Text(f"fail if {condition}: {state}", style="bold red" if is_met else ""))
    return lines


def _unit(row: Row) -> str:
    return " points" if row.metric == ATTAINMENT else " ms"
