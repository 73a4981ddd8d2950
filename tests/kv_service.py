"""`headrace serve` on one disk path through many lives: killed, ended, started again; and when it may be away."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from tests.headrace_process import HeadraceProcess

READY_S = 120.0
ENDS_S = 15.0
"""Most that an end by SIGTERM takes, `DRAIN_S` of it for the requests that run."""
DRAIN_S = 3
GRACE_S = 1.0
"""What was sent so soon after an outage may have met its end."""
ENGINE_ENDS_S = 10.0
"""How soon an engine process notices that its server was killed."""
_IS_WRONG = re.compile(r"Traceback|Error:| ERROR | CRITICAL ")
_IS_EXPECTED = re.compile(r"ended by SIGKILL; starting it again|goes on without its disk")


@dataclasses.dataclass(slots=True)
class Outage:
    """From the fault until the server answers again; of its engine alone, or of the server too."""

    begun_s: float
    is_of_server: bool
    ended_s: float = float("inf")


class Outages:
    """When the server was away on purpose; may be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outages: list[Outage] = []

    @contextlib.contextmanager
    def one(self, *, of_server: bool) -> Iterator[None]:
        """One that lasts as long as the block."""
        outage = Outage(time.monotonic(), of_server)
        with self._lock:
            self._outages.append(outage)
        try:
            yield
        finally:
            with self._lock:
                outage.ended_s = time.monotonic()

    def excuse(self, start_s: float, end_s: float, *, of_engine: bool = True) -> bool:
        """Whether an error between the two may come from an outage; of the server, or of its engine as well."""
        with self._lock:
            return any(
                outage.begun_s <= end_s and start_s <= outage.ended_s + GRACE_S
                for outage in self._outages
                if of_engine or outage.is_of_server
            )


class KVService:
    """One server after the other with the same arguments; one thread kills and starts, any may read."""

    def __init__(self, arguments: tuple[str, ...], cache_path: Path | None) -> None:
        self._arguments = (*arguments, "--drain-timeout-s", str(DRAIN_S))
        self._cache_path = cache_path
        self._process: HeadraceProcess | None = None
        self._pause = threading.Event()  # never set
        self.outages = Outages()
        self.url = ""
        self.life = 0
        """How many were started."""
        self.wrong_lines: list[str] = []
        """What servers that have ended had logged and should not have."""

    def start(self) -> None:
        """Start one and wait until it answers."""
        self._process = HeadraceProcess(*self._arguments, cache_path=self._cache_path)
        self.life += 1
        self.url = self._process.wait_ready(READY_S)

    @property
    def lines(self) -> list[str]:
        """What the present one has said."""
        assert self._process is not None
        return self._process.lines

    @property
    def server(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def engine(self) -> psutil.Process | None:
        """None: there is none at the moment."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self.server.children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    if "engine" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                        return process
        return None

    def kill_engine(self) -> None:
        """kill -9, and wait for the next one."""
        engine = self.engine()
        assert engine is not None
        with self.outages.one(of_server=False):
            engine.kill()
            deadline_s = time.monotonic() + READY_S
            while (now := self.engine()) is None or now == engine or not self._is_ready():
                assert time.monotonic() < deadline_s, f"no engine {READY_S:g} s after it was killed"
                self._pause.wait(0.05)

    def kill(self) -> None:
        """kill -9 of the server; its engine ends by itself."""
        assert self._process is not None
        engine = self.engine()
        self._process.signal(signal.SIGKILL)
        self._close()
        if engine is not None:
            engine.wait(ENGINE_ENDS_S)

    def stop(self) -> float:
        """SIGTERM; how long it took in seconds."""
        assert self._process is not None
        started_s = time.monotonic()
        self._process.signal(signal.SIGTERM)
        status = self._process.wait_exit()
        took_s = time.monotonic() - started_s
        lines = self._process.lines[-5:]
        self._close()
        assert status == 0, f"status {status} after SIGTERM: {lines}"
        assert took_s < ENDS_S, f"an end by SIGTERM took {took_s:.1f} s: {lines}"
        return took_s

    def close(self) -> None:
        """Whatever state it is in. Idempotent."""
        if self._process is not None:
            self._close()

    def _close(self) -> None:
        assert self._process is not None
        self._process.__exit__(None, None, None)
        lines = [line for line in self._process.lines if _IS_WRONG.search(line)]
        self.wrong_lines += [line for line in lines if not _IS_EXPECTED.search(line)]
        self._process = None

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False


def read_metrics(url: str) -> dict[str, float]:
    """Value by name and labels, as they are written."""
    lines = httpx.get(f"{url}/metrics", timeout=10.0).raise_for_status().text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
