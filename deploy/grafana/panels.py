"""Panels, rows and dashboards as Grafana's JSON: what every panel has, said once, and where it lies, worked out."""

from __future__ import annotations

import dataclasses
from typing import Any

INSTANCES = 'job=~"$job", instance=~"$instance"'
"""Matchers of what an instance exports."""
CLASSES = f'{INSTANCES}, slo_class=~"$slo_class"'
RECORDED = 'job=~"$job", slo_class=~"$slo_class"'
"""Of recording rules, which add instances up."""
WINDOW = "$__rate_interval"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel; `{{label}}` in the legend stands for a label's value."""

    expr: str
    legend: str
    is_target: bool = False
    """Drawn as a dashed line: a limit, not a measurement."""


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """`unit` is Grafana's; `steps` are (from, colour), the first of them from anything."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    low: float | None = 0.0
    high: float | None = None
    stacked: bool = False
    steps: tuple[tuple[float | None, str], ...] = ((None, "text"),)
    mappings: tuple[tuple[str, str, str], ...] = ()
    """(value, text, colour) that a value is shown as."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]
    has_classes: bool

    def encode(self) -> dict[str, Any]:
        """The JSON model; panels flow from left to right in rows of 24 columns."""
        return {
            "uid": self.uid,
            "id": None,
            "title": self.title,
            "description": self.text,
            "tags": ["headrace"],
            "schemaVersion": 39,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [_links()],
            "templating": {"list": _variables(self.has_classes)},
            "panels": _place(self.rows),
        }


def rate(name: str, matchers: str, by: str = "") -> str:
    """Increase a second of a counter, over instances."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}{{{matchers}}}[{WINDOW}]))"


def quantile(q: float, name: str, matchers: str, by: str = "") -> str:
    """Of a histogram, over instances."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q:g}, {rate(f'{name}_bucket', matchers, labels)})"


def _place(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        grid = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
        placed.append({"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": grid,
                       "panels": []})  # fmt: skip
        y, x, line_height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > _COLUMNS:
                y, x, line_height = y + line_height, 0, 0
            grid = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            placed.append({"id": len(placed) + 1, "gridPos": grid, **_encode(panel)})
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
    return placed


def _encode(panel: Panel) -> dict[str, Any]:
    instant = panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
            "format": "table" if panel.kind == "table" else "time_series",
        }
        for i, query in enumerate(panel.queries)
    ]
    encoded: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }
    if panel.kind == "table":
        encoded["transformations"] = _columns(panel)
    return encoded


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": "no traffic",
        "thresholds": {"mode": "absolute", "steps": [{"value": v, "color": colour} for v, colour in panel.steps]},
        "mappings": [
            {"type": "value", "options": {value: {"text": text, "color": colour, "index": i}}}
            for i, (value, text, colour) in enumerate(panel.mappings)
        ],
    }
    if panel.low is not None:
        defaults["min"] = panel.low
    if panel.high is not None:
        defaults["max"] = panel.high
    if panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    dashed = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
    ]
    return [
        {"matcher": {"id": "byFrameRefID", "options": chr(ord("A") + i)}, "properties": dashed}
        for i, query in enumerate(panel.queries)
        if query.is_target
    ]


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "bargauge":
        return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "lcd", "showUnfilled": True}
    return {"reduceOptions": reduce, "colorMode": "value", "graphMode": "none", "textMode": "value_and_name"}


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """One row a label set; the column of each query is called like its legend."""
    names = {f"Value #{chr(ord('A') + i)}": query.legend for i, query in enumerate(panel.queries)}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"renameByName": {**names, "slo_class": "class"},
                                       "excludeByName": {"Time": True, "__name__": True}}},
    ]  # fmt: skip


def _links() -> dict[str, Any]:
    return {"type": "dashboards", "title": "Headrace", "tags": ["headrace"], "asDropdown": True, "keepTime": True,
            "includeVars": True}  # fmt: skip


def _variables(has_classes: bool) -> list[dict[str, Any]]:
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
                  "current": {}, "hide": 0}  # fmt: skip
    offered = "headrace_requests_offered_total"
    variables = [
        datasource,
        _variable("job", "Job", f"label_values({offered}, job)"),
        _variable("instance", "Instance", f'label_values({offered}{{job=~"$job"}}, instance)'),
    ]
    if has_classes:
        query = f"label_values({offered}{{{INSTANCES}}}, slo_class)"
        variables.append(_variable("slo_class", "Class", query))
    return variables


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }
