"""A scripted OpenAI-compatible server on a free port, in a thread: every byte of every answer is the test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

END_OF_HEADERS = b"\r\n\r\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"


@dataclasses.dataclass(frozen=True)
class Received:
    """One request as the server got it."""

    path: str
    headers: dict[str, str]
    body: Any


Reply = Callable[[Received], AsyncGenerator[bytes, None]]
"""Yields the raw bytes of an answer; returning closes the connection."""


def json_reply(status: int, body: object, headers: str = "") -> Reply:
    raw = json.dumps(body).encode()

    async def reply(_: Received) -> AsyncGenerator[bytes, None]:
        yield f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}".encode()
        yield f"content-length: {len(raw)}\r\nconnection: close".encode() + END_OF_HEADERS + raw

    return reply


def stream_reply(events: Sequence[object], headers: str = "", done: bool = True) -> Reply:
    """Server-sent events, all at once."""

    async def reply(_: Received) -> AsyncGenerator[bytes, None]:
        yield SSE_HEAD + headers.encode() + b"\r\n"
        for event in events:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        if done:
            yield b"data: [DONE]\n\n"

    return reply


def chat_events(num_tokens: int, usage: dict[str, Any] | None = None) -> list[object]:
    """A whole chat answer: role, `num_tokens` chunks, finish reason, usage."""
    events: list[object] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"index": 0, "delta": {"content": "word "}}]}] * num_tokens
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    counts = {"prompt_tokens": 40, "completion_tokens": num_tokens, "prompt_tokens_details": {"cached_tokens": 8}}
    return [*events, {"choices": [], "usage": usage or counts}]


class FakeOpenAIServer:
    """Answers `paths` by their reply; anything else is a 404. `received` holds every request."""

    def __init__(self, paths: dict[str, Reply]) -> None:
        self.paths = paths
        self.received: list[Received] = []
        self.url = ""
        self.handlers: set[asyncio.Task[None]] = set()
        """Held here, since the loop itself holds its tasks weakly: one that waits for ever would be collected."""

    def requests_to(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self.handlers.add(task)
        task.add_done_callback(self.handlers.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            self.received.append(request)
            reply = self.paths.get(request.path, json_reply(404, {"error": {"message": "no such path"}}))
            async with contextlib.aclosing(reply(request)) as parts:
                async for part in parts:
                    writer.write(part)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(END_OF_HEADERS)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(first.split(" ")[1], headers, json.loads(raw) if raw else None)


@contextlib.contextmanager
def serve(paths: dict[str, Reply], tls: ssl.SSLContext | None = None) -> Iterator[FakeOpenAIServer]:
    """The server, listening; it is gone, with every open connection, when the block ends. With `tls` it is localhost's
    and speaks HTTPS."""
    server = FakeOpenAIServer(paths)
    loop = asyncio.new_event_loop()
    listening = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls)
        scheme_and_host = "http://127.0.0.1" if tls is None else "https://localhost"
        server.url = f"{scheme_and_host}:{listener.sockets[0].getsockname()[1]}"
        listening.set()
        await stop.wait()
        listener.close()
        for task in server.handlers:
            task.cancel()
        await asyncio.gather(*server.handlers, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="fake OpenAI server")
    thread.start()
    try:
        assert listening.wait(10.0), "the fake server does not listen"
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10.0)
        loop.close()
