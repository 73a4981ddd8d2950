"""What lies in deploy/, and the tools that check it: found where they are, else the test is skipped with the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from server.config import ServerConfig
from server.option import options_of
from server.settings import Settings, load_settings, unknown_variables

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
_UNPACKED = ROOT / ".tools" / "prometheus" / "usr" / "bin"
"""Where `make prometheus` puts Debian's package."""
_WITHIN_S = 60.0
_OPTIONS = options_of(ServerConfig, EngineConfig, OffloadConfig, SchedulerConfig, without={"model_path"})


def find_tool(name: str, how: str) -> str:
    """Path of a program: beside this Python, on the PATH, or unpacked here; skips the test where there is none."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), str(_UNPACKED)])
    found = shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is absent: {how}")
    return found


def find_prometheus(name: str) -> str:
    """`promtool` or `prometheus`."""
    return find_tool(name, "apt-get install prometheus, or make prometheus")


def run_tool(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        input=stdin, capture_output=True, text=True, timeout=_WITHIN_S, check=False, cwd=ROOT,
    )  # fmt: skip


def check_generated(script: str) -> None:
    """What a generator in deploy/ would write is what lies there."""
    done = run_tool(sys.executable, DEPLOY / script, "--check")
    assert done.returncode == 0, done.stderr


def check_variables(variables: dict[str, str]) -> Settings:
    """Variables of a container are options of `headrace serve`, within their bounds, and fit together."""
    assert unknown_variables(_OPTIONS, variables) == []
    settings = load_settings(_OPTIONS, {}, variables, None)
    settings.build(ServerConfig)
    settings.build(OffloadConfig)
    return settings


def load_dashboards() -> dict[str, dict[str, Any]]:
    """By file name."""
    paths = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    assert paths
    return {path.name: json.loads(path.read_text()) for path in paths}


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of the panel, and the expression as it is written."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def fill_in(expr: str, window: str = "5m") -> str:
    """The expression with Grafana's variables replaced, as with "All" chosen."""
    for name, value in (("__rate_interval", window), ("job", ".+"), ("instance", ".+"), ("slo_class", ".+")):
        expr = expr.replace(f"${name}", value)
    return expr
