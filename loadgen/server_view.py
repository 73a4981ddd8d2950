"""The server's own counts of a run beside the client's, and why they differ.

The server's are differences between two readings of its counters, so they hold the whole run, warm-up and cool-down
included, and whatever other clients did meanwhile; the client's are of the whole run too. Only Headrace counts by class
and outcome; of other servers there are totals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from loadgen.class_mix import NO_CLASS
from loadgen.metrics import LATE, Outcome
from loadgen.server_metrics import HEADRACE, OFFERED, OUTCOMES, Dialect, MetricsSnapshot
from loadgen.trace import RequestTrace, TraceEnd

_NOT_COMPLETED = ("abort", "error")
"""Reasons for which requests ended without a whole answer."""
_NUM_NAMED = 3

Judged = Sequence[tuple[RequestTrace, Outcome]]


@dataclasses.dataclass(frozen=True, slots=True)
class ClassView:
    """One class of Headrace's, counted twice."""

    name: str
    client_sent: int
    server_offered: int
    client_outcomes: Mapping[str, int]
    server_outcomes: Mapping[str, int]
    """Every outcome that either side knows; of ended requests."""
    open_before: int
    open_after: int
    """In the server at the first and at the second reading."""
    client_ttft_s: float | None
    """Mean from the intended send time, over requests that got text."""
    send_lag_s: float | None
    """Mean of the part of it that this client was late."""
    server_ttft_s: float | None
    """Mean from the body read to the first token handed to the socket."""
    notes: tuple[str, ...]
    """Why the counts differ; empty: they do not."""


@dataclasses.dataclass(frozen=True, slots=True)
class TotalView:
    """One number of the whole run, counted twice."""

    name: str
    client: int
    server: int


@dataclasses.dataclass(frozen=True, slots=True)
class ServerView:
    """What the server counted while a run went on."""

    server: str | None = None
    """Whose names its metrics have."""
    problem: str | None = None
    """Why nothing can be compared; None: it can."""
    classes: tuple[ClassView, ...] = ()
    totals: tuple[TotalView, ...] = ()
    notes: tuple[str, ...] = ()


def compare_counts(
    before: MetricsSnapshot,
    after: MetricsSnapshot,
    judged: Judged,
    default_class: str | None = None,
    own_targets: frozenset[str] = frozenset(),
) -> ServerView:
    """Both sides' counts of one run.

    Args:
        judged: all requests of the run.
        default_class: the server's class of requests that name none.
        own_targets: classes that are judged here by targets of the client's own.
    """
    problem = before.problem or after.problem
    dialect = after.dialect
    if problem is not None or dialect is None:
        return ServerView(problem=problem or "no metrics were read")
    fallen = _fallen(before, after, dialect)
    if fallen is not None:
        return ServerView(dialect.server, f"{fallen} is smaller than before the run: the server was started anew")
    classes: tuple[ClassView, ...] = ()
    if dialect is HEADRACE:
        own = frozenset(_server_name(name, default_class) for name in own_targets)
        names = after.by_label(OFFERED, "slo_class")
        sent = {name: _of_class(judged, name, default_class) for name in names}
        classes = tuple(
            view
            for name in names
            if (view := _class_view(before, after, name, sent[name], name in own)).client_sent or _counted(view)
        )
    return ServerView(
        dialect.server, None, classes, _totals(before, after, dialect, judged), _notes(before, after, dialect, judged)
    )


def _counted(view: ClassView) -> bool:
    return bool(view.server_offered or any(view.server_outcomes.values()))


def _fallen(before: MetricsSnapshot, after: MetricsSnapshot, dialect: Dialect) -> str | None:
    """A counter that went down."""
    names = (OFFERED, OUTCOMES, dialect.completed, dialect.prompt_tokens, dialect.output_tokens)
    return next((name for name in names if name and after.total(name) < before.total(name)), None)


def _server_name(client_name: str, default_class: str | None) -> str:
    return default_class if client_name == NO_CLASS and default_class is not None else client_name


def _of_class(judged: Judged, name: str, default_class: str | None) -> Judged:
    return [pair for pair in judged if _server_name(pair[0].planned.slo_class, default_class) == name]


