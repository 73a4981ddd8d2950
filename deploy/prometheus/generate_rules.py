"""Writes the recording and alert rules: for Prometheus, and the same body as a PrometheusRule for its operator.

`python deploy/prometheus/generate_rules.py` rewrites the files; with `--check` it writes nothing and ends with status 1
where a file is not what it would write.

Burn rates and windows are those of Google's SRE workbook (chapter 5, "Alerting on SLOs"): a period of 30 days, and
alerts at 2 % of the budget in 1 h, 5 % in 6 h, 10 % in 1 d and in 3 d, each with a short window that ends the alert
soon after its cause. The share of bad requests that such a burn means follows from each class's own objective, which
the server exports. It is capped at 1: with an objective of 0.9 no burn can be above 10.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RULES = HERE / "rules" / "headrace.yaml"
PROMETHEUS_RULE = HERE.parent / "kubernetes" / "overlays" / "monitoring" / "prometheus_rule.yaml"
PERIOD_H = 30 * 24
RAW_WINDOWS = ("5m", "30m", "1h", "2h", "6h")
LONG_WINDOWS = ("1d", "3d", "30d")
"""Read from the records of 5m: cheap over many days, and right through restarts of instances."""
BURN_WINDOWS = ("5m", "1h", "6h", "3d")
"""Those that the dashboards and the autoscaler show."""
HEADER = "# Made by deploy/prometheus/generate_rules.py: change that, not this file.\n"


@dataclasses.dataclass(frozen=True, slots=True)
class BurnAlert:
    """Fires where `budget_share` of the period's budget goes in `long`, and still goes in `short`."""

    name: str
    severity: str
    budget_share: float
    long: str
    long_h: int
    short: str
    counted_h: int
    """A window of `RAW_WINDOWS`, within `long`, in which requests are counted..."""
    min_requests: int
    """... and fewer finished ones than this keep it silent: a single miss is no trend."""

    @property
    def burn(self) -> float:
        return round(self.budget_share * PERIOD_H / self.long_h, 6)


ALERTS = (
    BurnAlert("HeadraceBudgetBurnsIn1h", "page", 0.02, "1h", 1, "5m", 1, 20),
    BurnAlert("HeadraceBudgetBurnsIn6h", "page", 0.05, "6h", 6, "30m", 6, 50),
    BurnAlert("HeadraceBudgetBurnsIn1d", "ticket", 0.10, "1d", 24, "2h", 6, 50),
    BurnAlert("HeadraceBudgetBurnsIn3d", "ticket", 0.10, "3d", 72, "6h", 6, 50),
)


@dataclasses.dataclass(frozen=True, slots=True)
class StateAlert:
    """Fires where `expr` has samples for as long as `holds`."""

    name: str
    severity: str
    expr: str
    holds: str
    summary: str
    text: str


STATES = (
    StateAlert(
        "HeadraceDown", "page", 'up{job=~"(.+/)?headrace"} == 0', "2m",
        "{{ $labels.instance }} does not answer scrapes",
        "Prometheus cannot read /metrics. Is the process there, and does /livez answer?",
    ),
    StateAlert(
        "HeadraceAbsent", "page", 'absent(up{job=~"(.+/)?headrace"})', "5m",
        "Prometheus knows no instance of Headrace",
        "No target, so no pod: pending, no image, scaled to 0, or a PodMonitor that Prometheus does not select.",
    ),
    StateAlert(
        "HeadraceEngineNotReady", "page", "headrace_engine_ready == 0", "10m",
        "{{ $labels.instance }} has no engine",
        "The engine process is dead or still starts. Its log says why; /readyz shows the phase.",
    ),
    StateAlert(
        "HeadraceEngineRestarts", "ticket", "increase(headrace_engine_restarts_total[1h]) > 2", "0m",
        "the engine of {{ $labels.instance }} was started again and again",
        "Every restart fails the requests that run. The log names the end of each engine process.",
    ),
    StateAlert(
        "HeadraceBudgetGone", "ticket", "headrace:slo_budget_left:ratio_30d < 0", "15m",
        "{{ $labels.slo_class }} of {{ $labels.job }} has no budget left",
        "More requests of the last 30 days missed their targets than the objective allows.",
    ),
    StateAlert(
        "HeadraceClassClosed", "ticket", "min by (job, instance, slo_class) (headrace_class_open) == 0", "15m",
        "{{ $labels.slo_class }} is closed at {{ $labels.instance }}",
        "The memory and the link cannot serve this class in time; /v1/slo and the start log show the floor.",
    ),
    StateAlert(
        "HeadraceKVTierOff", "ticket",
        "headrace_kv_tier_on == 0 and headrace_kv_tier_blocks_limit > 0", "10m",
        "KV tier {{ $labels.tier }} of {{ $labels.instance }} is off",
        "Its copies failed. Prompts are computed again meanwhile; the log names the error.",
    ),
    StateAlert(
        "HeadraceKVDiskFull", "ticket",
        'headrace_kv_disk_writable == 0 and on (job, instance) headrace_kv_tier_on{tier="disk"} == 1', "10m",
        "the disk of KV blocks of {{ $labels.instance }} is full",
        "It is only read. Free space below --disk-path, or lower --disk-size.",
    ),
)  # fmt: skip


