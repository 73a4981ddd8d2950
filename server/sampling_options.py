"""A request's fields to the engine's sampling parameters: defaults, and the bounds that depend on the model."""

from __future__ import annotations

import secrets

from engine.messages import Ready
from engine.sampling_params import SamplingParams
from server.errors import ApiError, context_length_exceeded, invalid_request, shortened
from server.generation_plan import GenerationPlan
from server.protocol.common import INT64_MAX, SamplingOptions
from server.tokenizer import PromptTooLong

MAX_KEPT_LOGPROBS = 1_000_000
"""About a hundred megabytes of JSON, which is kept until the answer is complete."""
MIN_TOP_P = 1e-6
"""Stands for a top_p of 0: the most probable token alone."""


def check_token_ids(body: SamplingOptions, vocab_size: int) -> None:
    """Token ids in `logit_bias` and `stop_token_ids` index the model's logits.

    Raises:
        ApiError: 400, one is outside.
    """
    for key in body.logit_bias or ():
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < vocab_size):
            raise invalid_request(
                f"logit_bias has the key {shortened(key, 40)!r}, it must be a token id in 0..{vocab_size - 1}",
                "logit_bias",
            )
    for token_id in body.stop_token_ids or ():
        if token_id >= vocab_size:
            raise invalid_request(
                f"stop_token_ids has {token_id}, it must be a token id in 0..{vocab_size - 1}", "stop_token_ids"
            )


def fit_max_tokens(asked: int | None, num_prompt_tokens: int, ready: Ready, param: str) -> int:
    """Output tokens of a request whose longest prompt has that many tokens; absent: all that are left.

    Raises:
        ApiError: 400, prompt and output exceed the model's length in force.
    """
    limit = ready.max_model_len
    wanted = 1 if asked is None else asked
    if num_prompt_tokens + wanted > limit:
        raise _too_long(limit, str(num_prompt_tokens), num_prompt_tokens + wanted, wanted, param)
    return limit - num_prompt_tokens if asked is None else asked


def prompt_too_long(error: PromptTooLong, num_output: int, param: str) -> ApiError:
    """The same 400 for a text that was given up while or before it was tokenized."""
    num_prompt = error.min_num_tokens
    told = str(num_prompt) if error.is_exact else f"at least {num_prompt}"
    return _too_long(error.max_tokens, told, num_prompt + num_output, num_output, param)


def _too_long(limit: int, num_prompt: str, num_total: int, num_output: int, param: str) -> ApiError:
    """In the words that clients look for, with both numbers: those of OpenAI, then those of LangChain."""
    return context_length_exceeded(
        f"This model's maximum context length is {limit} tokens. However, you requested {num_total} tokens "
        f"({num_prompt} in the {param}, {num_output} in the completion). "
        f"Please reduce the length of the {param} or completion: for such a completion the prompt is too long.",
        param,
    )


def check_logprobs(plan: GenerationPlan) -> None:
    """An answer that would have to be collected from too many log-probabilities is refused: they take memory.

    Raises:
        ApiError: 400.
    """
    if plan.num_kept_logprobs > MAX_KEPT_LOGPROBS:
        raise invalid_request(
            f"the answer may come to {plan.num_kept_logprobs} log-probabilities, the limit is {MAX_KEPT_LOGPROBS}: "
            "ask for fewer tokens, choices or alternatives, or stream it",
            "logprobs",
        )


def sampling_params(
    body: SamplingOptions, max_tokens: int, num_logprobs: int | None, num_prompt_logprobs: int | None, vocab_size: int
) -> SamplingParams:
    """The engine's parameters; every bound of the API was checked.

    Raises:
        ApiError: 400, min_tokens exceeds max_tokens.
    """
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid_request(f"min_tokens is {min_tokens}, it must be at most max_tokens ({max_tokens})", "min_tokens")
    top_k = body.top_k or 0
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_or(body.temperature, 1.0),
        top_p=max(_or(body.top_p, 1.0), MIN_TOP_P),
        top_k=top_k if 0 < top_k < vocab_size else 0,
        min_p=_or(body.min_p, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias={int(key): value for key, value in (body.logit_bias or {}).items()},
        seed=body.seed if body.seed is not None else secrets.randbelow(INT64_MAX),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
