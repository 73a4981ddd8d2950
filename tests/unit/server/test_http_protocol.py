"""What clients may do to a connection: wishes for other protocols, and bytes that are no request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from server import http_protocol
from server.http_protocol import BoundedHttpProtocol
from server.http_server import HttpServer
from tests.http_harness import DEADLINE_S, Harness, harness, listening, until

UPGRADES = (
    "connection: upgrade\r\nupgrade: h2c\r\n",
    "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n",
    "connection: keep-alive, upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    "connection: upgrade\r\nupgrade: TLS/1.0\r\n",
)
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """The way to the server, byte by byte."""

    def __init__(self, url: str, server: HttpServer) -> None:
        self._url = url
        self._server = server
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Streams:
        host, port = self._url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.writers.append(writer)
        return reader, writer

    async def reads_no_more(self) -> None:
        """Wait until the server has given up a connection."""
        connections = cast("set[BoundedHttpProtocol]", self._server.server_state.connections)
        await until(lambda: any(c.reads_no_more for c in connections), "the server to have read it")


def _serve(test: Callable[[Harness, Wire], Awaitable[None]]) -> None:
    async def body() -> None:
        async with harness() as h, asyncio.timeout(DEADLINE_S), listening(h) as (url, server):
            wire = Wire(url, server)
            try:
                await test(h, wire)
            finally:
                for writer in wire.writers:
                    writer.close()

    asyncio.run(body())


def _post(body: dict[str, Any], headers: str = "", path: str = "/v1/completions", *, chunked: bool = False) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}"
    if chunked:
        return f"{head}transfer-encoding: chunked\r\n\r\n{len(raw):x}\r\n".encode() + raw + b"\r\n0\r\n\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def _statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", received)]


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("chunked", [False, True])
def test_request_that_asks_for_another_protocol_is_served_over_this_one(upgrade: str, chunked: bool) -> None:
    """Java's HTTP client asks for h2c by default. Its body must not be taken for a request."""

    async def body(h: Harness, wire: Wire) -> None:
        request = _post({"prompt": "hi", "max_tokens": 3}, upgrade, chunked=chunked)
        for pieces in ([request + LIVEZ], [request, LIVEZ], [bytes([byte]) for byte in request] + [LIVEZ]):
            reader, writer = await wire.connect()
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            received = await reader.read()
            assert _statuses(received) == [200, 200], received
            assert b"text_completion" in received and received.endswith(b'{"status":"alive"}')
        assert len(h.engine.groups) == 3

    _serve(body)


def test_body_of_an_upgrade_is_no_second_request() -> None:
    async def body(h: Harness, wire: Wire) -> None:
        smuggled = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
        reader, writer = await wire.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: upgrade\r\n"
            b"upgrade: h2c\r\ncontent-length: %d\r\n\r\n" % len(smuggled) + smuggled + LIVEZ
        )
        received = await reader.read()
        assert _statuses(received) == [400, 200] and b"1.2.3" not in received

    _serve(body)


def test_requests_before_and_after_an_upgrade_are_answered_in_order() -> None:
    async def body(h: Harness, wire: Wire) -> None:
        reader, writer = await wire.connect()
        plain = b"GET /version HTTP/1.1\r\nhost: x\r\n"
        writer.write(
            plain + b"\r\n" + plain + UPGRADES[0].encode() + b"\r\n" + plain + UPGRADES[2].encode() + b"\r\n" + LIVEZ
        )
        received = await reader.read()
        assert _statuses(received) == [200] * 4 and received.count(b"1.2.3") == 3

    _serve(body)


def test_connect_is_refused_and_nothing_after_it_is_read() -> None:
    async def body(h: Harness, wire: Wire) -> None:
        reader, writer = await wire.connect()
        writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n" + LIVEZ)
        assert _statuses(await reader.read()) == [405]

    _serve(body)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "http"),
        (b"GET / HTTP/1.1\r\nhost x\r\n\r\n", 400, "http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400, "http"),
        (b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400, "http"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (http_protocol.MAX_HEADERS + 1) + b"\r\n", 431, "headers_too_large"),
    ],
)
def test_what_the_parser_refuses_is_told_in_our_form(request_bytes: bytes, status: int, code: str) -> None:
    async def body(h: Harness, wire: Wire) -> None:
        reader, writer = await wire.connect()
        writer.write(request_bytes)
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        assert _statuses(head) == [status]
        assert b"x-request-id: req-" in head and b"content-type: application/json" in head
        assert b"connection: close" in head
        error = json.loads(answer)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", code)

    _serve(body)


@pytest.mark.parametrize(
    "later",
    [
        b"\x00\x01garbage\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * (http_protocol.MAX_HEADERS + 1) + b"\r\n",
        b"GET /livez HTTP/1.1\r\nx: " + b"a" * (http_protocol.MAX_HEAD_BYTES + 300_000),
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_garbage_behind_a_stream_does_not_get_into_it(later: bytes) -> None:
    async def body(h: Harness, wire: Wire) -> None:
        h.engine.script.holds_after = 2
        reader, writer = await wire.connect()
        writer.write(_post({"prompt": "hi", "stream": True}))
        await h.engine.is_holding.wait()
        writer.write(later)
        await writer.drain()
        await wire.reads_no_more()
        h.engine.release()
        received = await reader.read()
        assert _statuses(received) == [200], received
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert h.outcomes() == {"offered": 1, "met": 1}

    _serve(body)


def test_whole_requests_before_the_garbage_are_answered() -> None:
    async def body(h: Harness, wire: Wire) -> None:
        reader, writer = await wire.connect()
        get = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(get + get + b"\x00\x01\r\n\r\n" + get)
        assert _statuses(await reader.read()) == [200, 200]

    _serve(body)


def test_head_that_drips_behind_a_stream_does_not_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.02)

    async def body(h: Harness, wire: Wire) -> None:
        h.engine.script.holds_after = 2
        reader, writer = await wire.connect()
        writer.write(_post({"prompt": "hi", "stream": True}))
        await h.engine.is_holding.wait()
        writer.write(b"GET /livez HTT")
        await wire.reads_no_more()
        h.engine.release()
        assert (await reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    _serve(body)
