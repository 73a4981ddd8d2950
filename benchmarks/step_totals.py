"""How many steps a load took, and how long they were together: by the server's metrics, or in a simulation.

A step is a whole turn of the engine, with its scheduling and its messages.
"""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.request
from pathlib import Path

from scheduler.output import SchedulerOutput

_TIMEOUT_S = 10.0


@dataclasses.dataclass(slots=True)
class StepTotals:
    """Since some moment."""

    num_steps: int = 0
    seconds: float = 0.0

    def observe(self, output: SchedulerOutput, duration_s: float) -> None:
        """A step of a simulation; one of nothing is none."""
        if output.scheduled:
            self.num_steps += 1
            self.seconds += duration_s

    def since(self, earlier: StepTotals) -> StepTotals:
        return StepTotals(self.num_steps - earlier.num_steps, self.seconds - earlier.seconds)

    def plus(self, other: StepTotals) -> StepTotals:
        return StepTotals(self.num_steps + other.num_steps, self.seconds + other.seconds)

    @property
    def mean_s(self) -> float | None:
        return self.seconds / self.num_steps if self.num_steps else None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> StepTotals:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def parse_step_totals(metrics: str) -> StepTotals:
    """From the text of `/metrics`.

    Raises:
        ValueError: it counts no steps.
    """
    found = {
        name: re.search(rf"^headrace_step_seconds_{name}(?:{{[^}}]*}})? (\S+)$", metrics, re.MULTILINE)
        for name in ("count", "sum")
    }
    count, total = found["count"], found["sum"]
    if count is None or total is None:
        raise ValueError("the metrics have no headrace_step_seconds")
    return StepTotals(round(float(count[1])), float(total[1]))


def fetch_step_totals(url: str) -> StepTotals:
    """Since the server started.

    Raises:
        OSError: it does not answer.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_S) as response:
        return parse_step_totals(response.read().decode("utf-8"))
