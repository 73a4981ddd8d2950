"""POST /v1/completions: the body and the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.common import FinishReason, SamplingOptions, Unsupported, Usage

MAX_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 16
_TOKEN_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        _TOKEN_IDS_SCHEMA,
        {"type": "array", "items": _TOKEN_IDS_SCHEMA, "minItems": 1},
    ]
}

Prompts = list[str] | list[list[int]]


def read_prompts(value: Any) -> Prompts:
    """One or many prompts, as text or as token ids; mixtures are refused, empty ones too.

    Raises:
        PydanticCustomError: none of the four forms.
    """
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif isinstance(value, list) and value and _are_ints(value):
        prompts = [value]
    elif isinstance(value, list) and value and (_are_strings(value) or all(_is_id_list(item) for item in value)):
        prompts = value
    else:
        raise PydanticCustomError(
            "prompt_type", "a prompt is a string, a list of strings, a list of token ids, or a list of such lists"
        )
    if not all(prompts):
        raise PydanticCustomError("empty_prompt", "a prompt must not be empty")
    return prompts


def _are_ints(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}  # bool is a type of its own here


def _are_strings(values: list[Any]) -> bool:
    return set(map(type, values)) == {str}


def _is_id_list(value: Any) -> bool:
    return isinstance(value, list) and (not value or _are_ints(value))


class CompletionRequest(SamplingOptions):
    """Body of POST /v1/completions."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Default 16; 0 with `echo` and `logprobs` scores the prompt."""
    echo: bool | None = None
    """The answer begins with the prompt."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: Unsupported = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer puts its begin token before a text prompt; default true."""

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: Any) -> Prompts:
        return read_prompts(value)

    @field_validator("suffix")
    @classmethod
    def _refuse_suffix(cls, value: Any) -> None:
        if value not in (None, ""):
            raise PydanticCustomError("unsupported", "not supported by this version of Headrace: leave it out")

    @model_validator(mode="after")
    def _check_best_of(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.num_choices_per_prompt:
            raise PydanticCustomError(
                "best_of",
                "best_of is {best_of} and n is {n}: only equal values are supported",
                {"best_of": self.best_of, "n": self.num_choices_per_prompt, "param": "best_of"},
            )
        return self

    @property
    def asked_max_tokens(self) -> int:
        return self.max_tokens if self.max_tokens is not None else DEFAULT_MAX_TOKENS

    @property
    def echoes(self) -> bool:
        return bool(self.echo)


class CompletionLogprobs(BaseModel):
    """One entry per token; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """null in the chunks of a stream before the last."""
    stop_reason: str | int | None = None


class Completion(BaseModel):
    """Answer of POST /v1/completions; the chunks of a stream have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    service_tier: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
