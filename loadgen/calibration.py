"""How many tokens a server makes of our words, so that prompts have the lengths asked for. No tokenizer is fetched."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx

from loadgen.config import BenchConfig
from loadgen.words import WordPool

_NUM_WORDS = (64, 512)
"""Of the two texts that are measured: their difference tells words and what stands around them apart."""
_TIMEOUT_S = 60.0
_MAX_TOKENS_PER_WORD = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """A prompt of n words is about `tokens_per_word` x n + `overhead_tokens` tokens."""

    tokens_per_word: float = 1.0
    overhead_tokens: int = 0
    """Of the chat template, or of what begins a sequence."""
    source: str = "assumed"
    """Where it comes from: tokenize, usage or assumed."""

    def words_for(self, num_tokens: float) -> int:
        """Words of a text of about `num_tokens` tokens, without the overhead; at least 0."""
        return max(round(num_tokens / self.tokens_per_word), 0)


async def calibrate(config: BenchConfig, http: httpx.AsyncClient, model: str) -> Calibration:
    """Ask the server: its `/tokenize` (vLLM, SGLang, llama.cpp, Headrace), else, for a trace, the usage of two requests
    of one token each. Where neither answers, a word is taken for a token. A `/tokenize` that knows no chats does not
    tell of their template: for a trace the usage of one request does."""
    if not config.calibrate:
        return Calibration()
    short, long = (WordPool("calibration").text(index, count) for index, count in enumerate(_NUM_WORDS))
    if config.api == "chat":
        of_chat = [await _tokenize_chat(http, model, text) for text in (short, long)]
        if found := _fit(of_chat, "tokenize"):
            return found
    found = _fit([await _tokenize(http, model, text) for text in (short, long)], "tokenize")
    if config.trace_path is None or (found is not None and config.api != "chat"):
        return found or Calibration()
    num_tokens = await _usage(config, http, model, short)
    if found is None:
        return _fit([num_tokens, await _usage(config, http, model, long)], "usage") or Calibration()
    if num_tokens is None:
        return found
    return dataclasses.replace(found, overhead_tokens=_overhead(num_tokens, found.tokens_per_word))


def _fit(counts: list[int | None], source: str) -> Calibration | None:
    """The line through the two counts; None: they are not there, or make no sense."""
    few, many = counts
    if few is None or many is None:
        return None
    tokens_per_word = (many - few) / (_NUM_WORDS[1] - _NUM_WORDS[0])
    if not 0.5 <= tokens_per_word <= _MAX_TOKENS_PER_WORD:
        return None
    return Calibration(tokens_per_word, _overhead(few, tokens_per_word), source)


def _overhead(num_tokens: int, tokens_per_word: float) -> int:
    """Of the shorter text."""
    return max(round(num_tokens - tokens_per_word * _NUM_WORDS[0]), 0)


async def _tokenize_chat(http: httpx.AsyncClient, model: str, text: str) -> int | None:
    """By its messages, so that the template counts too."""
    return _count_of(await _post(http, "/tokenize", {"model": model, "messages": [{"role": "user", "content": text}]}))


async def _tokenize(http: httpx.AsyncClient, model: str, text: str) -> int | None:
    """By the text alone; `content` is llama.cpp's name for it."""
    return _count_of(await _post(http, "/tokenize", {"model": model, "prompt": text, "content": text}))


def _count_of(answer: dict[str, Any] | None) -> int | None:
    """None: there is no count, or one of nothing: a server that takes what it does not know for an empty text."""
    count, tokens = (answer or {}).get("count"), (answer or {}).get("tokens")
    if not isinstance(count, int):
        count = len(tokens) if isinstance(tokens, list) else 0
    return count or None


async def _usage(config: BenchConfig, http: httpx.AsyncClient, model: str, text: str) -> int | None:
    body: dict[str, Any] = {"model": model, config.length_field: 1, "temperature": config.temperature}
    if config.api == "chat":
        body["messages"] = [{"role": "user", "content": text}]
        answer = await _post(http, "/v1/chat/completions", body)
    else:
        body["prompt"] = text
        answer = await _post(http, "/v1/completions", body)
    usage = (answer or {}).get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


async def _post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """None: there is no such answer; a server that lacks the path says so in many ways."""
    try:
        response = await http.post(path, json=body, timeout=_TIMEOUT_S)
        answer = response.json() if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
