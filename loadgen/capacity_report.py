"""Shows what a capacity search found: a table of its probes and what they say, or one JSON object."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loadgen.capacity_config import CapacityConfig
from loadgen.config import BenchConfig
from loadgen.intervals import Interval
from loadgen.probe import ClassCount, Look, Probe
from loadgen.search import SearchResult, describe_reversals

JSON_VERSION = 1
_TABLE_WIDTH_CHARS = 120
"""Where the output is no terminal."""


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityReport:
    """A search with what it was asked."""

    config: BenchConfig
    options: CapacityConfig
    varied: str | None
    """Class whose rate was searched; None: the whole mix."""
    objectives: Mapping[str, float]
    """Of the judged classes."""
    result: SearchResult
    class_rates: Callable[[float], dict[str, float]]
    """Requests per second of each class at a rate of the search; empty for a trace."""


def print_capacity(report: CapacityReport, console: Console) -> None:
    """The probes by rate, and the verdict."""
    if not console.is_terminal:
        console.width = max(console.width, _TABLE_WIDTH_CHARS)
    console.print(Group(_table(report), *_notes(report)))


def probe_line(probe: Probe, objectives: Mapping[str, float], confidence: float) -> str:
    """One probe on one line, as it ends."""
    counts = probe.counts
    classes = [_class_text(name, counts[name], objectives.get(name), confidence) for name in counts]
    return f"{probe.rate_per_s:.4g}/s {_verdict_text(probe)}: {', '.join(classes)}"


def encode_capacity_json(report: CapacityReport) -> str:
    """The search as one JSON object; rates in requests per second, null where there is no answer."""
    result, config = report.result, dataclasses.asdict(report.config)
    del config["api_key"]
    body: dict[str, Any] = {
        "headrace_capacity": JSON_VERSION,
        "config": config,
        "search": dataclasses.asdict(report.options),
        "varied": report.varied,
        "objectives": dict(report.objectives),
        "capacity_per_s": result.capacity_per_s,
        "class_rates_per_s": None if result.capacity_per_s is None else report.class_rates(result.capacity_per_s),
        "interval_per_s": {"low": result.surely_met_per_s, "high": result.surely_missed_per_s},
        "resolved": result.is_resolved,
        "client_limit_per_s": result.client_limit_per_s,
        "passed_above_failed": [{"failed_per_s": low, "passed_per_s": high} for low, high in result.reversals],
        "interrupted": result.interrupted,
        "probes": [_probe_json(probe, report) for probe in result.probes],
    }
    return json.dumps(body, indent=2)


def _probe_json(probe: Probe, report: CapacityReport) -> dict[str, Any]:
    return {
        "rate_per_s": probe.rate_per_s,
        "class_rates_per_s": report.class_rates(probe.rate_per_s),
        "verdict": probe.verdict.value,
        "sure": probe.is_sure,
        "invalid_reasons": list(probe.invalid_reasons),
        "client_limit": probe.is_client_limit,
        "classes": {name: _count_json(name, count, report) for name, count in probe.counts.items()},
        "looks": [_look_json(look) for look in probe.looks],
    }


def _count_json(name: str, count: ClassCount, report: CapacityReport) -> dict[str, Any]:
    confidence = report.options.confidence
    return {
        "objective": report.objectives.get(name),
        "met": count.num_met,
        "judged": count.num_judged,
        "attainment": count.attainment,
        "wilson": _interval_json(count.shown_interval(confidence)),
        "clopper_pearson": _interval_json(count.exact_interval(confidence)),
    }


def _look_json(look: Look) -> dict[str, Any]:
    return {
        "seed": look.seed,
        "duration_s": look.duration_s,
        "goodput_per_s": look.goodput_per_s,
        "send_lag_p99_s": look.send_lag_p99_s,
        "counts": {name: {"met": c.num_met, "judged": c.num_judged} for name, c in look.counts.items()},
    }


def _interval_json(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}


def _table(report: CapacityReport) -> Table:
    confidence = report.options.confidence
    names = list(dict.fromkeys(name for probe in report.result.probes for name in probe.counts))
    what = f"requests/s of {report.varied}" if report.varied else "requests/s"
    table = Table(title=f"capacity of {report.config.url}: attainment by rate", title_justify="left")
    table.add_column(what, justify="right", no_wrap=True)
    table.add_column("verdict")
    for name in names:
        objective = report.objectives.get(name)
        title = name if objective is None else f"{name} >= {_percent(objective)}"
        table.add_column(f"{title}\nmet / judged [{confidence:.0%}]", justify="right", no_wrap=True)
    table.add_column("runs", justify="right")
    table.add_column("send lag p99, ms", justify="right")
    for probe in sorted(report.result.probes, key=lambda p: p.rate_per_s):
        counts = probe.counts
        cells = [_count_text(counts[name], confidence) if name in counts else "-" for name in names]
        lags = [look.send_lag_p99_s for look in probe.looks if look.send_lag_p99_s is not None]
        lag = f"{max(lags) * 1000.0:.1f}" if lags else "-"
        table.add_row(f"{probe.rate_per_s:.4g}", _verdict_text(probe), *cells, str(len(probe.looks)), lag)
    return table


def _notes(report: CapacityReport) -> list[Text]:
    result = report.result
    notes = [Text(_answer(report), style="bold"), *_interval_note(report)]
    if result.first_miss is not None and not result.is_cut_short and not result.is_resolved:
        notes.append(Text("the search ended before it knew the capacity more closely", style="yellow"))
    if any(not probe.is_sure for probe in result.probes):
        notes.append(Text("(estimate): undecided at the end of the probe, its plain attainment counts"))
    if result.reversals:
        notes.append(Text(describe_reversals(result.reversals), style="yellow"))
    if result.client_limit_per_s is not None:
        text = f"at {result.client_limit_per_s:.4g}/s this client could not keep up: its own limit, not the server's"
        notes.append(Text(text, style="bold red"))
    reasons = dict.fromkeys(reason for probe in result.probes for reason in probe.invalid_reasons)
    notes += [Text(f"invalid: {reason}", style="red") for reason in reasons]
    if result.interrupted:
        notes.append(Text("interrupted: the probe that ran is left out", style="yellow"))
    return notes


def _answer(report: CapacityReport) -> str:
    result, rate = report.result, report.result.capacity_per_s
    of_class = f" of {report.varied}" if report.varied else ""
    kept = ", ".join(f"{name} >= {_percent(objective)}" for name, objective in report.objectives.items())
    if rate is None:
        lowest = min((probe.rate_per_s for probe in result.probes), default=None)
        tried = "no rate was tried to its end" if lowest is None else f"not even {lowest:.4g} requests/s passed"
        return f"no capacity{of_class} with {kept}: {tried}"
    bound = "at least " if result.first_miss is None or result.is_cut_short else ""
    shares = report.class_rates(rate)
    split = f" ({', '.join(f'{name} {each:.4g}' for name, each in shares.items())})" if len(shares) > 1 else ""
    return f"capacity: {bound}{rate:.4g} requests/s{of_class}{split} with {kept}"


def _interval_note(report: CapacityReport) -> list[Text]:
    low, high = report.result.surely_met_per_s, report.result.surely_missed_per_s
    if low is None and high is None:
        return []
    ends = [] if low is None else [f"surely met at {low:.4g}"]
    ends += [] if high is None else [f"surely missed at {high:.4g}"]
    return [Text(f"{' and '.join(ends)} requests/s ({report.options.confidence:.0%})")]


def _class_text(name: str, count: ClassCount, objective: float | None, confidence: float) -> str:
    of = "" if objective is None else f" (>= {_percent(objective)})"
    return f"{name} {_count_text(count, confidence)}{of}"


def _count_text(count: ClassCount, confidence: float) -> str:
    interval = count.shown_interval(confidence)
    if interval is None or count.attainment is None:
        return "-"
    return (
        f"{_percent(count.attainment)} [{interval.low * 100.0:.1f}, {interval.high * 100.0:.1f}] n={count.num_judged}"
    )


def _verdict_text(probe: Probe) -> str:
    if probe.is_client_limit:
        return "invalid (client)"
    return probe.verdict.value if probe.is_sure else f"{probe.verdict.value} (estimate)"


def _percent(share: float) -> str:
    return f"{share * 100.0:.4g}%"
