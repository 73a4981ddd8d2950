"""POST /tokenize and /detokenize, in the shapes of vLLM."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.chat import Messages, TemplateOptions
from server.protocol.common import RequestBody, TokenId


class TokenizeRequest(TemplateOptions):
    """Body of POST /tokenize: either a text or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """Of a text, whether the tokenizer's begin token is added; default true."""
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_either(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("either", "give either prompt or messages", {"param": "prompt"})
        return self


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestBody):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeAnswer(BaseModel):
    prompt: str
