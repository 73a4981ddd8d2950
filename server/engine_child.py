"""One engine process as its parent sees it: start, output, exit."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import engine
from engine.process_config import ProcessConfig

logger = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-P", "-m", "engine")
"""-P: a folder named engine in the working directory must not be taken for ours."""

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
_TAIL_LINES = 20
_DRAIN_S = 1.0
_READ_BYTES = 16 * 1024
_MAX_LINE_BYTES = 64 * 1024


def child_environment(environment: Mapping[str, str], threads: int | None) -> dict[str, str]:
    """The environment of an engine process; what the user has set stays.

    OpenMP reads its settings when torch is imported, so they must be there before. Where other processes are busy, and
    the HTTP process is, spinning threads take the processor from whom they wait for: 32 answers of 30 tokens (SmolLM2,
    2 threads on 2 processors, load 4-6) took 5.7 s with passive threads, 26-82 s with the default and 48 s with active
    ones. On an idle machine passive threads cost a third on small matrix products. To LLVM's and Intel's OpenMP passive
    still means to spin for KMP_BLOCKTIME, 200 ms.
    """
    child = dict(environment)
    child.setdefault("OMP_WAIT_POLICY", "passive")
    child.setdefault("KMP_BLOCKTIME", "0")
    if threads is not None:
        child["OMP_NUM_THREADS"] = str(threads)
    root = str(Path(engine.__file__).resolve().parent.parent)
    child["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    return child


class EngineChild:
    """A running or ended process. Its output is logged line by line; the last lines are kept."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._level = logging.INFO
        self._relay = asyncio.create_task(self._relay_output())

    @staticmethod
    async def spawn(command: tuple[str, ...], config: ProcessConfig) -> EngineChild:
        """Start the process and give it its configuration.

        Raises:
            OSError: it cannot be started.
        """
        environment = child_environment(os.environ, config.engine.threads)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=environment, start_new_session=True
        )
        child = EngineChild(process)
        assert process.stdin is not None
        try:
            process.stdin.write(config.encode())
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("engine process %d ended before it read its configuration", process.pid)
        process.stdin.close()
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log_tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self._tail)

    async def wait(self) -> int:
        """Its exit status once it ended; minus the signal's number where one ended it."""
        return await self._process.wait()

    async def drain_output(self) -> None:
        """Log what is left of the output of a process that ended; a heir of its pipe is not waited for."""
        await asyncio.wait({self._relay}, timeout=_DRAIN_S)
        self._relay.cancel()

    def kill(self) -> None:
        """End it at once; nothing if it has ended."""
        if self._process.returncode is None:
            self._process.kill()

    async def _relay_output(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        rest = b""
        while data := await stdout.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._log(line)
            if len(rest) > _MAX_LINE_BYTES:
                self._log(rest)
                rest = b""
        if rest:
            self._log(rest)

    def _log(self, line: bytes) -> None:
        """A line without a level of its own, as in a traceback, has that of the line before."""
        text = line.decode("utf-8", "replace").rstrip()
        self._tail.append(text)
        level, _, message = text.partition(" ")
        if level in _LEVELS:
            self._level = _LEVELS[level]
            text = message
        logger.log(self._level, "engine %d: %s", self.pid, text)
