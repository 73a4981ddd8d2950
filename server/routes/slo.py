"""GET /v1/slo."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.openapi import ERRORS
from server.service import Service
from server.slo_report import build_slo_report


def slo_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/slo", responses=ERRORS)
    async def get_slo() -> dict[str, Any]:
        """Policy and admission in force; each class: targets, floor, open or closed, queue, and promises kept."""
        return build_slo_report(service.classes, service.metrics, service.scheduler_policy)

    return router
