"""GET /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from server.metrics import CONTENT_TYPE
from server.service import Service


def metrics_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def get_metrics() -> Response:
        """Prometheus text format."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return router
