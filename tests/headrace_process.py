"""`headrace` as a user runs it: a process, its output, its exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_ANSWERS_AT = re.compile(r"Headrace answers at (\S+)")
READY_WITHIN_S = 60.0
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

    def __init__(self, *arguments: str, cache_path: Path | None = None) -> None:
        """
        Args:
            cache_path: of models, kernels and records; None: the user's.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve", "--port", "0", *arguments],
            env=_environment(None if cache_path is None else {"HEADRACE_CACHE": str(cache_path)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        """What it has said so far."""
        self._url: str | None = None
        self._is_decided = threading.Event()
        """It answers, or it has ended."""
        # Read all the time: a full pipe would stop the server in the midst of a log line.
        self._reader = threading.Thread(target=self._read, name="headrace-stderr", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> str:
        """Its URL, once it answers requests."""
        assert self._is_decided.wait(within_s), "\n".join(["headrace serve is not ready:", *self.lines])
        assert self._url is not None, "\n".join(["headrace serve ended:", *self.lines])
        return self._url

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_exit(self) -> int:
        """Its exit status; all that it said is in `lines`."""
        status = self._process.wait(_ENDS_WITHIN_S)
        self._reader.join(_ENDS_WITHIN_S)
        return status

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip())
            if match := _ANSWERS_AT.search(line):
                self._url = match[1]
                self._is_decided.set()
        self._is_decided.set()


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    if cache := os.environ.get("HEADRACE_CACHE"):
        inherited["HEADRACE_CACHE"] = cache
    root = str(Path(__file__).resolve().parents[1])
    return {**inherited, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **(extra or {})}
