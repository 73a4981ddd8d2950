"""Small answers written straight to ASGI, for middlewares that have no framework around them."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Send

from server.errors import ApiError


def encode_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers in ASGI's form. Values are made by us and are latin-1."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def send_response(status: int, headers: Mapping[str, str], body: bytes, send: Send) -> None:
    """A whole response."""
    encoded = encode_headers({**headers, "content-length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


async def send_error(error: ApiError, send: Send) -> None:
    """An error in OpenAI's shape."""
    await send_response(error.status, error.headers(), error.encoded_body(), send)
