"""Conversations with a server of three KV tiers, while its processes are killed and its disk fills, breaks and goes."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import openai

from tests import kv_faults
from tests.kv_dialogues import CLASSES, MAX_CHOICES, REQUEST_S, Answer, Manner, Question, ask, difference, open_client
from tests.kv_service import KVService, read_metrics
from tests.kv_watch import Watch

logger = logging.getLogger(__name__)

NUM_WORKERS = 6
IDLE_S = 30.0
"""How soon after the last answer nothing runs, waits or holds a block."""
KILLING = (0.2, 0.8)
"""Shares of the run before the first and after the second of which processes are killed; one engine lives between."""
FULL_FROM = 0.7
"""A disk that was full twice is only read from then on: in the long life late."""
MAX_PROBLEMS = 20


@dataclasses.dataclass(slots=True)
class Tally:
    """What came of the requests; under the lock of the soak."""

    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    answered_by: Counter[str] = dataclasses.field(default_factory=Counter)
    """Whole and right answers, by a word for each part of their manner."""
    refused_by: Counter[str] = dataclasses.field(default_factory=Counter)
    """429, by class."""
    cached_tokens: Counter[str] = dataclasses.field(default_factory=Counter)
    """By tier."""
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    struck_files: Counter[str] = dataclasses.field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest_stop_s: float = 0.0
    problems: list[str] = dataclasses.field(default_factory=list)


class KVSoak:
    """Runs for a while; afterwards `tally` and `watch` tell."""

    def __init__(
        self,
        service: KVService,
        known: dict[Question, Answer],
        disk_path: Path,
        disk_bytes: int,
        mounted: Path | None,
        seed: int,
    ) -> None:
        """
        Args:
            known: right answers, by question.
            mounted: a small file system that `disk_path` lies on; None: there is none, full disks are a limit of files.
        """
        self._service = service
        self._known = known
        self._questions = list(known)
        self._weights = [1.0 / (1 + place % 24) for place in range(len(known))]
        self._disk_path = disk_path
        self._mounted = mounted
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.tally = Tally()
        self.watch = Watch(service, disk_path, disk_bytes)

    def run(self, duration_s: float) -> None:
        """Ask and break; then wait until the server is idle, and look at its books."""
        workers = [threading.Thread(target=self._work, args=(seed,), daemon=True) for seed in range(NUM_WORKERS)]
        for worker in workers:
            worker.start()
        started_s = time.monotonic()
        while (done := (time.monotonic() - started_s) / duration_s) < 1.0 and len(self.tally.problems) < MAX_PROBLEMS:
            for fault in self._round(done):
                self._ending.wait(self._rng.uniform(0.5, 2.5))
                self.tally.faults[fault.__name__.strip("_")] += 1
                logger.info("%.0f s: %s; %s", time.monotonic() - started_s, fault.__name__, dict(self.tally.outcomes))
                fault()
                if time.monotonic() - started_s >= duration_s:
                    break
        self._ending.set()
        deadline_s = time.monotonic() + REQUEST_S + 10.0
        for worker in workers:
            worker.join(max(0.0, deadline_s - time.monotonic()))
            if worker.is_alive():
                self.tally.problems.append("a request never ended")
        self._wait_idle()
        self.watch.stop()

    def _round(self, done: float) -> list[Callable[[], None]]:
        """Faults in an order of their own, each once."""
        faults: list[Callable[[], None]] = [self._damage] * 8 + [self._hang, self._remove_all]
        if done < KILLING[0] or done >= KILLING[1]:
            faults += [self._kill_engine, self._kill_server, self._stop_server, self._kill_engine_on_full_disk]
            faults += [self._stop_server_on_hung_disk]
        if done < KILLING[0] or done >= FULL_FROM:
            faults += [self._fill_disk, self._limit_files]
        self._rng.shuffle(faults)
        return faults

    def _damage(self) -> None:
        """The next kind of damage to files."""
        kinds = kv_faults.FILE_FAULTS
        kind = kinds[sum(1 for _ in self.tally.struck_files) % len(kinds)]
        if len(self.tally.struck_files) == len(kinds):
            kind = self._rng.choice(kinds)
        share = self._rng.choice((0.02, 0.2, 1.0))
        if kind is kv_faults.replace_folder_by_file:
            share = 0.02  # it stays: writes there fail until everything is removed
        self.tally.struck_files[kind.__name__] += kv_faults.strike(self._disk_path, kind, share, self._rng)

    def _remove_all(self) -> None:
        kv_faults.remove_everything(self._disk_path)

    def _hang(self) -> None:
        """The disk does not answer, sometimes for longer than the server waits for it."""
        hung = self._hang_files()
        self._ending.wait(self._rng.choice((1.0, 1.0, 1.0, 8.0)))
        hung.release()

    def _hang_files(self) -> kv_faults.HungFiles:
        files = kv_faults.block_files(self._disk_path)
        return kv_faults.HungFiles(self._rng.sample(files, len(files) // 2))

    def _fill_disk(self) -> None:
        if self._mounted is None:
            self._limit_files()
            return
        kv_faults.fill(self._mounted)
        self._ending.wait(4.0)
        kv_faults.empty(self._mounted)

    def _limit_files(self) -> None:
        engine = self._service.engine()
        if engine is not None:
            kv_faults.limit_files(engine, 4096)
            self._ending.wait(4.0)
            kv_faults.limit_files(engine, None)

    def _kill_engine(self) -> None:
        self._service.kill_engine()

    def _kill_engine_on_full_disk(self) -> None:
        if self._mounted is not None:
            kv_faults.fill(self._mounted)
        self._service.kill_engine()
        if self._mounted is not None:
            kv_faults.empty(self._mounted)

    def _kill_server(self) -> None:
        with self._service.outages.one(of_server=True):
            self._service.kill()
            self._service.start()

    def _stop_server(self) -> None:
        with self._service.outages.one(of_server=True):
            self.tally.slowest_stop_s = max(self.tally.slowest_stop_s, self._service.stop())
            self._service.start()

    def _stop_server_on_hung_disk(self) -> None:
        """A thread in the system stops no end, and what is left on the disk no start."""
        self._hang_files()
        self._ending.wait(2.0)
        self._stop_server()

    def _work(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._ending.is_set():
            url = self._service.url
            with open_client(url) as client:
                while not self._ending.is_set() and self._service.url == url:
                    (question,) = rng.choices(self._questions, self._weights)
                    self._ask(client, question, _manner(rng))

    def _ask(self, client: openai.OpenAI, question: Question, manner: Manner) -> None:
        started_s = time.monotonic()
        problem = None
        try:
            answer = ask(client, question, manner)
            wrong = difference(answer, self._known[question], manner)
            outcome = "right" if wrong is None else "wrong"
            if wrong is not None:
                problem = f"{manner} of {question}: {wrong}"
        except openai.RateLimitError:
            answer, outcome = None, "refused"
        except (openai.APIError, httpx.HTTPError) as error:
            answer, outcome = None, "outage"
            # An error is noticed when it comes, a client's own limit when it is over: that excuses nothing.
            if isinstance(error, openai.APITimeoutError) or not self._service.outages.excuse(
                started_s, time.monotonic()
            ):
                outcome, problem = "error", f"{manner}: {error!r} after {time.monotonic() - started_s:.1f} s"
                self._ending.wait(0.5)
        self._note(manner, outcome, answer, time.monotonic() - started_s, problem)
        if outcome == "outage":
            self._ending.wait(0.1)

    def _note(self, manner: Manner, outcome: str, answer: Answer | None, took_s: float, problem: str | None) -> None:
        with self._lock:
            tally = self.tally
            tally.outcomes[outcome] += 1
            tally.slowest_s = max(tally.slowest_s, took_s)
            if problem is not None and len(tally.problems) < MAX_PROBLEMS:
                tally.problems.append(problem)
            if outcome == "refused":
                tally.refused_by[manner.slo_class] += 1
            if outcome == "right" and answer is not None:
                tally.answered_by.update(_words(manner))
                tally.cached_tokens.update(answer.cached_by_tier or {})

    def _wait_idle(self) -> None:
        deadline_s = time.monotonic() + IDLE_S
        names = ("headrace_requests_running", "vllm:num_requests_waiting", "headrace_kv_cache_usage_ratio")
        while True:
            metrics = read_metrics(self._service.url)
            busy = {name: value for name, value in metrics.items() if name.startswith(names) and value}
            if not busy:
                return
            if time.monotonic() > deadline_s:
                self.tally.problems.append(f"{IDLE_S:g} s after the last answer: {busy}")
                return
            threading.Event().wait(0.2)


def _manner(rng: random.Random) -> Manner:
    streams = rng.random() < 0.5
    return Manner(
        slo_class=rng.choice(CLASSES),
        n=rng.choice((1, 1, 2, MAX_CHOICES)),
        streams=streams,
        leaves_after=rng.randrange(1, 20) if streams and rng.random() < 0.3 else None,
        cache_salt=rng.choice((None, None, "ant", "bee")),
        cache_key=rng.choice((None, None, "key")),
    )


def _words(manner: Manner) -> list[str]:
    words = [manner.slo_class, f"n={manner.n}", f"salt={manner.cache_salt}", f"key={manner.cache_key}"]
    return [*words, "left" if manner.leaves_after is not None else "stream" if manner.streams else "whole"]
