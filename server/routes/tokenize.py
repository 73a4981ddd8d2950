"""POST /tokenize and /detokenize, in the shapes of vLLM. They need no engine but for the model's length."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.messages import Ready
from server.errors import invalid_request
from server.openapi import ERRORS, reads_body
from server.protocol.tokenize import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from server.request_body import read_body
from server.service import Service


def tokenize_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/tokenize", openapi_extra=reads_body(TokenizeRequest), responses={200: {"model": TokenizeAnswer}, **ERRORS}
    )
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of a conversation as the model would be given it."""
        body = await read_body(TokenizeRequest, request)
        service.check_model(body.model)
        ready = service.last_ready()
        ids = await _encode(service, body)
        strings = [service.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
        return _json(TokenizeAnswer(count=len(ids), max_model_len=ready.max_model_len, tokens=ids, token_strs=strings))

    @router.post(
        "/detokenize",
        openapi_extra=reads_body(DetokenizeRequest),
        responses={200: {"model": DetokenizeAnswer}, **ERRORS},
    )
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        body = await read_body(DetokenizeRequest, request)
        service.check_model(body.model)
        _check_ids(body.tokens, service.last_ready())
        return _json(DetokenizeAnswer(prompt=await service.text.decode(body.tokens, skip_special_tokens=False)))

    return router


async def _encode(service: Service, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        return await service.text.encode(
            body.prompt, add_special_tokens=body.add_special_tokens is not False, parse_special=True
        )
    if service.text.chat_template is None:
        raise invalid_request("the model has no chat template: send a prompt", "messages")
    return await service.text.render(
        [message.for_template() for message in body.messages or ()],
        add_generation_prompt=body.generates,
        continue_final_message=body.continues,
        kwargs=body.chat_template_kwargs or {},
    )


def _check_ids(ids: list[int], ready: Ready) -> None:
    highest = max(ids, default=0)
    if highest >= ready.vocab_size:
        raise invalid_request(f"tokens has {highest}, it must be a token id in 0..{ready.vocab_size - 1}", "tokens")


def _json(answer: TokenizeAnswer | DetokenizeAnswer) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
