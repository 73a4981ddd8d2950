"""deploy/compose.yaml: valid, closed to the network, healthy in the right order, and given time to drain."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pytest
import yaml

from tests.deploy_files import DEPLOY, ROOT, check_variables, run_tool

COMPOSE = DEPLOY / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
SERVERS = ("server-cpu", "server-gpu")


def seconds(text: str) -> float:
    value, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()  # type: ignore[union-attr]
    return float(value) * {"s": 1, "m": 60}[unit]


def test_the_schema_of_compose_holds() -> None:
    pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema")
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    assert run_tool(*command, COMPOSE).returncode == 0
    wrong = COMPOSE.read_text().replace("stop_grace_period", "stop_grace_periods")
    assert run_tool(*command, "-", stdin=wrong).returncode != 0, "an unknown key is found"


def test_ports_are_on_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_service_has_a_profile_and_a_health_check() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items()}
    assert profiles == {
        "server-cpu": ["cpu"], "server-gpu": ["gpu"], "prometheus": ["cpu", "gpu"], "grafana": ["cpu", "gpu"],
        "load": ["load"],
    }  # fmt: skip
    assert all("healthcheck" in SERVICES[name] for name in ("prometheus", "grafana"))
    assert SERVICES["load"]["healthcheck"] == {"disable": True}, "it serves nothing; the image's check asks a server"
    assert not any("healthcheck" in SERVICES[name] for name in SERVERS), "they have the image's"
    for service in SERVICES.values():
        for needed in service.get("depends_on", {}).values():
            assert needed["condition"] == "service_healthy"


def test_the_server_may_drain_before_it_is_killed() -> None:
    for name in SERVERS:
        drain_s = float(SERVICES[name]["environment"]["HEADRACE_DRAIN_TIMEOUT_S"])
        assert seconds(SERVICES[name]["stop_grace_period"]) >= drain_s + 10


@pytest.mark.parametrize("name", SERVERS)
def test_variables_of_the_server_are_options(name: str) -> None:
    given = {key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in SERVICES[name]["environment"].items()}
    assert check_variables(given).value("disk-path") == "/cache/kv"


def test_the_load_is_one_that_bench_takes() -> None:
    arguments = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", part) for part in SERVICES["load"]["command"]]
    arguments[1] = "http://127.0.0.1:9"
    done = run_tool(
        "env", f"PYTHONPATH={ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        sys.executable, "-m", "server", *arguments,
    )  # fmt: skip
    assert "Usage" not in done.stderr and "Error" not in done.stderr and done.returncode == 2, done.stderr
    assert "127.0.0.1:9" in done.stderr, "its options were taken, only the server is not there"


def test_prometheus_finds_the_server_the_rules_and_a_month_of_room() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]}
    assert targets["headrace"] == ["server:8000"]
    for name in SERVERS:
        assert SERVICES[name]["networks"]["default"]["aliases"] == ["server"]
    mounts = [volume.split(":")[0] for volume in SERVICES["prometheus"]["volumes"] if volume.startswith("./")]
    assert all((DEPLOY / mount).exists() for mount in mounts)
    (kept,) = [part for part in SERVICES["prometheus"]["command"] if "retention.time" in part]
    assert int(re.search(r"=(\d+)d$", kept)[1]) > 30  # type: ignore[index]


def test_nobody_gets_more_rights() -> None:
    for service in SERVICES.values():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
