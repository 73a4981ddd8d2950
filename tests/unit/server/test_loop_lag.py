"""The loop's lag is measured against the time a timer was due."""

from __future__ import annotations

import asyncio
import time

from server.loop_lag import watch_loop_lag


def test_a_call_that_blocks_the_loop_shows_as_lag() -> None:
    async def block_once() -> list[float]:
        lags: list[float] = []
        seen = asyncio.Event()

        def observe(lag_s: float) -> None:
            lags.append(lag_s)
            seen.set()

        task = asyncio.create_task(watch_loop_lag(observe, interval_s=0.001))
        await asyncio.wait_for(seen.wait(), 5.0)
        end_s = time.monotonic() + 0.03
        while time.monotonic() < end_s:
            pass  # the blocking call
        seen.clear()
        await asyncio.wait_for(seen.wait(), 5.0)
        task.cancel()
        return lags

    lags = asyncio.run(block_once())
    assert max(lags) >= 0.025
    assert min(lags) >= 0.0
