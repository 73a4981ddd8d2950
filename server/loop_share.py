"""Work on the event loop in pieces: a request that has had its share of time lets the others in."""

from __future__ import annotations

import asyncio
import time

SHARE_S = 0.005
"""Time that one request may hold the loop where its work can be divided."""


class LoopShare:
    """Call `pause` between pieces of work; it costs a look at the clock unless the share is used up."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    def begin(self) -> None:
        """The task has just waited for something: its share is whole."""
        self._since_s = time.monotonic()

    async def pause(self) -> None:
        """Let the other tasks run if the share is used up."""
        if time.monotonic() - self._since_s >= SHARE_S:
            await asyncio.sleep(0)
            self._since_s = time.monotonic()
