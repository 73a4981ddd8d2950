"""HTTP/1.1 on asyncio's protocols: as little as possible between a token on the wire and its timestamp.

httpx spends 150 us and more on each part of an answer; a thousand streams of 20 tokens a second leave 50 us for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import socket
import ssl
from collections.abc import Mapping

import httptools

from loadgen.transport import CLIENT_LIMIT, Receiver, TransportError

_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)
"""Open files, or ports of our own."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is."""

    host: str
    port: int
    path: str
    """Before that of the API, without a slash at its end."""
    is_tls: bool

    @property
    def authority(self) -> str:
        """The value of the host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


class HttpTransport:
    """Posts to one server, whose name is resolved once. Nothing is retried, no redirect is followed."""

    def __init__(
        self, address: ServerAddress, headers: Mapping[str, str], *, keep_alive: bool, tls: ssl.SSLContext | None
    ) -> None:
        """
        Args:
            headers: of every request.
            keep_alive: reuse connections; else each request opens and closes its own.
            tls: needed where the address says so.
        """
        self._address = address
        self._tls = tls if address.is_tls else None
        self._keep_alive = keep_alive
        own = {"host": address.authority, "accept-encoding": "identity", "content-type": "application/json"}
        if not keep_alive:
            own["connection"] = "close"
        self._head = "".join(f"{name}: {value}\r\n" for name, value in {**own, **headers}.items())
        self._hosts: list[str] = []
        self._idle: list[_Connection] = []

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, receiver: Receiver) -> None:
        """See `Transport`."""
        connection = self._take_idle() or await self._connect()
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {self._address.path}{path} HTTP/1.1\r\n{self._head}{more}content-length: {len(body)}\r\n\r\n"
        with contextlib.ExitStack() as on_failure:  # being cancelled is one
            on_failure.callback(connection.abort)
            await connection.exchange(head.encode("latin-1") + body, receiver)
            on_failure.pop_all()
        if self._keep_alive and connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if not self._hosts:
            self._hosts = await self._resolve()
        for host in list(self._hosts):
            try:
                _, connection = await loop.create_connection(
                    _Connection,
                    host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=self._address.host if self._tls is not None else None,
                )
            except (OSError, ssl.SSLError) as error:
                failure = error
                continue
            if self._hosts[0] != host:
                self._hosts = [host, *(other for other in self._hosts if other != host)]
            return connection
        reason = failure.strerror or str(failure) or type(failure).__name__
        code = CLIENT_LIMIT if failure.errno in _OWN_LIMITS else "ConnectError"
        raise TransportError(f"cannot connect to {self._address.authority}: {reason}", code) from failure

    async def _resolve(self) -> list[str]:
        loop = asyncio.get_running_loop()
        host, port = self._address.host, self._address.port
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise TransportError(f"cannot resolve {host}: {error.strerror}", "ConnectError") from error
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._has_head = False
        self._is_keep_alive = False
        self._is_lost = False

    @property
    def is_reusable(self) -> bool:
        """Open, and at the end of an answer after which it stays so."""
        return self._is_keep_alive and not self._is_lost

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """See `Transport.post`."""
        assert self._transport is not None and self._done is None, "one exchange at a time"
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._has_head, self._is_keep_alive = {}, False, False
        self._done = asyncio.get_running_loop().create_future()
        if self._is_lost:
            self._fail(TransportError("the server closed the connection", "RemoteProtocolError"))
        else:
            self._transport.write(request)
        try:
            await self._done
        finally:
            self._done = self._receiver = self._parser = None

    def close(self) -> None:
        """Close it in peace."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Leave at once."""
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._is_lost = True  # bytes that nobody asked for
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserUpgrade:
            self._fail(TransportError("the server asks for another protocol", "RemoteProtocolError"))
        except httptools.HttpParserError as error:
            self._fail(TransportError(f"the answer is no HTTP: {error}", "RemoteProtocolError"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if exc is None and self._has_head and self._ends_with_connection():
            self._succeed()
        else:
            reason = "within its answer" if self._has_head else "without an answer"
            detail = "" if exc is None else f": {exc}"
            code = "RemoteProtocolError" if exc is None else "ReadError"
            self._fail(TransportError(f"the server closed the connection {reason}{detail}", code))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        self._has_head = True
        if self._receiver is not None:
            self._receiver.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.body(data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._has_head:
            self._is_keep_alive = self._parser.should_keep_alive()
            self._succeed()

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self._headers and "chunked" not in self._headers.get("transfer-encoding", "")

    def _succeed(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._receiver = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
