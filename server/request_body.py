"""From the bytes of a request to a checked body."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive

from server.errors import ApiError, invalid_request, shortened
from server.interruption import ClientLeft
from server.json_shape import JsonTooComplex, check_json_shape
from server.protocol.common import RequestBody
from server.validation import invalid_body

Body = TypeVar("Body", bound=RequestBody)
MAX_INLINE_BYTES = 64 * 1024
"""A larger body is parsed in a thread, after a look at its shape."""


async def read_raw(receive: Receive) -> bytes:
    """The whole body; its size and its time are limited by `server.limits`.

    Raises:
        ClientLeft: the connection ended first.
    """
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def check_content_type(request: Request) -> None:
    """A body that names another type than JSON is refused: a web page could send it without asking first.

    Raises:
        ApiError: 400.
    """
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise invalid_request(
            f"content-type is {shortened(content_type)!r}, it must be application/json", "content-type"
        )


async def parse_body(model: type[Body], raw: bytes) -> Body:
    """The checked body.

    Raises:
        ApiError: 400, naming each field that is wrong.
    """
    if len(raw) <= MAX_INLINE_BYTES:
        return _parse(model, raw)
    return await asyncio.to_thread(_parse_large, model, raw)


async def read_body(model: type[Body], request: Request) -> Body:
    """Read and check the body of a request.

    Raises:
        ApiError: 400, or 408 and 413 from the limits.
        ClientLeft: the connection ended first.
    """
    check_content_type(request)
    return await parse_body(model, await read_raw(request.receive))


def _parse_large(model: type[Body], raw: bytes) -> Body:
    try:
        check_json_shape(raw)
    except JsonTooComplex as error:
        raise invalid_request(str(error), code="body_too_complex") from error
    return _parse(model, raw)


def _parse(model: type[Body], raw: bytes) -> Body:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise _as_api_error(error) from None


def _as_api_error(error: ValidationError) -> ApiError:
    return invalid_body(error.errors(include_url=False))
