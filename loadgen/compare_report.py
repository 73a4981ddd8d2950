"""Shows a comparison: a table and a verdict line, or one JSON object."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from loadgen.bootstrap import Bootstrap
from loadgen.cached_share import CachedShare
from loadgen.compare import ALL, ATTAINMENT, Comparison, Finding, Row
from loadgen.saved_run import SavedRun

JSON_VERSION = 1
_TABLE_WIDTH_CHARS = 120
"""Where the output is no terminal, at least."""
_MAX_WIDTH_CHARS = 1000
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
    table = _table(report)
    if not console.is_terminal:
        # Nobody looks at a width there: no cell is cut.
        console.width = max(console.width, _TABLE_WIDTH_CHARS, _width_chars(table, console))
    console.print(Group(table, *_notes(report), *_verdict(report)))


def _width_chars(table: Table, console: Console) -> int:
    """That the table takes where nothing is cut or folded."""
    return Measurement.get(console, console.options.update_width(_MAX_WIDTH_CHARS), table).maximum


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
        "cached_prompt_share": {each.slo_class: _cached_json(each) for each in comparison.cached},
        "metrics": {row.name: _row_json(row) for row in comparison.rows},
        "conditions": [{"condition": text, "met": is_met} for text, is_met in report.conditions],
    }
    return json.dumps(body, indent=2)


def _cached_json(share: CachedShare) -> dict[str, Any]:
    return {"first": share.first, "second": share.second, "change": share.change, "differs": share.differs}


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
    table.add_column("metric", overflow="fold")
    counted = "pairs" if comparison.is_paired else "requests"
    for title in (counted, "first", "second", f"change [{report.bootstrap.confidence:.0%}]", "relative", "McNemar p"):
        table.add_column(title, justify="right", no_wrap=title != "McNemar p", overflow="fold")
    table.add_column("finding", overflow="fold", min_width=len("none shown"))
    for row in _shown_rows(comparison):
        count = str(row.num_first) if comparison.is_paired else f"{row.num_first} / {row.num_second}"
        relative = "-" if row.metric == ATTAINMENT or row.relative_change is None else f"{row.relative_change:+.1%}"
        p_value = "-" if row.p_value is None else f"{row.p_value:.2g}"
        finding = Text(_SHORT.get(row.finding, row.finding.value), style=_STYLES.get(row.finding, ""))
        table.add_row(row.name, count, *_cells(row), relative, p_value, finding)
    for share in _shown_shares(comparison):
        count = str(share.num_first) if comparison.is_paired else f"{share.num_first} / {share.num_second}"
        finding = Text("differs", style="yellow") if share.differs else Text("alike")
        ends = (f"{share.first:.1%}", f"{share.second:.1%}", f"{share.change * 100.0:+.1f}")
        table.add_row(f"cached.{share.slo_class}", count, *ends, "-", "-", finding)
    return table


def _shown_shares(comparison: Comparison) -> list[CachedShare]:
    """None where neither run found anything in a cache."""
    if not any(share.first or share.second for share in comparison.cached):
        return []
    names = {share.slo_class for share in comparison.cached} - {ALL}
    return [share for share in comparison.cached if share.slo_class != ALL or len(names) != 1]


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
    if comparison.cache_difference is not None:
        notes.append(
            Text(
                f"the prefix cache held {_cache_words(comparison.cache_difference)}: where it held more, first "
                "tokens came faster for that alone. Unless the cache is what you compare, start the server anew "
                "before each run, or give the second one another --prompt-salt",
                style="yellow",
            )
        )
    for run in (report.first, report.second):
        notes += [Text(f"INVALID RUN {run.path}: {reason}", style="bold red") for reason in run.invalid_reasons]
    return notes


def _verdict(report: CompareReport) -> list[Text]:
    comparison = report.comparison
    shown = [row for row in _shown_rows(comparison) if row.finding in (Finding.BETTER, Finding.WORSE)]
    details = [f"{row.name} {_cells(row)[2].partition(' [')[0]}{_unit(row)} {row.finding.value}" for row in shown]
    text = f"verdict: {comparison.verdict.value}" + (f" ({'; '.join(details)})" if details else "")
    if comparison.cache_difference is not None:
        text += f"; but the prefix cache held {_cache_words(comparison.cache_difference)}"
    lines = [Text(text, style=_STYLES.get(comparison.verdict, "bold"))]
    for condition, is_met in report.conditions:
        state = "FAILED" if is_met else "ok"
        lines.append(Text(f"fail if {condition}: {state}", style="bold red" if is_met else ""))
    return lines


def _cache_words(share: CachedShare) -> str:
    of = "all" if share.slo_class == ALL else share.slo_class
    return f"{share.first:.1%} of the prompt tokens of {of} in the first run and {share.second:.1%} in the second"


def _unit(row: Row) -> str:
    return " points" if row.metric == ATTAINMENT else " ms"
