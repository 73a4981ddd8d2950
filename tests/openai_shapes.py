"""Strict checks of answers: the official client's types, and OpenAI's published schemas where they are at hand.

The schemas lie in `../shared/openai-schema/schemas.json` beside the checkout, or where HEADRACE_OPENAI_SCHEMA says.
"""

from __future__ import annotations

import copy
import functools
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import openai.types
import openai.types.chat
import pydantic

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "openai-schema" / "schemas.json"
Body = dict[str, Any]


def check_chat_completion(body: Body) -> None:
    _check(body, openai.types.chat.ChatCompletion, "CreateChatCompletionResponse")
    _check_usage(body["usage"])
    assert "system_fingerprint" not in body


def check_chat_chunk(body: Body) -> None:
    _check(body, openai.types.chat.ChatCompletionChunk, "CreateChatCompletionStreamResponse")
    if body.get("usage") is not None:
        _check_usage(body["usage"])


def check_completion(body: Body) -> None:
    """A whole text completion. An echoed prompt's first token has no log-probability, which OpenAI's types forget."""
    checked = _without_null_logprobs(body)
    _check(checked, openai.types.Completion, "CreateCompletionResponse")
    _check_usage(body["usage"])


def check_completion_chunk(body: Body) -> None:
    """A part of one: OpenAI sends null as the finish reason before the last, which its types forget."""
    checked = _without_null_logprobs(body)
    for choice in checked["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    if checked.get("usage", 0) is None:
        del checked["usage"]
    _check(checked, openai.types.Completion, "CreateCompletionResponse")


def check_model(body: Body) -> None:
    _check(body, openai.types.Model, "Model")
    assert isinstance(body["max_model_len"], int)


def check_error(body: Body) -> None:
    _check_schema(body, "ErrorResponse")
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] is None or isinstance(body["error"]["code"], str)


def _check(body: Body, model: type[pydantic.BaseModel], definition: str) -> None:
    model.model_validate_json(json.dumps(body, allow_nan=False), strict=True)
    _check_schema(body, definition)


def _check_usage(usage: Body) -> None:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int)


def _without_null_logprobs(body: Body) -> Body:
    checked = copy.deepcopy(body)
    for choice in checked["choices"]:
        logprobs = choice["logprobs"]
        if logprobs is not None and logprobs["token_logprobs"][:1] == [None]:
            logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}
    return checked


def _check_schema(body: Body, definition: str) -> None:
    validator = _validator(definition)
    if validator is not None:
        validator.validate(body)


@functools.cache
def _validator(definition: str) -> jsonschema.Draft202012Validator | None:
    path = Path(os.environ.get("HEADRACE_OPENAI_SCHEMA", _DEFAULT))
    if not path.is_file():
        return None
    schemas = json.loads(path.read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator({**schemas, "$ref": f"#/$defs/{definition}"})
