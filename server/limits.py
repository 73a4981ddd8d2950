"""How large a body may be and how long it may take to arrive. Both hold for known lengths and for chunked bodies."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi import send_error
from server.errors import ApiError, invalid_request

LINGER_FACTOR = 16
"""A body of up to so many times the limit is thrown away as it comes, so that its sender gets to read the answer: a
connection that is closed while data is under way is reset. A larger one is not worth it."""


def too_large(max_bytes: int, *, closes: bool) -> ApiError:
    """413. Where it closes the connection, what is left of the body is not read."""
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes, the limit of this server: send less",
        kind="invalid_request_error",
        code="body_too_large",
        headers={"connection": "close"} if closes else None,
    )


def too_slow(timeout_s: float) -> ApiError:
    """408. The connection is closed: more of the body may be under way."""
    return ApiError(
        408,
        f"the body did not arrive within {timeout_s:g} s: send it faster or send less",
        kind="invalid_request_error",
        code="body_timeout",
        headers={"connection": "close"},
    )


class BodyLimits:
    """ASGI middleware: 413 for a body over `max_bytes`, 408 for one that takes longer than `timeout_s`."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if any(not length.isdigit() for length in lengths):
            await send_error(invalid_request("content-length is not a number of bytes", "content-length"), send)
            return
        length = max((int(length[:20]) for length in lengths), default=0)  # twenty digits are more than enough
        if length > self._max_bytes:
            await send_error(too_large(self._max_bytes, closes=length > LINGER_FACTOR * self._max_bytes), send)
            return
        await self._app(scope, _LimitedBody(receive, self._max_bytes, self._timeout_s).receive, send)


class _LimitedBody:
    """`receive` that raises once the body breaks a limit. After the body it waits for the disconnect without one."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._num_bytes = 0
        self._is_complete = False
        self._deadline_s = 0.0

    async def receive(self) -> Message:
        """Raises ApiError: 413 or 408."""
        if self._is_complete:
            return await self._receive()
        if not self._deadline_s:
            self._deadline_s = time.monotonic() + self._timeout_s
        try:
            async with asyncio.timeout(max(self._deadline_s - time.monotonic(), 0.0)):
                message = await self._receive()
        except TimeoutError:
            raise too_slow(self._timeout_s) from None
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._num_bytes > self._max_bytes:
                raise too_large(self._max_bytes, closes=True)
        return message