def _class_view(
    before: MetricsSnapshot, after: MetricsSnapshot, name: str, judged: Judged, has_own_targets: bool
) -> ClassView:
    then, now = before.outcomes(name), after.outcomes(name)
    offered_then, offered_now = (snapshot.by_label(OFFERED, "slo_class").get(name, 0.0) for snapshot in (before, after))
    known = dict.fromkeys([*now, *(outcome.value for outcome in Outcome)])
    counts = {outcome.value: sum(each is outcome for _, each in judged) for outcome in Outcome}
    answered = [trace for trace, _ in judged if trace.chunks]
    view = ClassView(
        name=name,
        client_sent=len(judged),
        server_offered=round(offered_now - offered_then),
        client_outcomes={outcome: counts.get(outcome, 0) for outcome in known},
        server_outcomes={outcome: round(now.get(outcome, 0.0) - then.get(outcome, 0.0)) for outcome in known},
        open_before=round(offered_then - sum(then.values())),
        open_after=round(offered_now - sum(now.values())),
        client_ttft_s=_mean([trace.chunks[0].time_s - trace.intended_s for trace in answered]),
        send_lag_s=_mean([trace.send_lag_s for trace in answered]),
        server_ttft_s=_server_ttft_s(before, after, name),
        notes=(),
    )
    return dataclasses.replace(view, notes=tuple(_class_notes(view, judged, has_own_targets)))


def _server_ttft_s(before: MetricsSnapshot, after: MetricsSnapshot, slo_class: str) -> float | None:
    assert HEADRACE.ttft is not None
    (seconds, num) = (
        after.by_label(f"{HEADRACE.ttft}{suffix}", "slo_class").get(slo_class, 0.0)
        - before.by_label(f"{HEADRACE.ttft}{suffix}", "slo_class").get(slo_class, 0.0)
        for suffix in ("_sum", "_count")
    )
    return seconds / num if num > 0.0 else None


def _class_notes(view: ClassView, judged: Judged, has_own_targets: bool) -> list[str]:
    notes = []
    if view.open_before:
        notes.append(
            f"{view.open_before} were in the server before the run: how they ended is counted here, not that they came"
        )
    if view.open_after:
        notes.append(f"{view.open_after} had not ended for the server when it was read after the run")
    notes += _arrival_notes(view.server_offered - view.client_sent, judged)
    if {name: n for name, n in view.client_outcomes.items() if n} != {
        name: n for name, n in view.server_outcomes.items() if n
    }:
        notes += _outcome_notes(view, judged, has_own_targets)
    return notes


def _arrival_notes(surplus: int, judged: Judged) -> list[str]:
    if surplus > 0:
        return [f"{surplus} more were offered than this client sent: another client was at work"]
    if surplus == 0:
        return []
    num_unread = sum(trace.status is None for trace, _ in judged)
    statuses = sorted({trace.status for trace, _ in judged if _is_turned_away(trace) and trace.status is not None})
    num_turned_away = sum(_is_turned_away(trace) for trace, _ in judged)
    reasons = []
    if num_unread:
        reasons.append(f"{num_unread} ended without an answer and may never have been read")
    if num_turned_away:
        named = ", ".join(str(status) for status in statuses[:_NUM_NAMED])
        reasons.append(f"{num_turned_away} were turned away (HTTP {named}), which may be before their class is known")
    if num_unread + num_turned_away < -surplus:
        reasons.append("the metrics may be those of one of several servers")
    return [f"{-surplus} fewer were offered than sent: {'; '.join(reasons)}"]


def _is_turned_away(trace: RequestTrace) -> bool:
    return trace.status not in (None, 200)


