"""Reads the server-sent events of a streamed completion, of either endpoint."""

from __future__ import annotations

import json
from typing import Any

from loadgen.trace import Chunk, RequestTrace, TraceEnd

DONE = "[DONE]"


class StreamError(Exception):
    """The stream is not what the API promises, or it tells of an error. `code`: of what."""

    def __init__(self, message: str, code: str = "bad_stream") -> None:
        super().__init__(message)
        self.code = code


def parse_data(line: str) -> str | None:
    """The data of one line of an event stream; None: a comment, another field, or the empty line between events."""
    return line[5:].strip() if line.startswith("data:") else None


class StreamReader:
    """Fills a trace from the events of its stream."""

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace
        self._num_usage_tokens = 0
        self.is_done = False

    def feed(self, data: str, now_s: float) -> None:
        """One event's data, read at `now_s`.

        Raises:
            StreamError: no JSON object, or an error the server sends inside the stream.
        """
        if data == DONE:
            self.is_done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise StreamError(f"an event is not JSON: {data[:100]!r}") from None
        if not isinstance(event, dict):
            raise StreamError(f"an event is not an object: {data[:100]!r}")
        if event.get("error"):
            code = error_code(event) or "error_in_stream"
            raise StreamError(f"error inside the stream: {error_text(event)}", code)
        self._read_tier(event)
        choices = event.get("choices") or []
        num_tokens = self._read_usage(event)
        if choices:
            self._read_choice(choices[0], num_tokens, now_s)

    def close(self, now_s: float) -> None:
        """The stream is over: completed if it said so itself."""
        if self._trace.finish_reason in ("error", "abort"):
            self._trace.finish(
                TraceEnd.FAILED,
                now_s,
                f"the server ended the stream: {self._trace.finish_reason}",
                self._trace.finish_reason,
            )
        elif self.is_done or self._trace.finish_reason is not None:
            self._trace.finish(TraceEnd.COMPLETED, now_s)
        else:
            self._trace.finish(TraceEnd.FAILED, now_s, "the stream broke off before its finish reason", "broken_off")

    def _read_tier(self, event: dict[str, Any]) -> None:
        tier = event.get("service_tier")
        if isinstance(tier, str):
            self._trace.service_tier = tier

    def _read_usage(self, event: dict[str, Any]) -> int | None:
        """Note the usage; where a server sends it with every chunk, return the tokens since the last one."""
        usage = event.get("usage")
        if not isinstance(usage, dict):
            return None
        trace = self._trace
        trace.num_prompt_tokens = _count(usage.get("prompt_tokens"), trace.num_prompt_tokens)
        trace.usage_output_tokens = _count(usage.get("completion_tokens"), trace.usage_output_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            trace.num_cached_tokens = _count(details.get("cached_tokens"), trace.num_cached_tokens)
            trace.cached_tokens_by_tier = _counts(details.get("cached_tokens_by_tier"), trace.cached_tokens_by_tier)
        last, self._num_usage_tokens = self._num_usage_tokens, trace.usage_output_tokens or 0
        return self._num_usage_tokens - last

    def _read_choice(self, choice: dict[str, Any], num_new_tokens: int | None, now_s: float) -> None:
        if _text(choice):
            num_tokens = num_new_tokens if num_new_tokens is not None else _num_logprobs(choice)
            self._trace.chunks.append(Chunk(now_s, max(num_tokens, 1)))
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._trace.finish_reason = reason


def error_text(body: object) -> str:
    """What an error body says, in one short line."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]


def error_code(body: object) -> str | None:
    """The `code` of an error body in OpenAI's shape."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None


def _text(choice: dict[str, Any]) -> str:
    """The text of a chunk: of a completion, of a chat, or of a chat's reasoning."""
    delta = choice.get("delta")
    source: dict[str, Any] = delta if isinstance(delta, dict) else choice
    for key in ("content", "text", "reasoning_content", "reasoning"):
        if isinstance(text := source.get(key), str) and text:
            return text
    return ""


def _num_logprobs(choice: dict[str, Any]) -> int:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return 1
    entries = logprobs.get("content") or logprobs.get("tokens") or []
    return len(entries)


def _count(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _counts(value: object, otherwise: dict[str, int] | None) -> dict[str, int] | None:
    """Counts by name, such as {"host": 32}; what is no count is left out."""
    if not isinstance(value, dict):
        return otherwise
    known = {str(name): _count(count, None) for name, count in value.items()}
    return {name: count for name, count in known.items() if count is not None}
