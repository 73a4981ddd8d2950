"""POST /tokenize and /detokenize, in the shapes of vLLM. They need no engine but for the model's length."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.messages import Ready
from server.errors import JSON_MEDIA_TYPE, invalid_request
from server.openapi import ERRORS, reads_body
from server.protocol.tokenize import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from server.request_body import read_body
from server.service import Service
from server.tokenizer import Tokenizer


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
        tokenizer = service.tokenizer if body.return_token_strs else None
        raw = await asyncio.to_thread(
            _tokenize_answer, ids, ready.max_model_len, tokenizer
        )  # a million tokens take long
        return Response(raw, media_type=JSON_MEDIA_TYPE)

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
        answer = DetokenizeAnswer(prompt=await service.text.decode(body.tokens, skip_special_tokens=False))
        return Response(answer.model_dump_json(), media_type=JSON_MEDIA_TYPE)

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


def _tokenize_answer(ids: list[int], max_model_len: int, tokenizer: Tokenizer | None) -> bytes:
    """A `TokenizeAnswer` as JSON; with the tokens' texts where a tokenizer is given."""
    strings = None if tokenizer is None else [tokenizer.token_text(token_id) for token_id in ids]
    return msgspec.json.encode(
        {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": strings}
    )
