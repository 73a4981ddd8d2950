"""How long this process waited for a processor that others held: whether a measurement was disturbed."""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


def run_delay_s() -> float | None:
    """Seconds that all threads of the process were ready to run and did not, since each began; None: unknown here.

    Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`.
    """
    total_ns, is_known = 0, False
    for task in _TASKS.glob("*/schedstat"):
        try:
            total_ns += int(task.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or the kernel keeps no such figures
        is_known = True
    return total_ns / 1e9 if is_known else None
