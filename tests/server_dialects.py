"""What servers of other makers answer where they differ, as strict as they are (`tests.fake_openai_server`)."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from tests.fake_openai_server import Received, Reply, json_reply, stream_reply

CHAT = "/v1/chat/completions"
_NUM_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """One server. Prompts have a token and a half for each word, and 20 around them."""

    paths: dict[str, Reply]
    options: Mapping[str, Any]
    """Of the bench, which this server needs."""
    max_model_len: int | None
    """As it tells it."""
    calibration: str
    """Where the words per token come from."""


def _num_tokens(body: dict[str, Any]) -> int:
    return 20 + sum(len(message["content"].split()) for message in body["messages"]) * 3 // 2


def _answer_length(body: dict[str, Any]) -> int:
    return next(int(body[field]) for field in _NUM_TOKENS_FIELDS if field in body)


def _usage(body: dict[str, Any], **more: object) -> dict[str, Any]:
    num_output = _answer_length(body)
    return {"prompt_tokens": _num_tokens(body), "completion_tokens": num_output, **more}


def _texts(count: int, **more: object) -> list[dict[str, Any]]:
    return [{"choices": [{"index": 0, "delta": {"content": f"w{i} "}, "finish_reason": None}], **more} for i in range(count)]  # fmt: skip  # noqa: E501


def _end(**more: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], **more}


def _replying(make: Any) -> Reply:
    """A reply made from the request's body."""

    async def reply(request: Received) -> AsyncGenerator[bytes, None]:
        chosen: Reply = make(request.body)
        async for part in chosen(request):
            yield part

    return reply


def _whole_or(stream: Any) -> Any:
    """One answer without a stream, as the calibration asks for it, else `stream`."""

    def make(body: dict[str, Any]) -> Reply:
        return stream(body) if body.get("stream") else json_reply(200, {"usage": _usage(body)})

    return make


def vllm() -> Dialect:
    """Usage at the end where it is asked for; errors have a number as their code; `/tokenize` knows chats."""

    def chat(body: dict[str, Any]) -> Reply:
        if _num_tokens(body) > 4096:
            error = {"message": "longer than the model's 4096", "type": "BadRequestError", "code": 400}
            return json_reply(400, {"error": error})
        events = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            *_texts(_answer_length(body)),
        ]
        return stream_reply([*events, _end(), {"choices": [], "usage": _usage(body, prompt_tokens_details=None)}])

    return Dialect(
        {
            "/v1/models": json_reply(200, {"data": [{"id": "v", "object": "model", "max_model_len": 4096}]}),
            "/tokenize": _replying(lambda body: json_reply(200, {"count": _num_tokens(body), "max_model_len": 4096})),
            CHAT: _replying(chat),
        },
        {},
        4096,
        "tokenize",
    )


def sglang() -> Dialect:
    """`usage: null` in every chunk; no `/tokenize` by default in older ones; its probe answers without a stream."""

    def chat(body: dict[str, Any]) -> Reply:
        events = [*_texts(_answer_length(body), usage=None), _end(usage=None, matched_stop=None)]
        return stream_reply([*events, {"choices": [], "usage": _usage(body)}])

    return Dialect(
        {
            "/v1/models": json_reply(200, {"data": [{"id": "s", "max_model_len": 2048}]}),
            CHAT: _replying(_whole_or(chat)),
        },
        {},
        2048,
        "usage",
    )


def llama_cpp() -> Dialect:
    """No length beside the model but at `/props`; tokens of a text without their number; timings instead of usage."""

    def chat(body: dict[str, Any]) -> Reply:
        num_output = _answer_length(body)
        timings = {"cache_n": 4, "prompt_n": _num_tokens(body) - 4, "predicted_n": num_output}
        return stream_reply([*_texts(num_output), _end(timings=timings)])

    return Dialect(
        {
            "/v1/models": json_reply(200, {"object": "list", "data": [{"id": "l", "meta": {"n_ctx_train": 131072}}]}),
            "/props": json_reply(200, {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 4}),
            "/tokenize": _replying(
                lambda body: json_reply(200, {"tokens": [1] * (len(body.get("content", "").split()) * 3 // 2)})
            ),
            CHAT: _replying(_whole_or(chat)),
        },
        {"stream_usage": False},
        1024,
        "tokenize",
    )


def openai() -> Dialect:
    """Refuses what is not in the API: `ignore_eos`, and `max_tokens` for its newer models. Tells no length."""

    def chat(body: dict[str, Any]) -> Reply:
        unknown = set(body) & {"ignore_eos", "max_tokens"}
        if unknown:
            error = {
                "message": f"Unsupported parameter: {unknown}",
                "type": "invalid_request_error",
                "code": "unsupported",
            }
            return json_reply(400, {"error": error})
        events = [*_texts(_answer_length(body), service_tier="default"), _end(service_tier="default")]
        return stream_reply([*events, {"choices": [], "usage": _usage(body)}])

    return Dialect(
        {"/v1/models": json_reply(200, {"data": [{"id": "gpt-x"}]}), CHAT: _replying(_whole_or(chat))},
        {"ignore_eos": False, "length_field": "max_completion_tokens"},
        None,
        "usage",
    )
