"""uvicorn with our way of ending: a signal starts a drain while the socket still listens; the process ends with 0."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from server.http_protocol import BoundedHttpProtocol
from server.lifecycle import Lifecycle

logger = logging.getLogger(__name__)
KEEP_ALIVE_S = 75
"""Longer than the idle time of the usual balancers (60 s), so that they close idle connections, and none is closed
under a request that is under way."""
CLOSE_TIMEOUT_S = 5
"""After the drain, for connections to close."""


class HttpServer(uvicorn.Server):
    """Serves the application until a signal, or `stop`.

    The first SIGTERM or SIGINT drains: requests are refused with 503 rather than with a closed port, so that a client
    knows to go elsewhere. A second one ends what still runs.
    """

    def __init__(self, app: FastAPI, lifecycle: Lifecycle, drain_timeout_s: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            )
        )
        self._lifecycle = lifecycle
        self._drain_timeout_s = drain_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until the drain is over. `sockets` are bound and listening."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def stop(self) -> None:
        """End without a drain: nothing can be served. Called in the loop."""
        self._lifecycle.is_draining = True
        self._lifecycle.cut_off()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler; what touches the loop is done in the loop."""
        del sig, frame
        is_first = not self._lifecycle.is_draining
        self._lifecycle.is_draining = True
        if self._loop is None or not self.started:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._start_drain if is_first else self.stop)

    def _start_drain(self) -> None:
        self._drain_task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._lifecycle.drain(self._drain_timeout_s)
        self.should_exit = True
