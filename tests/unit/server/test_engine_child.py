"""The environment and the output of an engine process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

import engine
from engine.config import EngineConfig
from engine.process_config import ProcessConfig
from scheduler.config import SchedulerConfig
from server.engine_child import EngineChild, child_environment

ROOT = str(Path(engine.__file__).resolve().parent.parent)
CONFIG = ProcessConfig(EngineConfig("m"), SchedulerConfig(), "ipc:///a", "ipc:///b", parent_pid=1)


def test_openmp_waits_passively_unless_the_user_says_otherwise() -> None:
    own = child_environment({}, 2)
    assert (own["OMP_WAIT_POLICY"], own["KMP_BLOCKTIME"]) == ("passive", "0")
    users = child_environment({"OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "1"}, 2)
    assert (users["OMP_WAIT_POLICY"], users["KMP_BLOCKTIME"]) == ("active", "1")


def test_threads_are_what_was_asked_for_else_what_the_user_set() -> None:
    assert child_environment({"OMP_NUM_THREADS": "3"}, 2)["OMP_NUM_THREADS"] == "2"
    assert child_environment({"OMP_NUM_THREADS": "3"}, None)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in child_environment({}, None)


def test_our_packages_are_found_first() -> None:
    assert child_environment({}, 1)["PYTHONPATH"] == ROOT
    assert child_environment({"PYTHONPATH": "elsewhere"}, 1)["PYTHONPATH"] == f"{ROOT}{os.pathsep}elsewhere"


def _run(script: str) -> tuple[int, str]:
    async def run() -> tuple[int, str]:
        child = await EngineChild.spawn((sys.executable, "-S", "-c", script), CONFIG)
        status = await child.wait()
        await child.drain_output()
        child.kill()
        return status, child.log_tail

    return asyncio.run(run())


def test_output_is_logged_at_its_own_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="server.engine_child")
    status, tail = _run(
        "import sys; sys.stdin.read(); print('INFO a: one'); print('ERROR b: two'); "
        "print('Traceback: three'); print('no end', end='')"
    )
    assert status == 0
    records = [(r.levelname, r.getMessage().split(": ", 1)[1]) for r in caplog.records if "engine " in r.getMessage()]
    assert records == [
        ("INFO", "a: one"),
        ("ERROR", "b: two"),
        ("ERROR", "Traceback: three"),
        ("ERROR", "no end"),
    ]
    assert tail.splitlines()[-1] == "no end"


def test_a_process_that_ignores_its_configuration_is_no_error() -> None:
    status, tail = _run("import sys; sys.stdin.close(); sys.stderr.write('x' * 200_000); sys.exit(5)")
    assert status == 5 and len(tail.replace("\n", "")) == 200_000
