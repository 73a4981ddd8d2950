"""The rules: current, one body in both forms, read by the real promtool, and derived from objectives as they should."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.slo import DEFAULT_CLASSES
from tests.deploy_files import DEPLOY, check_generated, find_prometheus, run_tool
from tests.promql import read_selectors

RULES = DEPLOY / "prometheus" / "rules" / "headrace.yaml"
OPERATOR = DEPLOY / "kubernetes" / "overlays" / "monitoring" / "prometheus_rule.yaml"
CASES = sorted((DEPLOY / "prometheus" / "tests").glob("*.yaml"))
BURN = re.compile(r"clamp_max\(([\d.]+) \* headrace:slo_error_budget:ratio, 1\)")


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_the_committed_files_are_what_the_generator_writes() -> None:
    check_generated("prometheus/generate_rules.py")


def test_the_operator_gets_the_same_rules() -> None:
    operator = yaml.safe_load(OPERATOR.read_text())
    assert operator["spec"] == yaml.safe_load(RULES.read_text())
    assert operator["kind"] == "PrometheusRule" and operator["apiVersion"] == "monitoring.coreos.com/v1"


def test_promtool_reads_rules_and_configuration() -> None:
    promtool = find_prometheus("promtool")
    for command in (("check", "rules", RULES), ("check", "config", DEPLOY / "prometheus" / "prometheus.yml")):
        done = run_tool(promtool, *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_promtool_runs_the_cases(path: Path) -> None:
    done = run_tool(find_prometheus("promtool"), "test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    """The cases are asked at all."""
    text = (DEPLOY / "prometheus" / "tests" / "state.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    other = text.replace('instance="b",severity', 'instance="x",severity')
    wrong.write_text(other.replace("../rules/headrace.yaml", str(RULES)))
    assert run_tool(find_prometheus("promtool"), "test", "rules", wrong).returncode != 0


def test_limits_are_those_of_the_budget_and_never_above_all_requests() -> None:
    """By hand: 2 % of 30 days in 1 h is 14.4 times the even pace, 5 % in 6 h is 6, 10 % in 1 d is 3, in 3 d 1."""
    limits = {
        rule["record"].rpartition("ratio_rate")[2]: float(BURN.fullmatch(rule["expr"])[1])  # type: ignore[index]
        for rule in _rules()
        if rule.get("record", "").startswith("headrace:slo_bad_limit:")
    }
    assert limits == {"1h": 0.02 * 720 / 1, "6h": 0.05 * 720 / 6, "1d": 0.1 * 720 / 24, "3d": 0.1 * 720 / 72}
    assert {c.objective for c in DEFAULT_CLASSES} == {0.99, 0.95, 0.9}, "what the cases of promtool have"
    for c in DEFAULT_CLASSES:
        for burn in limits.values():
            assert min(burn, 1 / (1 - c.objective)) * (1 - c.objective) <= 1 + 1e-9


def test_every_alert_has_two_windows_the_short_one_within_the_long_one() -> None:
    burns = [rule for rule in _rules() if "alert" in rule and "slo_bad:" in rule["expr"]]
    assert len(burns) == 4
    for rule in burns:
        long, short = re.findall(r"slo_bad:ratio_rate(\w+)", rule["expr"])
        limits = set(re.findall(r"slo_bad_limit:ratio_rate(\w+)", rule["expr"]))
        assert limits == {long} and _hours(short) * 12 <= _hours(long) <= _hours(short) * 12.01
        assert rule["labels"]["severity"] == ("page" if _hours(long) < 24 else "ticket")


def _hours(window: str) -> float:
    return int(window[:-1]) * {"m": 1 / 60, "h": 1, "d": 24}[window[-1]]


def test_records_read_records_made_before_them() -> None:
    """Rules of a group run in turn: a record read before it is made would be that of the last time."""
    made: set[str] = set()
    for rule in _rules():
        for selector in read_selectors(rule["expr"]):
            assert not selector.is_recorded or selector.name in made, rule
        made.add(rule.get("record", ""))


def test_every_alert_says_what_happened_and_how_loud_it_is() -> None:
    alerts = [rule for rule in _rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    documented = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert f"`{rule['alert']}`" in documented, f"{rule['alert']} is not in docs/deployment.md"
