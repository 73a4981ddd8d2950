"""The outermost handler: no exception leaves it, no inside is told, every response is counted."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi import send_error
from server.errors import server_error
from server.interruption import ClientLeft
from server.metrics import Metrics
from server.request_id import request_id_of

logger = logging.getLogger(__name__)


class ResponseGuard:
    """ASGI middleware: an unexpected exception is logged with the request's id and answered with a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def observed_send(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                route = scope.get("route")
                self._metrics.observe_http(getattr(route, "path", None), scope["method"], message["status"])
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        except ClientLeft:
            logger.debug("%s: the client left", request_id_of(scope))
        except Exception:
            logger.exception("%s: unexpected failure", request_id_of(scope))
            if has_started:
                raise  # the server closes the connection: a cut response must not look complete
            await send_error(
                server_error("internal error: the server's log has it under this request id"), observed_send
            )
