"""The dashboards as files: current, readable by Grafana, and by the rules of Grafana's dashboard-linter."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import yaml

from tests.deploy_files import DEPLOY, check_generated, expressions, fill_in, load_dashboards
from tests.promql import Selector, read_selectors

DASHBOARDS = load_dashboards()
NAMES = sorted(DASHBOARDS)
COUNTER_CALLS = {"rate", "increase", "irate"}
VARIABLE = re.compile(r"\$\{?(\w+)")


def _panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def _selectors(name: str) -> list[tuple[str, Selector]]:
    return [(title, each) for title, expr in expressions(DASHBOARDS[name]) for each in read_selectors(fill_in(expr))]


def test_the_committed_files_are_what_the_generator_writes() -> None:
    check_generated("grafana/generate.py")


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_unique_and_nobody_can_edit_what_is_generated(name: str) -> None:
    dashboard = DASHBOARDS[name]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert dashboard["editable"] is False and dashboard["id"] is None and "__inputs" not in dashboard
    assert dashboard["uid"] == name.removesuffix(".json")
    assert dashboard["schemaVersion"] >= 36


def test_uids_and_titles_are_unique() -> None:
    for key in ("uid", "title"):
        assert len({dashboard[key] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)


@pytest.mark.parametrize("name", NAMES)
def test_panels_lie_on_the_grid_and_do_not_overlap(name: str) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] >= 0 and grid["x"] + grid["w"] <= 24 and grid["w"] > 0 and grid["h"] > 0
        own = set(itertools.product(range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])))
        assert not own & cells, panel["title"]
        cells |= own


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_it_shows_and_in_which_unit(name: str) -> None:
    titles = [panel["title"] for panel in _panels(name)]
    assert len(set(titles)) == len(titles)
    for panel in _panels(name):
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 8 and panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


@pytest.mark.parametrize("name", NAMES)
def test_data_source_job_and_instance_are_variables(name: str) -> None:
    variables = {each["name"]: each for each in DASHBOARDS[name]["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    for each in ("job", "instance"):
        assert variables[each]["multi"] and variables[each]["includeAll"] and variables[each]["allValue"] == ".+"
        assert variables[each]["refresh"] == 2, "on a change of the time range"
    for panel in _panels(name):
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
    used = {match for _, expr in expressions(DASHBOARDS[name]) for match in VARIABLE.findall(expr)}
    assert used <= {*variables, "__rate_interval"}
    assert set(variables) - used == {"datasource"}, "a variable that changes nothing"


@pytest.mark.parametrize("name", NAMES)
def test_every_query_names_job_and_instance(name: str) -> None:
    """What the rules record is over all instances."""
    for title, expr in expressions(DASHBOARDS[name]):
        for selector in read_selectors(fill_in(expr)):
            wanted = {"job"} if selector.is_recorded else {"job", "instance"}
            for label in wanted:
                assert (label, "Re", ".+") in selector.matchers, f"{title}: {selector.name} has no {label}"
        assert expr.count('job=~"$job"') == len(read_selectors(fill_in(expr))), title


@pytest.mark.parametrize("name", NAMES)
def test_counters_are_rates_over_the_intervals_of_the_data_source(name: str) -> None:
    for title, selector in _selectors(name):
        is_counter = selector.name.endswith(("_total", "_bucket", "_count", "_sum"))
        called = COUNTER_CALLS & set(selector.functions)
        assert bool(called) == is_counter, f"{title}: {selector.name} in {selector.functions}"
        if selector.name.endswith("_bucket"):
            assert "histogram_quantile" in selector.functions and "le" in selector.grouped_by, title
    for title, expr in expressions(DASHBOARDS[name]):
        windows = re.findall(r"rate\([^\[]*\[([^\]]+)\]", expr)
        assert set(windows) <= {"$__rate_interval"}, f"{title}: {windows}"


@pytest.mark.parametrize("name", NAMES)
def test_legends_name_labels_that_the_query_keeps(name: str) -> None:
    for panel in _panels(name):
        for target in panel["targets"]:
            asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            found = {label for each in read_selectors(fill_in(target["expr"])) for label in each.labels}
            assert asked <= found, f"{panel['title']}: {target['legendFormat']}"


def test_what_is_recorded_is_recorded_by_the_rules() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules" / "headrace.yaml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    asked = {selector.name for name in NAMES for _, selector in _selectors(name) if selector.is_recorded}
    assert asked and asked <= recorded


def test_grafana_finds_the_files_and_the_data_source() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "headrace.yaml").read_text())["providers"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in compose["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    home = compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in {f"{provider['options']['path']}/{name}" for name in NAMES}
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
    assert source["type"] == "prometheus" and source["isDefault"]


def test_the_config_maps_hold_every_dashboard() -> None:
    kustomization = yaml.safe_load((DEPLOY / "grafana" / "kustomization.yaml").read_text())
    files = [file for generated in kustomization["configMapGenerator"] for file in generated["files"]]
    assert files == [f"dashboards/{name}" for name in NAMES]
