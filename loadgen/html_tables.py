"""Tables of an HTML report, made of the JSON of a result. `data-json` at a cell is the way to its number there."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from typing import Any

Body = dict[str, Any]
Way = tuple[str | int, ...]

_ALWAYS = ("sent", "met", "late", "refused", "failed")
_RARE = ("expired", "timed_out", "cancelled", "unjudged")
_LATE = ("late_ttft", "late_tpot", "late_stall", "late_e2e")
_MEASURES = (
    ("first token (TTFT)", "ttft_s"),
    ("a token after it (TPOT)", "tpot_s"),
    ("between tokens (ITL)", "itl_s"),
    ("whole answer (E2E)", "e2e_s"),
    ("sent late (send lag)", "send_lag_s"),
)
_TARGETS = (
    ("first token within", "ttft_s"),
    ("then a token per", "tpot_s"),
    ("longest gap", "max_stall_s"),
    ("whole answer within", "e2e_s"),
)
_QUANTILES = ("p50", "p90", "p95", "p99", "max")
_SERVER_OUTCOMES = ("met", *_LATE, "refused", "expired", "failed", "timed_out", "cancelled", "unjudged")


def show_count(value: Any) -> str:
    return "–" if value is None else f"{value:,}"


def show_percent(value: Any) -> str:
    """A share that is not whole is never shown as 100%."""
    if value is None:
        return "–"
    text = f"{value * 100.0:.1f}%"
    return "99.9%" if text == "100.0%" and value < 1.0 else text


def show_rate(value: Any) -> str:
    return "–" if value is None else f"{value:,.2f}"


def show_ms(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value * 1e3:,.0f}" if value >= 0.1 else f"{value * 1e3:.1f}"


def asked_table(body: Body) -> str:
    """A line a class: how much was asked, and within which time."""
    targets = [(title, key) for title, key in _TARGETS if _find(body, ("overall", "targets", key)) is not None]
    rows = []
    for name, way in _class_ways(body):
        cells = [
            _cell(body, (*way, "sent"), show_count),
            _cell(body, (*way, "asked", "per_s"), show_rate),
            *(
                _cell(body, (*way, "asked", kind, key), show_count)
                for kind in ("prompt_tokens", "output_tokens")
                for key in ("p50", "max")
            ),
        ]
        for _, key in targets:
            limits = _find(body, (*way, "targets", key)) if way[0] == "classes" else None
            cells.append(_target_cell(body, (*way, "targets", key), limits))
        rows.append(_row(name, cells, way))
    titles = ("requests", "a second", "prompt tokens, median", "longest", "answer tokens, median", "longest")
    return _table(("class", *titles, *(f"{title}, ms" for title, _ in targets)), rows)


def outcome_table(body: Body) -> str:
    """A line a class, and one of all."""
    rare = [name for name in _RARE if body["overall"]["outcomes"][name]]
    late = [name for name in _LATE if body["overall"]["outcomes"][name]]
    titles = [
        "met / sent",
        "objective",
        *_ALWAYS[:3],
        *(f"late: {_words(name.removeprefix('late_'))}" for name in late),
        *_ALWAYS[3:],
    ]
    titles += [*(_words(name) for name in rare), "goodput/s"]
    rows = []
    for name, way in _class_ways(body):
        ways = [
            *((*way, key) for key in _ALWAYS[:3]),
            *((*way, "outcomes", key) for key in late),
            *((*way, key) for key in _ALWAYS[3:]),
            *((*way, "outcomes", key) for key in rare),
        ]
        cells = [_cell(body, (*way, key), show_percent) for key in ("offered_attainment", "objective")]
        cells += [_cell(body, each, show_count) for each in ways]
        cells.append(_cell(body, (*way, "goodput_per_s"), show_rate))
        rows.append(_row(name, cells, way))
    return _table(("class", *titles), rows)


def latency_table(body: Body) -> str:
    """Quantiles of completed requests, in milliseconds, beside their targets."""
    rows = []
    has_over = has_range = False
    for name, way in _class_ways(body):
        for measure, key in _MEASURES:
            if _find(body, (*way, key)) is None:
                continue
            limits = _find(body, (*way, "targets", key)) if way[0] == "classes" else None
            has_range = has_range or (limits is not None and limits["min"] < limits["max"])
            cells = [f'<td class="text">{measure}</td>']
            for quantile in _QUANTILES:
                is_over = limits is not None and _find(body, (*way, key, quantile)) > limits["max"]
                has_over = has_over or is_over
                cells.append(_cell(body, (*way, key, quantile), show_ms, is_over=is_over))
            cells.append(_target_cell(body, (*way, "targets", key), limits))
            cells.append(_cell(body, (*way, key, "count"), show_count))
            rows.append(_row(name, cells, way))
    if not rows:
        return "<p>No request was completed.</p>"
    note = " ▲ marks a number above the target of its class." if has_over else ""
    note += " A target that grows with the prompt is a range." if has_range else ""
    return f'<p class="soft">Milliseconds, of completed requests, from the moment each was due.{note}</p>' + _table(
        ("class", "measure", *_QUANTILES, "target", "samples"), rows, num_texts=2
    )


def server_table(view: Body) -> str:
    """Both sides' counts: of the classes where the server has them, else of totals."""
    outcomes = [
        name
        for name in _SERVER_OUTCOMES
        if any(c[side].get(name) for c in view["classes"] for side in ("client_outcomes", "server_outcomes"))
    ]
    rows = []
    way: Way
    for i, c in enumerate(view["classes"]):
        for side, sent, counts in (
            ("client", "client_sent", "client_outcomes"),
            ("server", "server_offered", "server_outcomes"),
        ):
            way = ("server_view", "classes", i)
            cells = [f'<td class="text">{side}</td>', _server_cell(view, (*way, sent))]
            cells += [_server_cell(view, (*way, counts, name)) for name in outcomes]
            ttft = "client_ttft_s" if side == "client" else "server_ttft_s"
            cells.append(_server_cell(view, (*way, ttft), show_ms))
            rows.append(_row(c["name"], cells, way))
    tables = []
    if rows:
        titles = ("class", "counted by", "sent", *(_words(name) for name in outcomes), "mean TTFT, ms")
        tables.append(_table(titles, rows, num_texts=2))
    totals = []
    for i, total in enumerate(view["totals"]):
        way = ("server_view", "totals", i)
        totals.append(_row(total["name"], [_server_cell(view, (*way, side)) for side in ("client", "server")], way))
    if totals:
        tables.append(_table(("all requests", "client", "server"), totals))
    return "".join(tables)


