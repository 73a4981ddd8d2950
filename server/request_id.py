"""The id that a request carries through logs, headers and back to the client.

A client's own `x-request-id` is echoed if it is short and plain; it names nothing inside: two requests may carry the
same one. The id inside the server is always ours.
"""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CHARS = 128
SCOPE_KEY = "headrace.request_id"
_ALLOWED = re.compile(rb"[A-Za-z0-9_.:-]{1,%d}" % MAX_CHARS)


def accept_request_id(values: list[bytes]) -> str | None:
    """The client's id where it gave exactly one that is short and plain; None: it is not used."""
    if len(values) == 1 and _ALLOWED.fullmatch(values[0]):
        return values[0].decode("ascii")
    return None


def make_request_id() -> str:
    """A new id, unique over all servers."""
    return f"req-{uuid.uuid4().hex}"


def request_id_of(scope: Scope) -> str:
    """The id that the response of this request carries."""
    return str(scope[SCOPE_KEY])


class RequestId:
    """ASGI middleware: every response, whatever made it, has `x-request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        request_id = accept_request_id(given) or make_request_id()
        scope[SCOPE_KEY] = request_id
        header = (b"x-request-id", request_id.encode("ascii"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, send_with_id)
