"""What a load test comes to, in one sentence."""

from __future__ import annotations

from loadgen.metrics import ClassSummary, Outcome
from loadgen.result import BenchResult


def verdict_sentence(result: BenchResult) -> str:
    """For people who read nothing else. Of a run that must not be believed it says that, and no number."""
    if result.invalid_reasons:
        return f"Do not believe this run: {'; '.join(result.invalid_reasons)}."
    overall = result.overall
    head = f"Of {overall.num_sent} requests{_load(result)}, "
    if result.run.interrupted:
        head = f"Interrupted: of {overall.num_sent} requests{_load(result)}, "
    if overall.outcomes[Outcome.UNJUDGED] == overall.num_sent:
        return f"{head}none could be judged, since no latency target is known: give targets with --slo."
    if overall.offered_attainment is None:
        return f"{head}{overall.outcomes[Outcome.MET]} surely met their latency targets; others have no known target."
    share = f"{_percent(overall.offered_attainment)} met their latency targets"
    if len(result.classes) == 1:
        return f"{head}{share}{_against(result, result.classes[0])}."
    parts = [
        f"{summary.name} {_percent(summary.offered_attainment)}{_against(result, summary)}"
        for summary in result.classes
        if summary.offered_attainment is not None
    ]
    return f"{head}{share}: {', '.join(parts)}."


def _load(result: BenchResult) -> str:
    config, window_s = result.config, result.window.length_s
    if not config.is_open_loop:
        return f" by {config.concurrency} clients, each with one open"
    return f" at {result.overall.num_sent / window_s:.3g} a second" if window_s else ""


def _against(result: BenchResult, summary: ClassSummary) -> str:
    objective = result.server.objectives.get(summary.name)
    if objective is None or summary.offered_attainment is None:
        return ""
    word = "reached" if summary.offered_attainment >= objective else "missed"
    return f" (objective {_percent(objective)} {word})"


def _percent(ratio: float | None) -> str:
    """Never rounded up to 100%."""
    if ratio is None:
        return "-"
    text = f"{ratio * 100.0:.1f}"
    return "99.9%" if text == "100.0" and ratio < 1.0 else f"{text.removesuffix('.0')}%"