def record(name: str, expr: str) -> str:
    return f"      - record: {name}\n        expr: {expr}\n"


def rates(window: str) -> str:
    """Finished and met requests a second, without those whose client left before anything was late."""
    if window in RAW_WINDOWS:
        finished = f'sum by (job, slo_class) (rate(headrace_requests_slo_total{{outcome!="cancelled"}}[{window}]))'
        # A class of which no request was met yet may have no series of them: that is 0, not nothing.
        met = (
            f'sum by (job, slo_class) (rate(headrace_requests_slo_total{{outcome="met"}}[{window}]))'
            f" or 0 * headrace:slo_finished:rate{window}"
        )
    else:
        finished = f"avg_over_time(headrace:slo_finished:rate5m[{window}])"
        met = f"avg_over_time(headrace:slo_met:rate5m[{window}])"
    return record(f"headrace:slo_finished:rate{window}", finished) + record(f"headrace:slo_met:rate{window}", met)


def ratios(window: str) -> str:
    bad = f"1 - headrace:slo_met:rate{window} / (headrace:slo_finished:rate{window} > 0)"
    return record(f"headrace:slo_bad:ratio_rate{window}", bad) + record(
        f"headrace:slo_attainment:ratio_rate{window}", f"1 - headrace:slo_bad:ratio_rate{window}"
    )


def objectives() -> str:
    """`max by`: several instances tell the same objective; while a new one rolls out, the stricter holds."""
    return record("headrace:slo_objective:ratio", "max by (job, slo_class) (headrace_slo_objective_ratio)") + record(
        "headrace:slo_error_budget:ratio", "clamp_min(1 - headrace:slo_objective:ratio, 1e-6)"
    )


def limits() -> str:
    """The share of bad requests from which each alert fires, by class, capped at all of them."""
    lines = []
    for alert in ALERTS:
        expr = f"clamp_max({alert.burn:g} * headrace:slo_error_budget:ratio, 1)"
        lines.append(record(f"headrace:slo_bad_limit:ratio_rate{alert.long}", expr))
    return "".join(lines)


def burns() -> str:
    lines = [
        record(
            f"headrace:slo_burn:rate{window}",
            f"headrace:slo_bad:ratio_rate{window} / on (job, slo_class) headrace:slo_error_budget:ratio",
        )
        for window in BURN_WINDOWS
    ]
    left = "1 - headrace:slo_bad:ratio_rate30d / on (job, slo_class) headrace:slo_error_budget:ratio"
    return "".join([*lines, record("headrace:slo_budget_left:ratio_30d", left)])


def burn_alert(alert: BurnAlert) -> str:
    limit = f"on (job, slo_class) headrace:slo_bad_limit:ratio_rate{alert.long}"
    count = f"headrace:slo_finished:rate{alert.counted_h}h * {alert.counted_h * 3600}"
    return f"""      - alert: {alert.name}
        expr: |
          headrace:slo_bad:ratio_rate{alert.long} >= {limit}
          and on (job, slo_class) headrace:slo_bad:ratio_rate{alert.short} >= {limit}
          and on (job, slo_class) {count} >= {alert.min_requests}
        labels:
          severity: {alert.severity}
        annotations:
          summary: "{{{{ $labels.slo_class }}}} of {{{{ $labels.job }}}} burns its budget"
          description: >-
            {{{{ $value | humanizePercentage }}}} of its requests in {alert.long} missed their targets:
            {alert.burn:g} times what its objective allows, or all of them. The dashboard
            "Headrace: classes and objectives" shows which.
"""


def state_alert(alert: StateAlert) -> str:
    return f"""      - alert: {alert.name}
        expr: {alert.expr if ": " not in alert.expr else repr(alert.expr)}
        for: {alert.holds}
        labels:
          severity: {alert.severity}
        annotations:
          summary: "{alert.summary}"
          description: "{alert.text}"
"""


def body() -> str:
    windows = (*RAW_WINDOWS, *LONG_WINDOWS)
    records = [objectives(), *map(rates, windows), *map(ratios, windows), limits(), burns()]
    return (
        "groups:\n  - name: headrace-records\n    rules:\n"
        + "".join(records)
        + "  - name: headrace-burn\n    rules:\n"
        + "".join(map(burn_alert, ALERTS))
        + "  - name: headrace-state\n    rules:\n"
        + "".join(map(state_alert, STATES))
    )


def operator_rule() -> str:
    head = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: headrace
spec:
"""
    return HEADER + head + "".join(f"  {line}" for line in body().splitlines(keepends=True))


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Prometheus rules.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a file is out of date")
    arguments = parser.parse_args()
    stale = 0
    for path, text in ((RULES, HEADER + body()), (PROMETHEUS_RULE, operator_rule())):
        if path.is_file() and path.read_text() == text:
            continue
        if arguments.check:
            sys.stderr.write(f"{path.relative_to(HERE.parent.parent)} is out of date: run `make generate`\n")
            stale = 1
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
