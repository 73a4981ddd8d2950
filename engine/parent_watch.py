"""The engine ends when its parent does, also when the parent is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


class ParentWatch:
    """On Linux the kernel kills this process with its parent; elsewhere the loop looks every second."""

    def __init__(self, parent_pid: int) -> None:
        self._parent_pid = parent_pid
        self._is_kernel_watching = sys.platform == "linux" and _ask_kernel()

    @property
    def max_wait_s(self) -> float | None:
        """Longest time between two looks at `is_parent_alive`; None: one look after construction is enough."""
        return None if self._is_kernel_watching else 1.0

    def is_parent_alive(self) -> bool:
        # An orphan is adopted by another process, so a changed parent means that ours is gone.
        return os.getppid() == self._parent_pid


def _ask_kernel() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
