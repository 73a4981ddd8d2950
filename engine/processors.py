"""How many processors this process may use, and how many threads compute on them at most.

Sources: sched_getaffinity(2); the kernel's Documentation/admin-guide/cgroup-v2.rst (cpu.max),
scheduler/sched-bwc.rst (cpu.cfs_quota_us of version 1) and ABI/stable/sysfs-devices-system-cpu (topology).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Processors:
    """What the system lets this process use."""

    num_logical: int
    """Of the affinity mask, which is where a cpuset shows too."""
    num_cores: int
    """Physical cores among them: hyper-threads of one core are one."""
    quota: float | None
    """Processors' worth of time that the control groups allow; None: no limit is known."""

    @property
    def compute_threads(self) -> int:
        """One for each core, within the quota rounded down, at least 1.

        Threads that multiply without pause gain nothing from a second hyper-thread. A quota is given anew every 100 ms:
        what uses it up early stands still for the rest, the HTTP process of the same group included. So a fraction goes
        to what does not compute: of 1.5 processors, one computes.
        """
        return max(1, self.num_cores if self.quota is None else min(self.num_cores, int(self.quota)))


def available_processors(root: Path = Path("/")) -> Processors:
    """Those of this process.

    Args:
        root: where `proc` and `sys` are.
    """
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core(root, number) for number in numbers}
    return Processors(len(numbers), len(cores), min(_quotas(root), default=None))


def fixed_threads(wanted: int | None, environment: Mapping[str, str]) -> int | None:
    """Compute threads that somebody has chosen: --threads, else OMP_NUM_THREADS; None: nobody has."""
    if wanted is not None:
        return wanted
    from_environment = environment.get("OMP_NUM_THREADS", "")
    return max(int(from_environment), 1) if from_environment.isdecimal() else None


def _core(root: Path, number: int) -> str:
    """The hyper-threads of a processor's core, such as "0,32"; the processor itself where the system does not say."""
    topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
    siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
    return siblings or str(number)


def _quotas(root: Path) -> Iterator[float]:
    """Of each control group that this process is in, and of those around it: the smallest one binds."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mount = "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            mount = "sys/fs/cgroup/cpu"
        else:
            continue
        inner = Path(group.lstrip("/"))
        for folder in (root / mount / part for part in (inner, *inner.parents)):
            quota, period = _limit(folder)
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                yield int(quota) / int(period)


def _limit(folder: Path) -> tuple[str, str]:
    """Quota and period in microseconds as a group says them; a quota of "max" or "-1" is none."""
    if cpu_max := _text(folder / "cpu.max").split():
        return cpu_max[0], cpu_max[-1]
    return _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
