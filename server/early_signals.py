"""SIGTERM and SIGINT while the server is being put together, before the HTTP server takes them over."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


class EarlySignals:
    """While it is open a signal cancels `task`, if that still runs, and is remembered.

    Handlers of the interpreter and not of the loop: they run at once, also while the loop is busy, so that no signal is
    lost between this and the next handler.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.has_come = False
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in _NUMBERS}
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.has_come = True
        self._loop.call_soon_threadsafe(self._task.cancel)
