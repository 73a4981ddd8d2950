"""Whether this process takes requests, and how the last ones end.

On SIGTERM: `/readyz` says 503 at once, new requests get 503 and `connection: close`, running ones may finish within
`drain_timeout_s`; what is left then ends with an error. A balancer that watches readiness loses no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from server.asgi import send_error
from server.errors import ApiError, draining
from server.interruption import Interruption, ServerEnds

logger = logging.getLogger(__name__)
OPEN_WHILE_DRAINING = frozenset({"/health", "/livez", "/readyz", "/metrics"})
END_GRACE_S = 2.0
"""Time to send an error to what was cut off."""
DISCARD_TIMEOUT_S = 1.0


class Lifecycle:
    """Counts live generations; `drain` ends them.

    Invariant: `num_live` = blocks of `track` that are open.
    """

    def __init__(self) -> None:
        self._live: set[Interruption] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_draining = False
        """New requests are refused. Set by `drain`, or before it by a signal handler."""

    @property
    def num_live(self) -> int:
        return len(self._live)

    @contextmanager
    def track(self, interruption: Interruption) -> Iterator[None]:
        """A generation is live while the block is open."""
        self._live.add(interruption)
        self._is_idle.clear()
        try:
            yield
        finally:
            self._live.discard(interruption)
            if not self._live:
                self._is_idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, wait for the live ones, and cut off what is left after `timeout_s`."""
        self.is_draining = True
        logger.info("draining: %d requests may finish within %g s", self.num_live, timeout_s)
        if await self._idle_within(timeout_s):
            return
        logger.warning("drain time is over: ending %d requests", self.num_live)
        self.cut_off()
        await self._idle_within(END_GRACE_S)

    def cut_off(self) -> None:
        """End every live generation with an error, now."""
        for interruption in tuple(self._live):
            interruption.interrupt(ServerEnds())

    async def _idle_within(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


class DrainGate:
    """ASGI middleware: refuses what arrives while the server drains, health and metrics apart."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = (
            scope["type"] == "http" and self._lifecycle.is_draining and scope["path"] not in OPEN_WHILE_DRAINING
        )
        if is_refused:
            await _discard_body(receive)
            await send_error(draining(), send)
        else:
            await self._app(scope, receive, send)


async def _discard_body(receive: Receive) -> None:
    """Take what is under way: a connection that is closed before is reset, and the client would not read the answer."""
    with contextlib.suppress(TimeoutError, ApiError):
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            while (await receive()).get("more_body", False):
                pass
