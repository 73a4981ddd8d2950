"""Looks at a server every second while it is used and abused: does it answer, and does it grow."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from tests.kv_faults import used_bytes
from tests.kv_service import KVService, read_metrics

INTERVAL_S = 1.0
ANSWERS_S = 10.0
"""`/readyz` and `/metrics`, on a machine that is busy."""
NUM_LOOKS = 4
"""At the disk, one after the other; the least counts."""
_IN_USE = ('headrace_kv_tier_on{tier="host"}', 'headrace_kv_tier_on{tier="disk"}', "headrace_kv_disk_writable")


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """At one time; of server and engine, resident bytes, open files and threads."""

    at_s: float
    engine_pid: int
    engine_bytes: int
    engine_fds: int
    engine_threads: int
    server_bytes: int
    server_fds: int
    server_threads: int


class Watch:
    """A thread; `samples`, `problems` and `totals` are for reading after `stop`."""

    def __init__(self, service: KVService, disk_path: Path, disk_bytes: int) -> None:
        """
        Args:
            disk_bytes: most that the blocks may take of the disk.
        """
        self._service = service
        self._disk_path = disk_path
        self._disk_bytes = disk_bytes
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self.num_answers: Counter[str] = Counter()
        self.most_disk_bytes = 0
        self._last_metrics: dict[int, dict[str, float]] = {}
        """By life of the server."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(ANSWERS_S * 3)
        assert not self._thread.is_alive()
        self._look_at_disk()

    def totals(self) -> Counter[str]:
        """Of each metric over the lives of the server, as far as they were seen."""
        totals: Counter[str] = Counter()
        for metrics in self._last_metrics.values():
            totals.update({name: value for name, value in metrics.items() if "_total" in name})
        return totals

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            life, url = self._service.life, self._service.url
            self._probe("/readyz", lambda url=url: httpx.get(f"{url}/readyz", timeout=ANSWERS_S).raise_for_status())  # type: ignore[misc]
            self._probe("/metrics", lambda url=url, life=life: self._read_metrics(url, life))  # type: ignore[misc]
            with contextlib.suppress(psutil.Error, AssertionError):  # between two lives there is no server
                self._sample()
            self._look_at_disk()

    def _look_at_disk(self) -> None:
        """A look takes time: a block that was counted may be gone, and its successor be counted too, but not always."""
        used = min(used_bytes(self._disk_path) for _ in range(NUM_LOOKS))
        self.most_disk_bytes = max(self.most_disk_bytes, used)
        if used > self._disk_bytes:
            self.problems.append(f"blocks take {used:,} bytes of the disk, the limit is {self._disk_bytes:,}")

    def _probe(self, path: str, get: Callable[[], object]) -> None:
        started_s = time.monotonic()
        try:
            get()
            self.num_answers[path] += 1
        except httpx.HTTPError as error:
            # While the server lives it tells its metrics; ready it is when the engine is.
            if not self._service.outages.excuse(started_s, time.monotonic(), of_engine=path == "/readyz"):
                self.problems.append(f"{path} did not answer: {error!r}")

    def _read_metrics(self, url: str, life: int) -> None:
        metrics = read_metrics(url)
        self._last_metrics[life] = metrics
        for name in (
            'headrace_kv_tier_on{tier="host"}',
            'headrace_kv_tier_on{tier="disk"}',
            "headrace_kv_disk_writable",
        ):
            self.num_answers[f"{name} is {metrics[name]:g}"] += 1
        for tier in ("host", "disk"):
            used, limit = (metrics[f'headrace_kv_tier_blocks{part}{{tier="{tier}"}}'] for part in ("", "_limit"))
            if used > limit > 0:
                self.problems.append(f"{used:g} blocks on the {tier}, the limit is {limit:g}")

    def _sample(self) -> None:
        engine, server = self._service.engine(), self._service.server
        if engine is None:
            return
        self.samples.append(
            Sample(
                time.monotonic(), engine.pid, engine.memory_info().rss, engine.num_fds(), engine.num_threads(),
                server.memory_info().rss, server.num_fds(), server.num_threads(),
            )
        )  # fmt: skip


def growth(samples: list[Sample], warm_s: float) -> tuple[Sample, Sample]:
    """Of the engine that lived longest: once it was `warm_s` old, and at its end; each the largest of a tenth."""
    (pid, _), *_ = Counter(sample.engine_pid for sample in samples).most_common(1)
    life = [sample for sample in samples if sample.engine_pid == pid]
    warm = [sample for sample in life if sample.at_s >= life[0].at_s + warm_s]
    assert len(warm) >= 10, f"the longest life of an engine was {life[-1].at_s - life[0].at_s:.0f} s"
    tenth = max(1, len(warm) // 10)
    return _largest(warm[:tenth]), _largest(warm[-tenth:])


def _largest(samples: list[Sample]) -> Sample:
    fields = [field.name for field in dataclasses.fields(Sample)]
    return Sample(**{name: max(getattr(sample, name) for sample in samples) for name in fields})
