"""The client's HTTP against a socket: every way in which an answer may come, end or break off; and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from loadgen.http_transport import HttpTransport, ServerAddress
from loadgen.transport import CLIENT_LIMIT, TransportError
from tests.certificates import make_certificate

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nX-Two:  b \r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class Kept:
    """Keeps an answer; raises `error` at the first byte where there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.parts: list[bytes] = []
        self.error = error

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def body(self, data: bytes) -> None:
        self.parts.append(data)
        if self.error is not None:
            raise self.error


@contextlib.asynccontextmanager
async def _served(
    handler: Handler, *, keep_alive: bool = False, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
) -> AsyncIterator[HttpTransport]:
    """A transport to a server that answers with `handler`; `tls` is the server's side and the client's."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=None if tls is None else tls[0])
    async with server:
        host = "127.0.0.1" if tls is None else "localhost"
        address = ServerAddress(host, server.sockets[0].getsockname()[1], "/base", tls is not None)
        transport = HttpTransport(address, {"x-one": "a"}, keep_alive=keep_alive, tls=None if tls is None else tls[1])
        async with contextlib.aclosing(transport):
            yield transport


async def _read(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
    return head, await reader.readexactly(length)


def _answer_in(*parts: bytes) -> Handler:
    """Each part is a packet of its own as far as it can be."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return handler


def _post(handler: Handler, kept: Kept) -> None:
    async def post() -> None:
        async with _served(handler) as transport:
            await asyncio.wait_for(transport.post("/v1/x", {}, b"{}", kept), 10.0)

    asyncio.run(post())


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD + b"content-length: 10\r\n\r\n0123456789",),
        tuple(bytes([byte]) for byte in CHUNKED + b"4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n"),
        (HEAD + b"\r\n", b"01234", b"56789"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"content-length: 10\r\n\r\n", b"0123456789"),
        (b"HTTP/1.0 200 OK\r\nX-Two: b\r\nconnection: close\r\n\r\n0123456789",),
    ],
)
def test_an_answer_is_whole_in_whatever_form_and_pieces_it_comes(parts: tuple[bytes, ...]) -> None:
    kept = Kept()
    _post(_answer_in(*parts), kept)
    assert (kept.status, kept.headers["x-two"].strip(), b"".join(kept.parts)) == (200, "b", b"0123456789")


@pytest.mark.parametrize(
    ("parts", "code", "tells"),
    [
        ((), "RemoteProtocolError", "without an answer"),
        ((HEAD,), "RemoteProtocolError", "without an answer"),
        ((HEAD + b"content-length: 10\r\n\r\n01234",), "RemoteProtocolError", "within its answer"),
        ((CHUNKED + b"4\r\n0123\r\n",), "RemoteProtocolError", "within its answer"),
        ((b"SSH-2.0-OpenSSH\r\n",), "RemoteProtocolError", "no HTTP"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(parts: tuple[bytes, ...], code: str, tells: str) -> None:
    with pytest.raises(TransportError, match=tells) as caught:
        _post(_answer_in(*parts), Kept())
    assert caught.value.code == code


def test_what_the_receiver_raises_ends_the_exchange_and_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        writer.write(HEAD + b"\r\nfirst")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        gone.set()

    async def post() -> None:
        async with _served(handler) as transport:
            with pytest.raises(ZeroDivisionError, match="enough"):
                await transport.post("/v1/x", {}, b"{}", Kept(ZeroDivisionError("enough")))
            await asyncio.wait_for(gone.wait(), 10.0)

    asyncio.run(post())


def test_to_be_cancelled_is_to_leave() -> None:
    gone = asyncio.Event()
    asked = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        gone.set()

    async def post() -> None:
        async with _served(handler) as transport:
            task = asyncio.create_task(transport.post("/v1/x", {}, b"{}", Kept()))
            await asyncio.wait_for(asked.wait(), 10.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(gone.wait(), 10.0)

    asyncio.run(post())


def test_a_request_is_sent_whole_with_its_headers() -> None:
    requests: list[tuple[str, bytes]] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await _read(reader))
        writer.write(HEAD + b"content-length: 0\r\n\r\n")

    async def post() -> None:
        async with _served(handler) as transport:
            await transport.post("/v1/x", {"x-slo-class": "batch"}, b"x" * 300_000, Kept())

    asyncio.run(post())
    ((head, body),) = requests
    assert head.startswith("POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert body == b"x" * 300_000
    for line in ("x-one: a", "x-slo-class: batch", "connection: close", "accept-encoding: identity"):
        assert f"\r\n{line}\r\n" in head


@pytest.mark.parametrize(("keep_alive", "num_connections"), [(True, 1), (False, 3)])
def test_connections_are_kept_only_where_that_is_asked_for(keep_alive: bool, num_connections: int) -> None:
    connections: list[object] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while True:
            await _read(reader)
            writer.write(HEAD + b"content-length: 2\r\n\r\nok")

    async def post() -> None:
        async with _served(handler, keep_alive=keep_alive) as transport:
            for _ in range(3):
                kept = Kept()
                await transport.post("/v1/x", {}, b"{}", kept)
                assert kept.parts == [b"ok"]

    asyncio.run(post())
    assert len(connections) == num_connections


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    connections: list[object] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await _read(reader)
        writer.write(HEAD + b"content-length: 2\r\nconnection: close\r\n\r\nok")

    async def post() -> None:
        async with _served(handler, keep_alive=True) as transport:
            for _ in range(2):
                await transport.post("/v1/x", {}, b"{}", Kept())

    asyncio.run(post())
    assert len(connections) == 2


def test_a_server_out_of_reach_is_an_error() -> None:
    async def post() -> None:
        server = await asyncio.start_server(_answer_in(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        transport = HttpTransport(ServerAddress("127.0.0.1", port, "", False), {}, keep_alive=False, tls=None)
        await transport.post("/v1/x", {}, b"{}", Kept())

    with pytest.raises(TransportError, match=r"cannot connect to 127.0.0.1:\d+") as caught:
        asyncio.run(post())
    assert caught.value.code == "ConnectError"


def test_a_limit_of_our_own_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def post() -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse, raising=False)
        transport = HttpTransport(ServerAddress("127.0.0.1", 1, "", False), {}, keep_alive=False, tls=None)
        await transport.post("/v1/x", {}, b"{}", Kept())

    with pytest.raises(TransportError, match="Too many open files") as caught:
        asyncio.run(post())
    assert caught.value.code == CLIENT_LIMIT


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("is_trusted", [True, False])
def test_https_works_and_checks_the_certificate(certificate: tuple[Path, Path], is_trusted: bool) -> None:
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(*certificate)
    of_client = ssl.create_default_context(cafile=certificate[0] if is_trusted else None)
    kept = Kept()

    async def post() -> None:
        handler = _answer_in(HEAD + b"content-length: 2\r\n\r\nok")
        async with _served(handler, tls=(of_server, of_client)) as transport:
            await transport.post("/v1/x", {}, b"{}", kept)

    if is_trusted:
        asyncio.run(post())
        assert kept.parts == [b"ok"]
    else:
        with pytest.raises(TransportError, match="certificate"):
            asyncio.run(post())


def test_the_host_header_names_the_port_where_it_is_not_the_usual_one() -> None:
    assert ServerAddress("h", 80, "", False).authority == "h"
    assert ServerAddress("h", 443, "", True).authority == "h"
    assert ServerAddress("h", 443, "", False).authority == "h:443"
    assert ServerAddress("::1", 8000, "", False).authority == "[::1]:8000"
