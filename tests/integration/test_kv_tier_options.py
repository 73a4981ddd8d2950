"""Options of KV tiers that cannot be are refused before weights are read: value, limit, way out; no traceback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import EngineStartError
from engine.process_config import ProcessConfig
from engine.runner_factory import build_model_runner
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from tests.headrace_process import HeadraceProcess, run_headrace

OPTIONS = ("--dtype", "float32", "--threads", "1", "--kv-cache-memory", "1MiB", "--no-predict-steps")
BLOCK_BYTES = 8192
"""Of the tiny model: 16 tokens, 2 layers, keys and values of 2 heads of 16 float32."""
FILE_BYTES = 12288
"""A header and that, in pages."""


def _refusal(model_path: Path, cache_path: Path, *options: str) -> str:
    """The last line of a server's start that fails."""
    ended = run_headrace(
        "serve", str(model_path), "--port", "0", *OPTIONS, *options, environ={"HEADRACE_CACHE": str(cache_path)}
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    return ended.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--disk-path", "{tmp}/d", "--disk-size", "0"), ("--disk-size is 0", "at least 1")),
        (("--disk-path", ""), ("--disk-path is ", "empty")),
        (("--disk-size", "1GiB"), ("--disk-size", "give --disk-path")),
        (("--disk-path", "{tmp}/d", "--host-memory", "0"), ("--host-memory is 0", "{tmp}/d", "leave it away")),
        (("--kv-checksum", "always"), ("--kv-checksum (always)", "give --device-memory or --host-memory")),
    ],
)
def test_values_that_make_no_sense_are_refused_without_an_engine(
    options: tuple[str, ...], parts: tuple[str, ...], tiny_model_path: Path, cache_path: Path, tmp_path: Path
) -> None:
    message = _refusal(tiny_model_path, cache_path, *(option.format(tmp=tmp_path) for option in options))
    assert message.startswith("headrace: ") and "the engine" not in message
    for part in parts:
        assert part.format(tmp=tmp_path) in message
    assert "--host memory" not in message, "a word is no option"
    assert not (tmp_path / "d").exists()


def test_a_second_server_on_the_same_path_is_refused_and_the_first_one_serves(
    tiny_model_path: Path, cache_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "d"
    with HeadraceProcess(str(tiny_model_path), *OPTIONS, "--disk-path", str(path), cache_path=cache_path) as first:
        first.wait_ready()
        message = _refusal(tiny_model_path, cache_path, "--disk-path", str(path))
        assert message.startswith(f"headrace: the engine did not start: --disk-path {path}: ")
        assert "is in use by process" in message and "give each server a --disk-path of its own" in message


def _start_error(model_path: Path, *, enable_prefix_caching: bool = True, **offload: Any) -> str:
    """What the engine says where it does not come to the weights."""
    config = ProcessConfig(
        engine=EngineConfig(str(model_path), dtype="float32", kernels="torch", threads=1, predict_steps=False),
        scheduler=SchedulerConfig(enable_prefix_caching=enable_prefix_caching),
        inbox_endpoint="",
        outbox_endpoint="",
        parent_pid=os.getpid(),
        offload=OffloadConfig(**offload),
    )
    phases: list[str] = []
    with pytest.raises(EngineStartError) as caught:
        build_model_runner(config, lambda phase, _: phases.append(phase))
    assert not {"loading weights", "making the KV cache"}.intersection(phases)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"disk_path": "{tmp}/file"}, ("--disk-path {tmp}/file is a file", "give a directory")),
        ({"disk_path": "{tmp}/file/d"}, ("--disk-path {tmp}/file/d cannot be used", "give a directory")),
        ({"disk_path": "{tmp}/d", "disk_bytes": FILE_BYTES - 1}, ("--disk-size is 12,287", "12,288", "raise it")),
        ({"host_memory_bytes": BLOCK_BYTES - 1}, ("--host-memory is 8,191", "8,192", "raise it, or leave it away")),
        (
            {"host_memory_bytes": 2**20, "enable_prefix_caching": False},
            ("--host-memory keeps KV blocks", "--no-enable-prefix-caching", "leave one of them away"),
        ),
        (
            {"disk_path": "{tmp}/d", "enable_prefix_caching": False},
            ("--disk-path keeps KV blocks", "--no-enable-prefix-caching", "leave one of them away"),
        ),
    ],
)
def test_sizes_and_places_that_hold_no_block_are_refused_before_weights_are_read(
    options: dict[str, Any], parts: tuple[str, ...], tiny_model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    given: dict[str, Any] = {
        name: value.format(tmp=tmp_path) if isinstance(value, str) else value for name, value in options.items()
    }
    message = _start_error(tiny_model_path, **given)
    for part in parts:
        assert part.format(tmp=tmp_path) in message


def test_a_directory_that_cannot_be_written_is_refused_before_weights_are_read(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    """Root may write everywhere but where nobody can make a directory."""
    path = Path("/proc/headrace") if os.geteuid() == 0 else tmp_path / "closed"
    if os.geteuid() != 0:
        path.mkdir(mode=0o500)
    message = _start_error(tiny_model_path, disk_path=str(path))
    assert f"--disk-path {path} cannot be" in message and "give a directory that can" in message
