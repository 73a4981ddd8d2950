"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter

from server.chat_endpoint import ChatEndpoint
from server.openapi import ERRORS, event_stream, reads_body
from server.protocol.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from server.routes.generation import GenerationResponse
from server.service import Service


def chat_routes(service: Service) -> APIRouter:
    router = APIRouter()
    endpoint = ChatEndpoint()

    @router.post(
        "/v1/chat/completions",
        openapi_extra=reads_body(ChatRequest),
        responses={200: {"model": ChatCompletion, "content": event_stream(ChatCompletionChunk)}, **ERRORS},
    )
    async def create_chat_completion() -> GenerationResponse:
        """Answer a conversation, whole or as a stream of server-sent events."""
        return GenerationResponse(service, endpoint)

    return router
