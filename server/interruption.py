"""Ending a request from outside its own task: the client left, or the server must end.

The block that is guarded runs in the request's own task, so that nothing is paid per token; an interruption cancels
that task and comes out of the block as its cause. This is how `asyncio.timeout` works.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from starlette.types import Receive


class Interrupted(Exception):
    """A request was ended from outside; the subclass says why."""


class ClientLeft(Interrupted):
    """The client closed the connection: there is nobody to answer."""


class ServerEnds(Interrupted):
    """The drain's time is over and the request still runs."""


class Interruption:
    """Guards a block, once: `interrupt` ends it from outside, and so does the client's disconnect.

    Enter it when the body was read: it then owns `receive`.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._cause: Interrupted | None = None
        self._is_open = False
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._num_cancelling = 0

    async def __aenter__(self) -> Interruption:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._is_open, self._num_cancelling = task, True, task.cancelling()
        self._watcher = asyncio.create_task(self._watch_client())
        return self

    def interrupt(self, cause: Interrupted) -> None:
        """End the block with `cause`; later causes, and those after the block, change nothing."""
        if self._is_open and self._cause is None:
            assert self._task is not None
            self._cause = cause
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None and self._watcher is not None
        self._is_open = False
        self._watcher.cancel()
        if self._cause is None:
            return
        if kind is not asyncio.CancelledError:
            # The block ended by itself in the same moment: its cancellation is still to come. Take it here.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if self._task.uncancel() <= self._num_cancelling and kind is asyncio.CancelledError:
            raise self._cause from error

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientLeft())
