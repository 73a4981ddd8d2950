"""How many threads compute while another one copies."""

from __future__ import annotations

import os
from collections.abc import Mapping

from engine.processors import available_processors, fixed_threads


def offload_threads(wanted: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """Compute threads of a process that streams: what was asked for, else all but the copier's, at least 1.

    A copier that shares a processor with a compute thread makes all the others wait for that one.
    """
    fixed = fixed_threads(wanted, environment)
    return max(1, available_processors().compute_threads - 1) if fixed is None else fixed
