"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter

from server.completion_endpoint import CompletionEndpoint
from server.openapi import ERRORS, event_stream, reads_body
from server.protocol.completions import Completion, CompletionRequest
from server.routes.generation import GenerationResponse
from server.service import Service


def completion_routes(service: Service) -> APIRouter:
    router = APIRouter()
    endpoint = CompletionEndpoint()

    @router.post(
        "/v1/completions",
        openapi_extra=reads_body(CompletionRequest),
        responses={200: {"model": Completion, "content": event_stream(Completion)}, **ERRORS},
    )
    async def create_completion() -> GenerationResponse:
        """Continue one prompt or several, or score them (`echo`, `logprobs`, `max_tokens` 0)."""
        return GenerationResponse(service, endpoint)

    return router
