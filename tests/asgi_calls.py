"""Calls of an ASGI application without a server: chosen messages in, messages out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Scope


@dataclasses.dataclass(slots=True)
class Answer:
    status: int = 0
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    num_received: int = 0
    """Messages that the application took."""

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def http_scope(path: str = "/v1/models", method: str = "GET", headers: Iterable[tuple[bytes, bytes]] = ()) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


async def call(app: ASGIApp, scope: Scope, messages: Iterable[Message] = ()) -> Answer:
    """Run one request; once `messages` are used up, `receive` waits for ever."""
    answer = Answer()
    pending = iter(messages)

    async def receive() -> Message:
        message = next(pending, None)
        if message is None:
            await asyncio.Event().wait()
        assert message is not None
        answer.num_received += 1
        return message

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert answer.status == 0, "a second response"
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}
