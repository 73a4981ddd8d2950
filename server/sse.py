"""Framing of server-sent events as OpenAI's clients read them: one `data:` line of JSON per event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from server.errors import ApiError

DONE = b"data: [DONE]\n\n"
"""Ends every stream, once, also one that failed."""
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies of the nginx family would collect the events
}
_ENCODER = msgspec.json.Encoder()


def event(data: Any) -> bytes:
    """One event. JSON has no raw line break, so the framing cannot be broken from inside."""
    return b"data: " + _ENCODER.encode(data) + b"\n\n"


def events(chunks: Iterable[Any]) -> bytes:
    """Several events for one write to the socket."""
    return b"".join(event(chunk) for chunk in chunks)


def error_event(error: ApiError) -> bytes:
    """An error after the headers were sent: the client raises it from the stream."""
    return event(error.body())