def _outcome_notes(view: ClassView, judged: Judged, has_own_targets: bool) -> list[str]:
    client, server = view.client_outcomes, view.server_outcomes
    notes = []
    if num := client["timed_out"]:
        notes.append(f"{num} timed out here: for the server this client left them, or they were late before")
    if client["cancelled"] != server.get("cancelled", 0) and not client["timed_out"]:
        notes.append(
            f"{client['cancelled']} were cancelled here, {server.get('cancelled', 0)} there: the server only sees a "
            "client leave while it still has something to send"
        )
    if num := client["unjudged"]:
        notes.append(f"{num} are unjudged here, since this client knows no target of theirs; the server does")
    if num := sum(trace.end is TraceEnd.FAILED and trace.status == 200 for trace, _ in judged):
        notes.append(f"{num} failed here after their answer had begun: the connection, or an error inside the stream")
    late = [outcome.value for outcome in LATE]
    if client["met"] != server.get("met", 0) or any(client[name] != server.get(name, 0) for name in late):
        notes.append(_clock_note(view, has_own_targets))
    return notes or ["outcomes differ though as many were offered: see the server's own log of requests"]


def _clock_note(view: ClassView, has_own_targets: bool) -> str:
    text = (
        f"met: {view.client_outcomes['met']} here, {view.server_outcomes.get('met', 0)} there. This client times from "
        "the intended send time to the text's arrival; the server from the body read to the token handed to the socket"
    )
    if view.client_ttft_s is not None and view.send_lag_s is not None and view.server_ttft_s is not None:
        between_s = view.client_ttft_s - view.send_lag_s - view.server_ttft_s
        if view.server_offered > view.client_sent or view.open_before or between_s < 0.0:
            text += (
                f": mean TTFT {view.client_ttft_s * 1e3:.1f} ms here, {view.server_ttft_s * 1e3:.1f} ms there, which "
                "is not of the same requests and so tells nothing of the time on the way"
            )
        else:
            text += (
                f": mean TTFT {view.client_ttft_s * 1e3:.1f} ms here = {view.send_lag_s * 1e3:.1f} ms sent late "
                f"+ {view.server_ttft_s * 1e3:.1f} ms in the server + {between_s * 1e3:.1f} ms on the way"
            )
    return text + ("; and the targets here are the client's own" if has_own_targets else "")


def _totals(before: MetricsSnapshot, after: MetricsSnapshot, dialect: Dialect, judged: Judged) -> tuple[TotalView, ...]:
    traces = [trace for trace, _ in judged]
    client = {
        dialect.prompt_tokens: ("prompt tokens", sum(trace.num_prompt_tokens or 0 for trace in traces)),
        dialect.output_tokens: ("output tokens", sum(trace.num_output_tokens for trace in traces)),
    }
    totals = [
        TotalView(name, count, round(after.total(metric) - before.total(metric)))
        for metric, (name, count) in client.items()
        if after.has(metric)
    ]
    if dialect.completed is not None and after.has(dialect.completed):
        num_completed = sum(trace.end is TraceEnd.COMPLETED for trace in traces)
        server = round(_completed(after, dialect) - _completed(before, dialect))
        totals.insert(0, TotalView("completed requests", num_completed, server))
    return tuple(totals)


def _completed(snapshot: MetricsSnapshot, dialect: Dialect) -> float:
    assert dialect.completed is not None
    if dialect.reason_label is None:
        return snapshot.total(dialect.completed)
    by_reason = snapshot.by_label(dialect.completed, dialect.reason_label)
    return math.fsum(count for reason, count in by_reason.items() if reason not in _NOT_COMPLETED)


def _notes(before: MetricsSnapshot, after: MetricsSnapshot, dialect: Dialect, judged: Judged) -> tuple[str, ...]:
    """About the totals."""
    notes = []
    if dialect is not HEADRACE:
        inside = ((before, "before"), (after, "after"))
        notes += [
            f"{snapshot.num_open:.0f} were in the server {when} the run"
            for snapshot, when in inside
            if snapshot.num_open
        ]
        notes.append(f"{dialect.server} counts neither classes nor targets: there are totals alone")
    num_cut = sum(trace.end not in (TraceEnd.COMPLETED, TraceEnd.REFUSED, TraceEnd.EXPIRED) for trace, _ in judged)
    if num_cut:
        notes.append(f"tokens of the {num_cut} requests that did not end here as they should are counted by the server")
    if dialect.server == "llama.cpp":
        notes.append("llama.cpp counts prompt tokens that it computed; those that its cache held are not among them")
    return tuple(notes)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
