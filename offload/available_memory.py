"""How much memory this process may take: the machine's, or less where a control group bounds it.

Sources: proc(5), /proc/meminfo; the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_V1_UNLIMITED_BYTES = 2**62
"""Version 1 has no word for "no limit": it shows the largest number of pages, in bytes."""


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """What can be had without swapping; None where the system does not say (it is no Linux).

    Args:
        root: where `proc` and `sys` are.
    """
    found = [*_machine(root, "MemAvailable"), *(left for _, left in _groups(root))]
    return max(0, min(found)) if found else None


def total_memory_bytes(root: Path = Path("/")) -> int | None:
    """What this process could have if nothing else ran; None where the system does not say.

    Args:
        root: where `proc` and `sys` are.
    """
    found = [*_machine(root, "MemTotal"), *(limit for limit, _ in _groups(root))]
    return min(found) if found else None


def _machine(root: Path, wanted: str) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if key == wanted and unit == "kB" and number.isdigit():
            yield int(number) * 1024


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and what is left of it, of each control group that this process is in, and of those around it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mount, limit, usage, reclaimable = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage, reclaimable = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        inner = Path(group.lstrip("/"))
        for folder in (root / mount / part for part in (inner, *inner.parents)):
            limit_bytes, used_bytes = _number(folder / limit), _number(folder / usage)
            if limit_bytes is not None and used_bytes is not None and limit_bytes < _V1_UNLIMITED_BYTES:
                yield limit_bytes, limit_bytes - used_bytes + _stat(folder / "memory.stat", reclaimable)


def _stat(path: Path, key: str) -> int:
    """Pages of files count as used and are given back on demand."""
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """None: there is no such file, or it says "max"."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
