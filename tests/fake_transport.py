"""A server without sockets, for the load client on a virtual clock: it answers when a queue of its own says so."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from loadgen.transport import Receiver

EVENT_STREAM = {"content-type": "text/event-stream"}


@dataclasses.dataclass(frozen=True, slots=True)
class Posted:
    """One request as the server got it, and when."""

    time_s: float
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """How one request is served."""

    first_s: float
    """In service, until the first token."""
    gap_s: float = 0.0
    """Between tokens."""
    status: int = 200
    """Another one refuses at once."""


class QueueTransport:
    """One server with a queue, first come, first served: the time that a request is in service is the test's choice.

    The server is busy with a request until its last token. A client that leaves frees it at once.
    """

    def __init__(self, serve: Callable[[Posted], Service], num_servers: int = 1) -> None:
        self._serve = serve
        self._free = asyncio.Semaphore(num_servers)
        self.posted: list[Posted] = []
        self.num_left = 0

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, receiver: Receiver) -> None:
        """See `loadgen.transport.Transport`."""
        posted = Posted(asyncio.get_running_loop().time(), headers, json.loads(body))
        self.posted.append(posted)
        service = self._serve(posted)
        if service.status != 200:
            receiver.head(service.status, {"content-type": "application/json"})
            receiver.body(b'{"error": {"message": "no", "code": "full"}}')
            return
        async with self._free:
            try:
                await self._stream(posted, service, receiver)
            except BaseException:
                self.num_left += 1
                raise

    async def _stream(self, posted: Posted, service: Service, receiver: Receiver) -> None:
        num_tokens = posted.body["max_tokens"]
        await asyncio.sleep(service.first_s)
        receiver.head(200, EVENT_STREAM)
        for index in range(num_tokens):
            if index and service.gap_s:
                await asyncio.sleep(service.gap_s)
            receiver.body(_event({"choices": [{"index": 0, "delta": {"content": f"t{index} "}}]}))
        receiver.body(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
        receiver.body(_event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": num_tokens}}))
        receiver.body(b"data: [DONE]\n\n")


def _event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
