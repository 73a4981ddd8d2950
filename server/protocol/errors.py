"""The one shape of every error: OpenAI's nested object, its four keys always present."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorObject(BaseModel):
    """What went wrong. `code` is a string, never an HTTP status."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Body of a response that is not 2xx, and of the event that ends a broken stream."""

    error: ErrorObject
