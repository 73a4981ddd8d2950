"""How much memory this process may lock. Source: setrlimit(2), RLIMIT_MEMLOCK; capabilities(7), CAP_IPC_LOCK."""

from __future__ import annotations

import resource
from pathlib import Path

_CAP_IPC_LOCK = 14


def lockable_bytes(root: Path = Path("/")) -> int | None:
    """The limit in force; None: there is none, or this process is above it.

    Args:
        root: where `proc` is.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or _may_lock_all(root) else soft


def _may_lock_all(root: Path) -> bool:
    try:
        lines = (root / "proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)
