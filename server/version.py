"""Which Headrace this is."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path


def headrace_version() -> str:
    """The version, also where a checkout runs without having been installed."""
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["version"])
