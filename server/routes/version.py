"""GET /version."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from server.openapi import ERRORS
from server.service import Service


class Version(BaseModel):
    version: str


def version_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/version", responses=ERRORS)
    async def get_version() -> Version:
        """Which Headrace this is."""
        return Version(version=service.version)

    return router
