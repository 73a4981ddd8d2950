"""How late the event loop runs: the time by which a blocking call, anywhere in it, delays every client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.05
"""Between two measurements: a stall of at least this length is seen by at least one."""


async def watch_loop_lag(observe: Callable[[float], None], interval_s: float = INTERVAL_S) -> None:
    """Tell `observe` the loop's lag in seconds, once each `interval_s`, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        observe(max(loop.time() - due_s, 0.0))
