"""uvicorn's HTTP/1.1 protocol with bounds on the head of a request, which uvicorn's fast parser does not have."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import ApiError

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; up to one read from the socket (256 KiB) more may be looked at."""
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 30.0
"""Within which the head must be complete, so that a client that drips bytes holds no connection for ever."""


class HeadTooLarge(httptools.HttpParserError):
    """Raised from the parser's callbacks."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Invariant: the head timer runs exactly while the head of a request is incomplete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_head_open = True
        self._num_head_bytes = 0
        self._num_headers = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_head_open:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES and not self._head_ends_in(data):
                self._refuse()
                return
        super().data_received(data)

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
        self._is_head_open = False
        self._stop_head_timer()
        super().on_headers_complete()

    def _refuse(self) -> None:
        error = ApiError(
            431,
            f"the request line and headers are larger than {MAX_HEAD_BYTES} bytes: send less",
            kind="invalid_request_error",
            code="headers_too_large",
        )
        body = error.encoded_body()
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
