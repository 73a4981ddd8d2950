"""How many threads compute while another one copies."""

from __future__ import annotations

import os
from collections.abc import Mapping

from engine.processors import compute_threads


def offload_threads(wanted: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """Compute threads of a process that streams: what was asked for, else all but the copier's, at least 1.

    A copier that shares a processor with a compute thread makes all the others wait for that one.
    """
    threads = compute_threads(wanted, environment)
    is_chosen = wanted is not None or environment.get("OMP_NUM_THREADS", "").isdecimal()
    return threads if is_chosen else max(1, threads - 1)
