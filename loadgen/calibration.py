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
    of one token each. Where neither answers, a word is taken for a token."""
    if not config.calibrate:
        return Calibration()
    texts = [WordPool("calibration").text(index, count) for index, count in enumerate(_NUM_WORDS)]
    counts = [await _tokenize(config, http, model, text) for text in texts]
    found = _fit(counts, "tokenize")
    if found is None and config.trace_path is not None:
        found = _fit([await _usage(config, http, model, text) for text in texts], "usage")
    return found or Calibration()


def _fit(counts: list[int | None], source: str) -> Calibration | None:
    """The line through the two counts; None: they are not there, or make no sense."""
    few, many = counts
    if few is None or many is None:
        return None
    tokens_per_word = (many - few) / (_NUM_WORDS[1] - _NUM_WORDS[0])
    if not 0.5 <= tokens_per_word <= _MAX_TOKENS_PER_WORD:
        return None
    return Calibration(tokens_per_word, max(round(few - tokens_per_word * _NUM_WORDS[0]), 0), source)


async def _tokenize(config: BenchConfig, http: httpx.AsyncClient, model: str, text: str) -> int | None:
    """By the chat's messages, so that its template counts too, else by the text alone (`content` is llama.cpp's)."""
    of_chat: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    of_text: dict[str, Any] = {"model": model, "prompt": text, "content": text}
    for body in ([of_chat] if config.api == "chat" else []) + [of_text]:
        answer = await _post(http, "/tokenize", body)
        if answer is not None and (count := _count_of(answer)):
            return count
    return None


def _count_of(answer: dict[str, Any]) -> int | None:
    count, tokens = answer.get("count"), answer.get("tokens")
    if isinstance(count, int):
        return count
    return len(tokens) if isinstance(tokens, list) else None


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
