"""A server that does nothing but stream: each request gets a token at an exact pace, as an OpenAI chat.

It is the other side of `benchmarks.load_client`: a process of its own, so that its work is not the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os

_EVENT = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "stream",
    "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}],
}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


_TOKEN = _chunk(_event(_EVENT))


class _Stream(asyncio.Protocol):
    """One connection: reads a request, then sends a token every `gap_s`."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._received = b""
        self._left = 0
        self._num_tokens = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or self._timer is not None:
            return
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if lengths and len(body) < int(lengths[0].split(b":")[1]):
            return
        if head.startswith(b"POST /v1/chat/completions"):
            self._begin(json.loads(body)["max_tokens"])
        else:
            self._answer(head.split(b" ")[1])

    def _answer(self, path: bytes) -> None:
        assert self._transport is not None
        status, body = (
            (b"200 OK", b'{"data": [{"id": "stream"}]}') if path == b"/v1/models" else (b"404 Not Found", b"{}")
        )
        self._transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, len(body), body)
        )
        self._transport.close()

    def _begin(self, num_tokens: int) -> None:
        assert self._transport is not None
        self._left = self._num_tokens = num_tokens
        self._transport.write(_HEAD)
        self._due_s = asyncio.get_running_loop().time()
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._left -= 1
        self._due_s += self._gap_s
        if self._left > 0:
            self._transport.write(_TOKEN)
            self._timer = asyncio.get_running_loop().call_at(self._due_s, self._send)
            return
        usage = {"prompt_tokens": 8, "completion_tokens": self._num_tokens}
        last = {**_EVENT, "choices": [{"index": 0, "delta": {"content": " end"}, "finish_reason": "length"}]}
        events = _event(last) + _event({**_EVENT, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"
        self._transport.write(_chunk(events) + b"0\r\n\r\n")
        self._transport.close()


async def _serve(gap_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Stream(gap_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until killed; the port is the first line of standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gap-ms", type=float, default=50.0, help="between the tokens of a stream")
    parser.add_argument("--core", type=int, default=None, help="run on this core alone")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    asyncio.run(_serve(arguments.gap_ms / 1000.0))


if __name__ == "__main__":
    main()