def _class_ways(body: Body) -> list[tuple[str, Way]]:
    classes: list[tuple[str, Way]] = [(name, ("classes", name)) for name in body["classes"]]
    return [*classes, ("all", ("overall",))] if len(classes) > 1 else classes


def _find(body: Any, way: Way) -> Any:
    """What stands there; None: nothing does."""
    for step in way:
        if body is None:
            return None
        body = body.get(step) if isinstance(body, dict) else body[step]
    return body


def _words(key: str) -> str:
    short = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
    return " ".join(short.get(word, word) for word in key.split("_"))


def _server_cell(view: Body, way: Way, show: Callable[[Any], str] = show_count) -> str:
    return _cell({"server_view": view}, way, show)


def _cell(body: Body, way: Way, show: Callable[[Any], str], *, is_over: bool = False) -> str:
    mark = "▲ " if is_over else ""
    over = ' class="over"' if is_over else ""
    where = html.escape(json.dumps(list(way)))
    return f'<td{over} data-json="{where}">{mark}{show(_find(body, way))}</td>'


def _target_cell(body: Body, way: Way, limits: Body | None) -> str:
    if limits is None:
        return "<td>–</td>"
    low, high = _cell(body, (*way, "min"), show_ms), _cell(body, (*way, "max"), show_ms)
    if limits["min"] == limits["max"]:
        return high
    spans = [cell.replace("<td", "<span").replace("</td", "</span") for cell in (low, high)]
    return f"<td>{spans[0]} to {spans[1]}</td>"


def _row(name: str, cells: Sequence[str], way: Way) -> str:
    total = ' class="total"' if way[0] == "overall" else ""
    return f'<tr{total}><th scope="row" class="text">{html.escape(name)}</th>{"".join(cells)}</tr>'


def _table(titles: Sequence[str], rows: Sequence[str], num_texts: int = 1) -> str:
    heads = "".join(
        f'<th scope="col"{" class=text" if i < num_texts else ""}>{html.escape(title)}</th>'
        for i, title in enumerate(titles)
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
