"""POST /v1/chat/completions: the body and the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.common import (
    FinishReason,
    RequestBody,
    SamplingOptions,
    Unsupported,
    Usage,
    is_given,
    not_supported,
)

MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 8192
_CONTENT_UNLESS_ASSISTANT: dict[str, Any] = {
    "if": {"properties": {"role": {"const": "assistant"}}},
    "else": {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
}
_TEXT_OR_REFUSAL: dict[str, Any] = {
    "if": {"properties": {"type": {"const": "text"}}},
    "then": {"required": ["text"], "properties": {"text": {"type": "string"}}},
    "else": {"required": ["refusal"], "properties": {"refusal": {"type": "string"}}},
}
_NO_TOOL_SCHEMA = {"enum": ["none", "auto", None]}
_TEXT_FORMAT_SCHEMA = {"type": ["object", "null"], "properties": {"type": {"const": "text"}}, "required": ["type"]}
_TEXT_MODALITY_SCHEMA = {"enum": [["text"], None]}


class ContentPart(RequestBody):
    """A part of a message. Text only: nothing is fetched and no media is decoded."""

    model_config = ConfigDict(json_schema_extra=_TEXT_OR_REFUSAL)

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _refuse_media(cls, value: Any) -> Any:
        if isinstance(value, str) and value not in ("text", "refusal"):
            raise PydanticCustomError(
                "unsupported",
                "only parts of type text are supported by this version of Headrace, not {kind}",
                {"kind": repr(value[:40])},
            )
        return value

    @model_validator(mode="after")
    def _check_text(self) -> ContentPart:
        if (self.text if self.type == "text" else self.refusal) is None:
            raise PydanticCustomError("missing_text", "a part of type {kind} needs its text", {"kind": self.type})
        return self

    @property
    def as_text(self) -> str:
        return (self.text if self.type == "text" else self.refusal) or ""


class FunctionCall(RequestBody):
    name: str
    arguments: str


class ToolCall(RequestBody):
    """A call in the history of a conversation; the template renders it."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestBody):
    """One turn of the conversation."""

    model_config = ConfigDict(json_schema_extra=_CONTENT_UNLESS_ASSISTANT)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("missing_content", "a message of role {role} needs content", {"role": self.role})
        return self

    @property
    def num_chars(self) -> int:
        """Of its content."""
        if self.content is None or isinstance(self.content, str):
            return len(self.content or "")
        return sum(len(part.as_text) for part in self.content)

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it: one text, and no nulls."""
        content = self.content
        text = content if isinstance(content, str) else "\n".join(part.as_text for part in content or ())
        message: dict[str, Any] = {"role": self.role, "content": text}
        more = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
            "reasoning": self.reasoning,
        }
        message |= {key: value for key, value in more.items() if value is not None}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return message


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class TemplateOptions(RequestBody):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    """Open the assistant's turn; default true, and false where `continue_final_message` is set."""
    continue_final_message: bool | None = None
    """Leave the last message open, for the model to go on with it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the template, such as `enable_thinking`; names that the server sets itself are refused."""
    chat_template: Unsupported = None
    """Refused: a template is a program, and the model brings its own."""

    @field_validator("chat_template")
    @classmethod
    def _refuse_template(cls, value: Any) -> None:
        if is_given(value):
            raise PydanticCustomError("unsupported", "a template in the request is not accepted: the model's is used")

    @model_validator(mode="after")
    def _check_exclusive(self) -> TemplateOptions:
        if self.add_generation_prompt and self.continue_final_message:
            raise PydanticCustomError(
                "exclusive",
                "add_generation_prompt and continue_final_message exclude each other: set one of them",
                {"param": "continue_final_message"},
            )
        return self

    @property
    def continues(self) -> bool:
        return bool(self.continue_final_message)

    @property
    def generates(self) -> bool:
        return self.add_generation_prompt if self.add_generation_prompt is not None else not self.continues


class ChatRequest(TemplateOptions, SamplingOptions):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """Takes precedence; where neither is given the rest of the model's length is."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Unsupported = None
    tool_choice: Annotated[Any, WithJsonSchema(_NO_TOOL_SCHEMA)] = None
    functions: Unsupported = None
    function_call: Annotated[Any, WithJsonSchema(_NO_TOOL_SCHEMA)] = None
    response_format: Annotated[Any, WithJsonSchema(_TEXT_FORMAT_SCHEMA)] = None
    modalities: Annotated[Any, WithJsonSchema(_TEXT_MODALITY_SCHEMA)] = None

    @field_validator("tools", "functions")
    @classmethod
    def _refuse_tools(cls, value: Any) -> None:
        if is_given(value):
            raise not_supported()

    @field_validator("tool_choice", "function_call")
    @classmethod
    def _refuse_choice(cls, value: Any) -> None:
        if value not in (None, "none", "auto"):
            raise not_supported()

    @field_validator("response_format")
    @classmethod
    def _refuse_format(cls, value: Any) -> None:
        if value is not None and not (isinstance(value, dict) and value.get("type") == "text"):
            raise PydanticCustomError("unsupported", 'only {"type": "text"} is supported by this version of Headrace')

    @field_validator("modalities")
    @classmethod
    def _refuse_modalities(cls, value: Any) -> None:
        if value is not None and value != ["text"]:
            raise PydanticCustomError("unsupported", 'only ["text"] is supported by this version of Headrace')

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError(
                "top_logprobs", "top_logprobs has a meaning only with logprobs: true", {"param": "top_logprobs"}
            )
        return self

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Top log-probabilities per token; None: no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobObject(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprobObject] | None
    refusal: None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or token id that ended it, where there was one."""


class ChatCompletion(BaseModel):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    """The tier of the class that the request was granted, which may differ from the one asked for."""
    choices: list[ChatChoice]
    usage: Usage


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer; the last one is `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    service_tier: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
