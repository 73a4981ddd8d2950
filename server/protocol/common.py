"""What chat and text completions share: sampling options, the fields of this server, and what is refused.

Types are strict (a float is no int, "1" is no number), null counts as absent, and unknown fields are ignored. A field
that would change the answer and is not offered is refused, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_N = 128
MAX_STOP_STRINGS = 16
"""OpenAI takes four; evaluation harnesses send up to seven, since a task's own come on top of the end token's text."""
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 100.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
MAX_LOGIT_BIAS_TOKENS = 1024
USUAL_RETENTION, HIGH_RETENTION = 1, 2
"""How long a prompt's KV blocks are kept, beside those of other requests."""

Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]

Unsupported = Annotated[Any, WithJsonSchema({"type": "null", "description": "Not supported: leave it out."})]
"""A field that is known elsewhere; only values that ask for nothing pass."""
_LOGIT_BIAS_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
            "maxProperties": MAX_LOGIT_BIAS_TOKENS,
        },
        {"type": "null"},
    ]
}
_TARGET_SCHEMA = {"type": ["number", "null"], "exclusiveMinimum": 0}
_SLO_SCHEMA = {
    "type": ["object", "null"],
    "properties": {
        "class": {"type": ["string", "null"]},
        **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_deadline_ms"), _TARGET_SCHEMA),
        "degrade": {"type": ["boolean", "null"]},
    },
    "additionalProperties": False,
}


class RequestBody(BaseModel):
    """Root of the bodies that clients send."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


def is_given(value: Any) -> bool:
    """Whether an unsupported field asks for something: null, false and empty ones do not."""
    return value is not None and value is not False and value != [] and value != {} and value != ""


class UnsupportedFields(RequestBody):
    """Fields of OpenAI and of other servers that change the answer and are not offered: accepted only when empty."""

    audio: Unsupported = None
    web_search_options: Unsupported = None
    structured_outputs: Unsupported = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    json_schema: Unsupported = None
    regex: Unsupported = None
    ebnf: Unsupported = None
    grammar: Unsupported = None
    prompt_embeds: Unsupported = None
    prompt_logprobs: Unsupported = None
    allowed_token_ids: Unsupported = None
    bad_words: Unsupported = None
    logprob_token_ids: Unsupported = None
    truncate_prompt_tokens: Unsupported = None
    thinking_token_budget: Unsupported = None
    use_beam_search: Unsupported = None

    @field_validator(
        *("audio", "web_search_options", "structured_outputs", "guided_json", "guided_regex", "guided_choice"),
        *("guided_grammar", "json_schema", "regex", "ebnf", "grammar", "prompt_embeds", "prompt_logprobs"),
        *("allowed_token_ids", "bad_words", "logprob_token_ids", "truncate_prompt_tokens", "thinking_token_budget"),
        "use_beam_search",
    )
    @classmethod
    def _refuse(cls, value: Any) -> None:
        if is_given(value):
            raise not_supported()


def not_supported() -> PydanticCustomError:
    """The error of a field that is not offered; its `param` says which."""
    return PydanticCustomError("unsupported", "not supported by this version of Headrace: leave it out")


class StreamOptions(RequestBody):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    """One more chunk at the end, with the usage and no choice; the others carry `usage: null`."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk."""
    include_obfuscation: bool | None = None
    """Accepted; nothing is padded here."""


class SamplingOptions(UnsupportedFields):
    """How tokens are chosen, when to stop, and what comes back with them."""

    model: str | None = None
    """The served model where absent."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 are off, as is anything from the vocabulary's size on."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None
    """1 is off. Logits are multiplied or divided by it: far beyond these bounds they overflow."""
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]] | None,
        WithJsonSchema(_LOGIT_BIAS_SCHEMA),
    ] = None
    """Token ids, as decimal strings, to what is added to their logits."""
    seed: Int64 | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    """Accepted; the text is what the tokenizer decodes."""
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Requests of different salts share no cached prefix."""
    prompt_cache_key: str | None = None
    """Its prompt will come again: its KV blocks leave the host and the disk after those of requests without a key."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    """"24h" does what a key does; "in_memory" is the default."""
    user: str | None = None
    """Whose request it is, where no API keys are asked for: the users of a class are served equally."""
    safety_identifier: str | None = None
    """The newer name of `user`; where both are given, this one counts."""
    priority: Int64 | None = None
    """Lower is earlier. Where nothing else names a class, below 0 asks for tier `fast`, above 0 for `flex`."""
    service_tier: str | None = None
    slo: Annotated[Any, WithJsonSchema(_SLO_SCHEMA)] = None
    """{class, ttft_ms, tpot_ms, e2e_deadline_ms, degrade}"""

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _check_logit_bias_size(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS_TOKENS:
            raise PydanticCustomError(
                "too_long", "{count} tokens, at most {limit}", {"count": len(value), "limit": MAX_LOGIT_BIAS_TOKENS}
            )
        return value

    @model_validator(mode="after")
    def _check_stream_options(self) -> SamplingOptions:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "stream_options", "stream_options has a meaning only with stream: true", {"param": "stream_options"}
            )
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def num_choices_per_prompt(self) -> int:
        return self.n if self.n is not None else 1

    @property
    def retention(self) -> int:
        """As `engine.messages.AddGroup`."""
        is_wanted = bool(self.prompt_cache_key) or self.prompt_cache_retention == "24h"
        return HIGH_RETENTION if is_wanted else USUAL_RETENTION

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class TierTokens(BaseModel):
    device: int
    host: int
    disk: int


class CachedTokens(BaseModel):
    cached_tokens: int
    """In all tiers."""
    cached_tokens_by_tier: TierTokens | None = None
    """Where they were; absent where KV blocks are kept on the device alone."""


class Usage(BaseModel):
    """Tokens billed: those past a stop string are not."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
FinishReason = Literal["stop", "length"]
