"""GET /livez, /readyz and /health, which is /readyz. Open without a key.

Alive: the process answers. Ready: a model made a real token, its engine makes progress, and no drain has begun.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from engine.client import EngineState
from server.service import Service

STATUS_HEADERS = {"cache-control": "no-store"}


def health_routes(service: Service) -> APIRouter:
    router = APIRouter()

    async def livez() -> JSONResponse:
        """The process runs and answers; says nothing of the engine."""
        return JSONResponse({"status": "alive"}, headers=STATUS_HEADERS)

    async def readyz() -> JSONResponse:
        """200 where requests are served, else 503 with the state and, at the start, the progress."""
        is_ready, body = readiness(service)
        return JSONResponse(body, 200 if is_ready else 503, headers=STATUS_HEADERS)

    not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready; `status` says why."}}
    router.add_api_route("/livez", livez, methods=["GET"])
    router.add_api_route("/readyz", readyz, methods=["GET"], responses=not_ready)
    router.add_api_route("/health", readyz, methods=["GET"], responses=not_ready, name="health")
    for path, endpoint in (("/livez", livez), ("/readyz", readyz), ("/health", readyz)):
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router


def readiness(service: Service) -> tuple[bool, dict[str, Any]]:
    """Whether requests are served, and the body that says so."""
    if service.lifecycle.is_draining:
        return False, {"status": "draining", "live_requests": service.lifecycle.num_live}
    state, progress = service.engine.state, service.engine.progress
    if state is EngineState.READY:
        return True, {"status": "ready"}
    body: dict[str, Any] = {"status": state.value}
    if progress is not None:
        body["progress"] = {"phase": progress.phase, "fraction": progress.fraction}
    return False, body
