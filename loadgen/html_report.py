"""The result of a load test as one HTML file for a reader who was not there. It needs no network and runs no script.

Every number of its tables comes from the JSON of the same result; `data-json` at the cell names the place.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from loadgen.config import BenchError
from loadgen.explanation import explain
from loadgen.html_style import PATTERNS, STYLE
from loadgen.html_tables import asked_table, latency_table, outcome_table, server_table
from loadgen.plots import TPOT, TTFT, plot_attainment, plot_cdf, plot_first_tokens, plot_send_lag, plot_timeline
from loadgen.result import BenchResult
from loadgen.result_json import result_json
from loadgen.verdict import verdict_sentence

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WORDS = (
    ("met", "The request was answered in full, and each latency target of its class was kept."),
    ("late", "It was answered, but missed a target: of the first token, the pace, the longest stall or the end."),
    ("refused, expired", "The server said no (HTTP 429 or 503), at once or after a wait in its queue."),
    ("failed, timed out", "Any other answer, a broken stream or connection, or no end within the client's patience."),
    ("cancelled", "The client left as planned, or the run ended, before anything was late. Counted in no share."),
    ("met / sent", "Met of all sent requests that were not cancelled: one that was refused or failed is a miss."),
    ("goodput", "Met requests a second."),
    ("TTFT", "Time to first token, from the moment the request was due, so that a slow client hides nothing."),
    ("TPOT", "Time per output token after the first one."),
    ("ITL", "Time between tokens, over all tokens."),
    ("E2E", "From the moment the request was due to its last token."),
    ("send lag", "How much later than due a request left this client. Where it is large the run says nothing."),
)


def write_html(result: BenchResult, path: str) -> None:
    """Write the report.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        Path(path).write_text(render_html(result), encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write the report to {path}: {error.strerror}") from error


def render_html(result: BenchResult) -> str:
    """The whole page."""
    body = {key: value for key, value in result_json(result).items() if key != "requests"}
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">',
        f"<title>Load test of {_text(result.server.model)}</title><style>{STYLE}</style></head><body>",
        PATTERNS,
        "<main>",
        *_head(result),
        "<h2>What was asked</h2>",
        f'<p class="soft">{_text(_asked(result))}</p>',
        asked_table(body),
        *_counted(result),
        "<h2>What came of it</h2>",
        outcome_table(body),
        *_why(result),
        _figures(result),
        "<h2>How long they took</h2>",
        latency_table(body),
        *_server(body),
        *_errors(result),
        "<h2>Conditions</h2>",
        _list(_conditions(result)),
        "<details><summary>What the words mean</summary>",
        _list(_WORDS),
        "</details><details><summary>The same as JSON</summary>",
        f"<pre>{_text(json.dumps(body, indent=2))}</pre></details>",
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(value: object) -> str:
    return html.escape(str(value))


def _head(result: BenchResult) -> Iterable[str]:
    kind, mark = ("good", "✓ valid run") if result.is_valid else ("bad", "✗ invalid run")
    if result.is_valid and result.run.interrupted:
        kind, mark = "warn", "◐ interrupted run"
    yield f"<h1>Load test of {_text(result.server.model)}</h1>"
    yield f'<p class="verdict">{_text(verdict_sentence(result))}</p>'
    when = "" if result.conditions is None else f", {_text(_when(result.conditions.started_at))}"
    yield (
        f'<p><span class="badge {kind}">{mark}</span> <span class="soft">{_text(result.config.url)}{when}. '
        "Valid says that this client kept its schedule, not that the server was fast.</span></p>"
    )


def _when(started_at: str) -> str:
    """ISO 8601 as people write it."""
    return started_at.replace("T", " ").replace("+00:00", " UTC")


def _counted(result: BenchResult) -> Iterable[str]:
    """What the numbers leave out."""
    phases = {phase.value: count for phase, count in result.num_by_phase.items()}
    if phases["warm_up"] or phases["cool_down"]:
        yield (
            f'<p class="soft">Counted are the {phases["steady"]} requests of the steady window; {phases["warm_up"]} of '
            f"warm-up and {phases['cool_down']} of cool-down were sent as well.</p>"
        )
    if result.run.num_unsent_turns:
        yield (
            f'<p class="soft">{result.run.num_unsent_turns} later turns of conversations were never sent: the answer '
            "they wait for was refused, failed or timed out.</p>"
        )


def _asked(result: BenchResult) -> str:
    """The load in one sentence."""
    text = _load(result)
    replay = result.replay
    if replay is not None:
        text += f". Lengths and classes are those of {Path(replay.path).name}"
        if replay.num_too_long:
            what = {"drop": "Left out", "clip": "Shortened"}.get(replay.too_long, replay.too_long)
            rows = f"{replay.num_too_long:,} of its {replay.num_rows:,} rows"
            text += f". {what}, since longer than the model reads: {rows}"
    return f"{text[0].upper()}{text[1:]}."


def _why(result: BenchResult) -> Iterable[str]:
    """What was missed, by how much, and what the server said."""
    rows = explain(result)
    if rows:
        yield _list(rows)


def _figures(result: BenchResult) -> str:
    figures = (
        ("Outcomes by class", "Each bar is all requests of a class.", plot_attainment(result)),
        (
            "Requests over time",
            "When requests were due, and what became of them.",
            plot_timeline(result),
        ),
        (
            "First tokens over time",
            "Each mark is a completed request: when it was due, and how long its first token took.",
            plot_first_tokens(result),
        ),
        (
            "Time to first token",
            "Height: the share of requests that took at most so long; ▼: the target.",
            plot_cdf(result, TTFT),
        ),
        (
            "Time per output token",
            "Height: the share of requests that took at most so long; ▼: the target.",
            plot_cdf(result, TPOT),
        ),
        ("Send lag", "How late this client itself sent: the test of the test.", plot_send_lag(result)),
    )
    shown = (
        f"<figure><figcaption>{title}<span>{note}</span></figcaption>{svg}</figure>"
        for title, note, svg in figures
        if svg
    )
    return f'<div class="figures">{"".join(shown)}</div>'


def _server(body: dict[str, Any]) -> Iterable[str]:
    view = body["server_view"]
    if view is None:
        return
    yield "<h2>The server's own counts</h2>"
    if view["problem"] is not None:
        yield f"<p>There is nothing to compare with: {_text(view['problem'])}.</p>"
        return
    yield (
        f'<p class="soft">{_text(view["server"])} counted the whole run, warm-up and cool-down included; so do the '
        "numbers of this client here.</p>"
    )
    yield server_table(view)
    notes = [f"{c['name']}: {note}" for c in view["classes"] for note in c["notes"]] + list(view["notes"])
    if view["classes"] and not any(c["notes"] for c in view["classes"]):
        notes.insert(0, "Both count the same requests and the same outcomes in every class.")
    yield f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>"


def _errors(result: BenchResult) -> Iterable[str]:
    if not result.errors:
        return
    yield "<h2>Errors</h2><ul>"
    for error in result.errors:
        kinds = " ".join(_text(word) for word in (error.status and f"HTTP {error.status}", error.code) if word)
        yield f"<li>{error.count} × {kinds}, such as: {_text(error.text)}</li>"
    yield "</ul>"


def _conditions(result: BenchResult) -> Sequence[tuple[str, str]]:
    config, conditions, replay = result.config, result.conditions, result.replay
    rows = [("load", _load(result)), ("seed", str(config.seed))]
    if replay is not None:
        rows += [
            ("trace", f"{replay.path}, {replay.num_rows} rows, sha256 {replay.sha256}"),
            ("longer than the model reads", f"{replay.num_too_long} rows ({replay.too_long})"),
        ]
    if conditions is not None:
        rows += [
            ("command", conditions.command),
            ("started", _when(conditions.started_at)),
            ("client", f"headrace {conditions.headrace_version}, Python {conditions.python_version}, "
                       f"{conditions.system}, {conditions.num_cores} cores"),
        ]  # fmt: skip
    calibration = result.calibration
    rows.append(
        ("prompt lengths", f"{calibration.tokens_per_word:.2f} tokens a word ({calibration.source} by the server)"
         if calibration.source != "assumed" else "a token a word, assumed")
    )  # fmt: skip
    duration_s = result.run.ended_s - result.run.started_s
    rows.append(("length", f"{duration_s:.1f} s until the last answer"))
    return rows


def _load(result: BenchResult) -> str:
    config = result.config
    if not config.is_open_loop:
        return f"closed loop: {config.concurrency} clients, each sends when its answer is there"
    kinds = {
        "poisson": "Poisson arrivals",
        "constant": "equal gaps",
        "gamma": f"gamma arrivals of shape {config.burstiness:g}",
        "trace": "the trace's own times",
    }
    factor = None if result.replay is None else result.replay.time_factor
    scaled = "" if factor is None or factor == 1.0 else f", its gaps {factor:.3g} times as long as recorded"
    rate = f", {config.rate_per_s:g} a second on average"
    if config.arrival_kind == "trace":
        rate = "" if config.rate is None else f", scaled to {config.rate:g} a second over the whole trace"
    return f"open loop, whatever the server does: {kinds[config.arrival_kind]}{rate}{scaled}"


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{_text(value)}</dd>' for name, value in rows)}</dl>"
