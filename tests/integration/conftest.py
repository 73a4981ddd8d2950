"""Servers that several files of tests share: one start for all of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kernels.native_library import cache_directory
from tests.headrace_process import HeadraceProcess

MODEL = "org/tiny"


@dataclasses.dataclass(frozen=True, slots=True)
class LiveServer:
    """`headrace serve` with the tiny model: a real HTTP process and a real engine process."""

    process: HeadraceProcess
    url: str
    model: str = MODEL

    def metric(self, name: str) -> float:
        """The sum of a metric's series whose line starts with `name`, labels or a part of them included."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]
        assert values, f"no metric {name}"
        return sum(values)


def _make_cache(path: Path) -> Path:
    """With the user's kernels and records of its own: those of random models are nobody's."""
    kernels = cache_directory(os.environ)
    kernels.mkdir(parents=True, exist_ok=True)
    (path / "kernels").symlink_to(kernels.resolve())
    return path


@pytest.fixture(scope="session")
def cache_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What servers of random models share."""
    return _make_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def fresh_cache_path(tmp_path: Path) -> Path:
    """Without a record."""
    return _make_cache(tmp_path)


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory, cache_path: Path) -> Iterator[LiveServer]:
    """Shared by many tests: leave it idle, and compare counters with what they were before.

    Its model has more layers than the usual tiny one: a thousand tokens take seconds, time enough to leave.
    """
    from tests.tiny_model import make_tiny_llama  # imports transformers: only where a test asks for the model

    model = make_tiny_llama(tmp_path_factory.mktemp("deep_llama"), num_hidden_layers=12)
    arguments = ("--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-memory", "64MiB")
    with HeadraceProcess(str(model), *arguments, cache_path=cache_path) as process:
        yield LiveServer(process, process.wait_ready())
