"""An event loop whose clock is no clock: where it would wait, time jumps to what is due next, exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time begins at 0. Nothing outside of the loop may be waited for: no sockets, no threads."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_NoWaiting(self))

    def time(self) -> float:
        return self._now_s

    def stand_still(self, pause_s: float) -> None:
        """Nothing happens for so long, as on a machine that is too busy."""
        self._now_s += pause_s

    def jump(self) -> None:
        """To the next timer."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        assert scheduled, "everything waits for something that never comes"
        self._now_s = max(self._now_s, scheduled[0].when())


class _NoWaiting(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0.0:
            self._loop.jump()
        return []


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
