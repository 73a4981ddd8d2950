"""The ASGI application: the table of routes, what stands before them, and what runs beside them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request

from engine.errors import EngineError
from server.auth import ALWAYS_OPEN, ApiKeys, Auth
from server.chat import TemplateError
from server.config import ServerConfig
from server.errors import ApiError, api_error, invalid_request, shortened
from server.lifecycle import DrainGate
from server.limits import BodyLimits
from server.loop_lag import watch_loop_lag
from server.openapi import DocumentedApi
from server.protocol.chat import ChatCompletionChunk, ChatRequest
from server.protocol.completions import CompletionRequest
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from server.request_id import RequestId
from server.response_guard import ResponseGuard
from server.routes.chat import chat_routes
from server.routes.completions import completion_routes
from server.routes.health import health_routes
from server.routes.metrics import metrics_routes
from server.routes.models import model_routes
from server.routes.slo import slo_routes
from server.routes.tokenize import tokenize_routes
from server.routes.version import version_routes
from server.service import Service
from server.text_worker import TextOverloaded, TextTimeout
from server.validation import invalid_body

PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id:path}", "/v1/slo"),
    *("/tokenize", "/detokenize", "/health", "/livez", "/readyz", "/metrics", "/version", "/openapi.json"),
)
"""Templates of all routes: the values that the metrics' label `handler` may have."""
_ROUTERS = (
    *(chat_routes, completion_routes, model_routes, slo_routes, tokenize_routes, health_routes),
    *(metrics_routes, version_routes),
)
_BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, ChatCompletionChunk)
_OUR_ERRORS = (ApiError, EngineError, TemplateError, TextOverloaded, TextTimeout)


def create_app(service: Service) -> FastAPI:
    """The application; its lifespan watches the event loop. The engine is started and stopped by whoever made it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if service.config.serve_openapi:
            await asyncio.to_thread(app.openapi)  # made now, since it would hold up the first streams later
        lag_watch = asyncio.create_task(watch_loop_lag(service.metrics.observe_loop_lag))
        try:
            yield
        finally:
            lag_watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await lag_watch

    app = DocumentedApi(
        _BODIES,
        title="Headrace",
        version=service.version,
        description="OpenAI-compatible inference with latency classes.",
        lifespan=lifespan,
        middleware=_middlewares(service),
        exception_handlers=_exception_handlers(),
        openapi_url="/openapi.json" if service.config.serve_openapi else None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for routes in _ROUTERS:
        app.router.routes += routes(service).routes  # one flat table, which a test walks
    return app


def _middlewares(service: Service) -> list[Middleware]:
    """From the outermost to the innermost."""
    config = service.config
    open_paths = ALWAYS_OPEN | ({"/metrics"} if config.metrics_without_key else frozenset())
    chain = [Middleware(RequestId), Middleware(ResponseGuard, metrics=service.metrics)]
    if config.cors_origins:
        chain.append(_cors(config))
    return [
        *chain,
        Middleware(Auth, keys=ApiKeys(config.api_keys), open_paths=open_paths),
        Middleware(BodyLimits, max_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s),
        Middleware(DrainGate, lifecycle=service.lifecycle),
    ]


def _cors(config: ServerConfig) -> Middleware:
    """Outside of the keys, since a browser's preflight carries none."""
    return Middleware(
        CORSMiddleware,
        allow_origins=list(config.cors_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["*"],
    )


def _exception_handlers() -> dict[Any, Any]:
    handlers: dict[Any, Any] = dict.fromkeys(_OUR_ERRORS, _answer_ours)
    handlers[HTTPException] = _answer_http
    handlers[RequestValidationError] = _answer_validation
    return handlers


def _response(error: ApiError) -> Response:
    return Response(error.encoded_body(), error.status, headers=error.headers())


async def _answer_ours(_: Request, error: Exception) -> Response:
    answer = api_error(error)
    assert answer is not None, f"{error!r} has no answer"
    return _response(answer)


async def _answer_http(request: Request, error: HTTPException) -> Response:
    """The framework's own: an unknown URL, or a method that it does not take."""
    url = shortened(f"{request.method} {request.url.path}")
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return _response(ApiError(404, f"Unknown URL ({url})", kind="not_found_error", code="unknown_url"))
    if error.status_code == 405:
        allowed = headers.get("allow", "others")
        message = f"Not allowed ({url}): this URL takes {allowed}"
        return _response(
            ApiError(405, message, kind="invalid_request_error", code="method_not_allowed", headers=headers)
        )
    return _response(
        ApiError(error.status_code, shortened(str(error.detail)), kind="invalid_request_error", headers=headers)
    )


async def _answer_validation(_: Request, error: RequestValidationError) -> Response:
    details = error.errors()
    return _response(invalid_body(details) if details else invalid_request("the request is invalid"))
