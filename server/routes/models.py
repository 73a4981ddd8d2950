"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter

from server.openapi import ERRORS
from server.protocol.models import ModelCard, ModelList
from server.service import Service


def model_routes(service: Service) -> APIRouter:
    router = APIRouter()

    def card() -> ModelCard:
        return ModelCard(
            id=service.model_id, created=service.created_s, max_model_len=service.last_ready().max_model_len
        )

    @router.get("/v1/models", responses=ERRORS)
    async def list_models() -> ModelList:
        """The one model that is served; 503 until it is loaded."""
        return ModelList(data=[card()])

    @router.get("/v1/models/{model_id:path}", responses=ERRORS)
    async def retrieve_model(model_id: str) -> ModelCard:
        """The served model; its id may have slashes."""
        service.check_model(model_id)
        return card()

    return router
