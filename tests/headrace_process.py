"""`headrace` as a user runs it: a process, its output, its exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

_ANSWERS_AT = re.compile(r"Headrace answers at (\S+)")
_ENDS_WITHIN_S = 30.0


def run_headrace(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        env=_environment(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ENDS_WITHIN_S,
        check=False,
    )


class HeadraceProcess:
    """`headrace serve` on a free port; a context manager that ends it."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve", "--port", "0", *arguments],
            env=_environment(None),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        """What it has said so far, as far as it was read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def wait_ready(self) -> str:
        """Its URL, once it answers requests. The test's own time limit bounds the wait."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip())
            if match := _ANSWERS_AT.search(line):
                return match[1]
        raise AssertionError("headrace serve ended:\n" + "\n".join(self.lines))

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_exit(self) -> int:
        """Its exit status; the rest of what it said is in `lines`."""
        _, errors = self._process.communicate(timeout=_ENDS_WITHIN_S)
        self.lines += errors.splitlines()
        return self._process.returncode


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    if cache := os.environ.get("HEADRACE_CACHE"):
        inherited["HEADRACE_CACHE"] = cache
    root = str(Path(__file__).resolve().parents[1])
    return {**inherited, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **(extra or {})}
