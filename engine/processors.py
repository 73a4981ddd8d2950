"""How many processors this process may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def available_processors(cpu_max: Path = CGROUP_CPU_MAX) -> int:
    """Processors of the affinity mask, capped by the container's CPU quota, at least 1.

    More compute threads than that wait for each other: a quota of 2 processors on a host of 64 would stall every step.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _quota_processors(cpu_max)
    return max(affinity if quota is None else min(affinity, quota), 1)


def compute_threads(wanted: int | None, environment: Mapping[str, str]) -> int:
    """What was asked for; else OMP_NUM_THREADS; else the available processors."""
    if wanted is not None:
        return wanted
    from_environment = environment.get("OMP_NUM_THREADS", "")
    return max(int(from_environment), 1) if from_environment.isdecimal() else available_processors()


def _quota_processors(cpu_max: Path) -> int | None:
    """`cpu.max` holds quota and period in microseconds, or `max`; None: no limit is known."""
    try:
        quota, period = cpu_max.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(int(quota) // int(period), 1)
