"""uvicorn's HTTP/1.1 protocol with what its fast parser lacks: bounds on the head of a request, requests that ask for
another protocol served over this one, and errors of the parser told in our form, never in the midst of an answer."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.errors import ApiError, invalid_request
from server.request_id import make_request_id

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; up to one read from the socket (256 KiB) more may be looked at."""
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 30.0
"""Within which the head must be complete, so that a client that drips bytes holds no connection for ever."""


class HeadTooLarge(httptools.HttpParserError):
    """Raised from the parser's callbacks."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Invariants: the head timer runs exactly while the head of a request is incomplete; nothing is
    written between the first and the last byte of an answer but that answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_head_open = True
        self._num_head_bytes = 0
        self._num_headers = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        """The request that was handed to the application last; later ones wait in `pipeline`."""
        self.reads_no_more = False
        """What the client sends from now on is not looked at: the connection closes after the answers that are due."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.reads_no_more or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._is_head_open:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES and not self._head_ends_in(data):
                self._end(_head_too_large(f"larger than {MAX_HEAD_BYTES} bytes"))
                return
        try:
            self._feed(data)
        except httptools.HttpParserError:
            too_many = self._num_headers > MAX_HEADERS
            self._end(_head_too_large(f"of more than {MAX_HEADERS} headers") if too_many else _malformed())

    def _feed(self, data: bytes) -> None:
        """Parse; a request that asks for an upgrade is served as it is, which the client must expect.

        The parser takes such a request for the end of HTTP and leaves its body alone. A new one is given the same head
        without the wish, and then the rest.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            if self.parser.get_method() == b"CONNECT":
                self._end(_no_proxy())
                return
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the base class does
            self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        """Of the request whose head was parsed last, with the framing of its body."""
        start = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [b"%s: %s\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"".join([start, *kept, b"\r\n"])

    def _head_ends_in(self, data: bytes) -> bool:
        """A large body may come with the end of a small head."""
        end = data.find(b"\r\n\r\n")
        return end >= 0 and self._num_head_bytes - len(data) + end <= MAX_HEAD_BYTES

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_head_open:  # a later request on this connection
            self._is_head_open, self._num_head_bytes = True, 0
            self._start_head_timer()
        self._num_headers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers > MAX_HEADERS:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is parsed once more
        self._is_head_open = False
        self._stop_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _end(self, error: ApiError | None) -> None:
        """Read nothing more. The answers that are due are still given, and nothing after them; where none is due or the
        request that is wrong is the one in hand, `error` is the last answer."""
        self.reads_no_more = True
        self._stop_head_timer()
        if self.cycle is not None and self.cycle.more_body and not self._is_head_open:
            self._drop_unfinished_request()
        if self._running is not None and not self._running.response_complete:
            last = self.pipeline[0][0] if self.pipeline else self._running
            last.keep_alive = False
            return
        if not self.transport.is_closing():
            if error is not None:
                self.transport.write(_encode_response(error))
            self.transport.close()

    def _drop_unfinished_request(self) -> None:
        """The request in hand is wrong in its body: it gets no answer of the application unless it has begun one."""
        if self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
        elif self.cycle.response_started:
            self.transport.close()  # the body of its answer is cut, which the client sees
        else:
            self._running = None
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end, None)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _head_too_large(how: str) -> ApiError:
    return ApiError(
        431,
        f"the request line and headers are {how}: send less",
        kind="invalid_request_error",
        code="headers_too_large",
    )


def _malformed() -> ApiError:
    return invalid_request(
        "this is no HTTP/1.1 request: its head or the framing of its body is malformed", None, "http"
    )


def _no_proxy() -> ApiError:
    return ApiError(
        405, "CONNECT is not allowed: this is no proxy", kind="invalid_request_error", code="method_not_allowed"
    )


def _encode_response(error: ApiError) -> bytes:
    """A whole response; the connection closes after it."""
    body = error.encoded_body()
    headers = {
        **error.headers(),
        "content-length": str(len(body)),
        "x-request-id": make_request_id(),
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
