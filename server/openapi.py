"""/openapi.json: FastAPI's document, with the bodies that the routes read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from server.protocol.errors import ErrorBody

_REF = "#/components/schemas/{model}"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}},
    }
    for status, text in {
        400: "The request is wrong; `param` says where.",
        401: "No valid API key was given.",
        404: "No such model or URL.",
        408: "The body came too slowly.",
        413: "The body is too large.",
        429: "The class asked for has no room; `retry-after` says when to come back.",
        500: "A failure of the server.",
        503: "The server is full, starting, draining, or its engine is away.",
    }.items()
}
"""Answers that every guarded route may give."""


def reads_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a body of that type by itself."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def event_stream(chunk: type[BaseModel]) -> dict[str, Any]:
    """The content of a 200 that is a stream where the request asks for one; OpenAPI 3.1 has no word for events."""
    return {"text/event-stream": {"x-event-data-schema": {"$ref": _REF.format(model=chunk.__name__)}}}


class DocumentedApi(FastAPI):
    """FastAPI whose document also has the types of `bodies`; made when it is first asked for."""

    def __init__(self, bodies: tuple[type[BaseModel], ...], **options: Any) -> None:
        super().__init__(**options)
        self._bodies = bodies

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            models: tuple[type[BaseModel], ...] = (ErrorBody, *self._bodies)
            inputs: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in models]
            _, definitions = models_json_schema(inputs, ref_template=_REF)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in definitions["$defs"].items():
                schemas.setdefault(name, schema)
        assert self.openapi_schema is not None
        return self.openapi_schema
