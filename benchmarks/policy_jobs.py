"""The pieces of work of an experiment on policies, and the file of those that are done."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.policy_trial import Trial
from engine.simulation.capacity import find_capacity

_STRIDE = 1.2
"""Of a search that begins near its end."""
_BETTER = 1.02
"""Another budget must bear so much more to be taken."""


class Job(Protocol):
    """A function of itself; its key names it among all of an experiment's."""

    @property
    def key(self) -> str: ...

    def run(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Tuning:
    """The budget with which a policy bears most."""

    trial: Trial
    budgets: tuple[int, ...]
    goal: float

    @property
    def key(self) -> str:
        return f"tuning|{self.trial.key}|{self.budgets}|{self.goal:g}"

    def run(self) -> dict[str, Any]:
        """Another budget than the best so far is searched only if it bears what the best does, and a little more."""
        best, capacity = self.trial.budget, 0.0
        for budget in self.budgets:
            trial = dataclasses.replace(self.trial, budget=budget)
            if not capacity:
                best, capacity = budget, _capacity(trial, self.goal, trial.guess_per_s(), 2.0)
            elif trial.attainment(capacity * _BETTER, self.goal) >= self.goal:
                best, capacity = budget, _capacity(trial, self.goal, capacity * _BETTER, _STRIDE)
        return {"budget": best, "capacity_per_s": capacity}


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate at which so many of the protected requests are served in time."""

    trial: Trial
    goal: float
    start_per_s: float

    @property
    def key(self) -> str:
        return f"capacity|{self.trial.key}|{self.goal:g}"

    def run(self) -> dict[str, Any]:
        return {"capacity_per_s": _capacity(self.trial, self.goal, self.start_per_s, _STRIDE)}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run at a rate."""

    trial: Trial
    rate_per_s: float

    @property
    def key(self) -> str:
        return f"outcome|{self.trial.key}|{self.rate_per_s:.6g}"

    def run(self) -> dict[str, Any]:
        return self.trial.outcome(self.rate_per_s)


def _capacity(trial: Trial, goal: float, start_per_s: float, stride: float) -> float:
    return find_capacity(lambda rate: trial.attainment(rate, goal), start_per_s, goal, stride)


class Laboratory:
    """Runs jobs that are not done yet, several at a time, and keeps what they find in a JSON file."""

    def __init__(self, path: Path | None, num_processes: int) -> None:
        """
        Args:
            path: of the file; what it holds is not run again. None: nothing is kept.
            num_processes: 1: in this one.
        """
        self._path = path
        self._num_processes = num_processes
        self._done: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._done = json.loads(path.read_text(encoding="utf-8"))

    def run(self, jobs: Sequence[Job]) -> Mapping[str, dict[str, Any]]:
        """What each job found, by its key."""
        left = list({job.key: job for job in jobs if job.key not in self._done}.values())
        for index, (key, found) in enumerate(self._results(left)):
            self._done[key] = found
            print(f"{index + 1}/{len(left)} {key}", file=sys.stderr, flush=True)
            self._save()
        return {job.key: self._done[job.key] for job in jobs}

    def _results(self, jobs: Sequence[Job]) -> Iterable[tuple[str, dict[str, Any]]]:
        if self._num_processes == 1 or len(jobs) < 2:
            yield from map(_run, jobs)
            return
        # Not forked: threads of a library that was imported here would be missing there.
        with multiprocessing.get_context("spawn").Pool(self._num_processes) as pool:
            yield from pool.imap_unordered(_run, jobs)

    def _save(self) -> None:
        """At once or not at all: a run may be broken off."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(self._done, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(self._path)


def _run(job: Job) -> tuple[str, dict[str, Any]]:
    return job.key, job.run()
