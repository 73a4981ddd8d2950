"""How many connections this process may have open at once."""

from __future__ import annotations

import resource


def raise_open_files_limit() -> None:
    """To the most that the system lets us have: the usual 1,024 would end a load test at as many open streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
