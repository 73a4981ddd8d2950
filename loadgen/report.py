"""Shows the result of a load test: a table for people, JSON for programs. Times are milliseconds in the table."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loadgen.metrics import LATE, ClassSummary, Outcome, Quantiles
from loadgen.phases import Phase
from loadgen.result import BenchResult, ErrorCount
from loadgen.result_json import result_json
from loadgen.server_table import server_lines
from loadgen.vllm_format import to_vllm_json

_TABLE_WIDTH_CHARS = 120
"""Where the output is no terminal."""
_ALWAYS_SHOWN = (
    ("met", (Outcome.MET,)),
    ("late", LATE),
    ("refused", (Outcome.REFUSED,)),
    ("failed", (Outcome.FAILED,)),
)
_SHOWN_WHERE_ANY = (
    ("ttft", (Outcome.LATE_TTFT,)),
    ("tpot", (Outcome.LATE_TPOT,)),
    ("stall", (Outcome.LATE_STALL,)),
    ("e2e", (Outcome.LATE_E2E,)),
    ("expired", (Outcome.EXPIRED,)),
    ("timed out", (Outcome.TIMED_OUT,)),
    ("cancelled", (Outcome.CANCELLED,)),
    ("unjudged", (Outcome.UNJUDGED,)),
)


def print_report(result: BenchResult, console: Console) -> None:
    """The tables, the state of the run, and the most frequent errors."""
    if not console.is_terminal:
        console.width = max(console.width, _TABLE_WIDTH_CHARS)
    parts = [_outcome_table(result), _latency_table(result), *server_lines(result.server_view), *_notes(result)]
    console.print(Group(*parts))


def encode_json(result: BenchResult) -> str:
    """The result as JSON in the form that `--format` names."""
    body = to_vllm_json(result) if result.config.json_format == "vllm" else result_json(result)
    return json.dumps(body, indent=2)


def _rows(result: BenchResult) -> tuple[ClassSummary, ...]:
    return (*result.classes, result.overall) if len(result.classes) > 1 else result.classes


def _outcome_table(result: BenchResult) -> Table:
    table = Table(title=f"{result.server.model} at {result.config.url}: outcomes by class", title_justify="left")
    rare = [column for column in _SHOWN_WHERE_ANY if any(result.overall.outcomes[outcome] for outcome in column[1])]
    if result.overall.num_late:
        rare[0] = (f"late: {rare[0][0]}", rare[0][1])  # what was late stands first
    shown = [*_ALWAYS_SHOWN, *rare]
    table.add_column("class", no_wrap=True)
    for title in ("sent", *(title for title, _ in shown), "met / sent"):
        table.add_column(title, justify="right", no_wrap=True)
    for summary in _rows(result):
        counts = [str(sum(summary.outcomes[outcome] for outcome in outcomes)) for _, outcomes in shown]
        table.add_row(summary.name, str(summary.num_sent), *counts, _percent(summary.offered_attainment))
    return table


def _latency_table(result: BenchResult) -> Table:
    table = Table(title="latency of completed requests from their intended send time, ms", title_justify="left")
    table.add_column("class", no_wrap=True)
    for title in ("TTFT p50", "p95", "p99", "TPOT p50", "p95", "p99", "ITL p99", "E2E p50", "p99"):
        table.add_column(title, justify="right")
    for summary in _rows(result):
        ttft, tpot, itl, e2e = summary.ttft, summary.tpot, summary.itl, summary.e2e
        cells = [
            *(_ms(q, p) for q in (ttft, tpot) for p in ("p50_s", "p95_s", "p99_s")),
            _ms(itl, "p99_s"),
            *(_ms(e2e, p) for p in ("p50_s", "p99_s")),
        ]
        table.add_row(summary.name, *cells)
    return table


def _notes(result: BenchResult) -> list[Text]:
    overall, run = result.overall, result.run
    lag = overall.send_lag
    duration_s = max(run.ended_s - run.started_s, 1e-9)
    goodput = "-" if overall.goodput_per_s is None else f"{overall.goodput_per_s:.2f} requests/s"
    notes = [
        Text(
            f"{duration_s:.1f} s, goodput {goodput}, output {overall.num_output_tokens / duration_s:.1f} tokens/s, "
            f"prompt tokens cached {_cached(overall)}, degraded {overall.num_degraded}"
        ),
        Text(
            f"send lag p50 {_ms(lag, 'p50_s')} ms, p99 {_ms(lag, 'p99_s')} ms, max {_ms(lag, 'max_s')} ms "
            f"(limit {result.max_send_lag_s * 1000.0:.1f} ms at p99)"
        ),
    ]
    notes += [Text(line) for line in _what_was_sent(result)]
    notes += [Text(_error_line(error), style="yellow") for error in result.errors]
    if overall.outcomes[Outcome.UNJUDGED]:
        notes.append(Text("unjudged: the server tells no targets for them; give them with --slo", style="yellow"))
    if run.interrupted:
        notes.append(Text("interrupted: what was open was cut off", style="yellow"))
    notes += [Text(f"INVALID RUN: {reason}", style="bold red") for reason in result.invalid_reasons]
    return notes


def _what_was_sent(result: BenchResult) -> Iterator[str]:
    """Where not all that was sent is counted, or not all that was asked for was sent."""
    phases, replay = result.num_by_phase, result.replay
    if phases[Phase.WARM_UP] or phases[Phase.COOL_DOWN]:
        yield (
            f"counted: {phases[Phase.STEADY]} of {len(result.judged)} sent; {phases[Phase.WARM_UP]} were of warm-up, "
            f"{phases[Phase.COOL_DOWN]} of cool-down"
        )
    sessions = {trace.planned.session for trace in result.run.traces} - {None}
    if sessions:
        num_turns = sum(trace.planned.session is not None for trace in result.run.traces)
        num_unsent = result.run.num_unsent_turns
        yield f"{len(sessions)} conversations of {num_turns} turns sent; {num_unsent} turns had no answer to go on from"
    if result.run.num_turns_after_end:
        yield (
            f"{result.run.num_turns_after_end} turns were due after the end of --duration and not sent: fewer came "
            "than the rate and the shares ask for; lengthen the run, or shorten the time to think"
        )
    if replay is not None and replay.num_too_long:
        done = {"drop": "dropped", "clip": "clipped"}[replay.too_long]
        yield (
            f"{done}: {replay.num_too_long} of the trace's {replay.num_rows} rows, longer than the "
            f"{replay.max_model_len} tokens that the model reads"
        )


def _cached(summary: ClassSummary) -> str:
    """Share of the prompt tokens, and of it each tier's where the server tells them apart."""
    num_prompt_tokens = summary.num_prompt_tokens
    if not num_prompt_tokens:
        return _percent(None)
    tiers = [f"{name} {_percent(n / num_prompt_tokens)}" for name, n in summary.cached_tokens_by_tier.items()]
    all_tiers = _percent(summary.num_cached_tokens / num_prompt_tokens)
    return f"{all_tiers} ({', '.join(tiers)})" if tiers else all_tiers


def _error_line(error: ErrorCount) -> str:
    """What they have in common, and one text of them."""
    kinds = [
        *(() if error.status is None else (f"HTTP {error.status}",)),
        *(() if error.code is None else (error.code,)),
    ]
    return f"{error.count} x {' '.join(kinds)}, such as: {error.text}"


def _ms(quantiles: Quantiles | None, name: str) -> str:
    return "-" if quantiles is None else f"{getattr(quantiles, name) * 1000.0:.1f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100.0:.1f}%"
