"""Reads the server-sent events of a streamed completion, of either endpoint and of any server's dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from loadgen.targets import read_told_targets
from loadgen.trace import Chunk, RequestTrace, TraceEnd

DONE = "[DONE]"
_MAX_ERROR_BODY_BYTES = 65_536
_MAX_ERROR_CHARS = 600
_CUT = " ..."


class StreamError(Exception):
    """The stream is not what the API promises, or it tells of an error. `code`: of what."""

    def __init__(self, message: str, code: str = "bad_stream") -> None:
        super().__init__(message)
        self.code = code


class LeftError(Exception):
    """The client leaves, as planned."""


def parse_data(line: str) -> str | None:
    """The data of one line of an event stream; None: a comment, another field, or the empty line between events."""
    return line[5:].strip() if line.startswith("data:") else None


class StreamReader:
    """Fills a trace from the events of its stream."""

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace
        self._keeps_text = trace.planned.session is not None
        self.num_tokens = 0
        """Of the chunks so far."""
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
        if "timings" in event and self._trace.usage_output_tokens is None:
            self._read_timings(event["timings"])
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
        """Note the usage; where it comes with text, return the tokens that no chunk has had yet."""
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
        return (trace.usage_output_tokens or 0) - self.num_tokens

    def _read_timings(self, timings: object) -> None:
        """What llama.cpp's server says where it sends no usage: `prompt_n` is the part that it had to compute."""
        if isinstance(timings, dict):
            trace, cached = self._trace, _count(timings.get("cache_n"), 0) or 0
            computed = _count(timings.get("prompt_n"), None)
            if trace.num_prompt_tokens is None and computed is not None:
                trace.num_prompt_tokens, trace.num_cached_tokens = computed + cached, cached
            trace.usage_output_tokens = _count(timings.get("predicted_n"), None)

    def _read_choice(self, choice: dict[str, Any], num_new_tokens: int | None, now_s: float) -> None:
        text = _text(choice)
        if text:
            num_tokens = max(num_new_tokens if num_new_tokens is not None else _num_logprobs(choice), 1)
            self.num_tokens += num_tokens
            self._trace.chunks.append(Chunk(now_s, num_tokens))
            if self._keeps_text:
                self._trace.answer += text
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._trace.finish_reason = reason


class EventReceiver:
    """Takes one answer from the transport into its trace (see `loadgen.transport.Receiver`)."""

    def __init__(self, trace: RequestTrace, clock: Callable[[], float]) -> None:
        self._trace = trace
        self._clock = clock
        self._reader = StreamReader(trace)
        self._leaves_at = trace.planned.cancel_after_tokens
        self._rest = b""
        """Bytes of a line that is not whole yet; of a refusal all of its body."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Raises StreamError: it is no stream of events that can be read."""
        trace = self._trace
        trace.headers_s = self._clock()
        trace.status = status
        trace.told = read_told_targets(headers)
        if status != 200:
            return
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raise StreamError(f"the answer is {headers.get('content-type')!r}, not an event stream")
        if headers.get("content-encoding", "identity") != "identity":
            raise StreamError(f"the answer is encoded ({headers['content-encoding']}), which was not asked for")

    def body(self, data: bytes) -> None:
        """Raises StreamError: an event tells of an error, or is none; LeftError: the planned tokens are there."""
        if self._trace.status != 200:
            self._rest = (self._rest + data)[:_MAX_ERROR_BODY_BYTES]
            return
        now_s = self._clock()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._read_line(line, now_s)

    def close(self) -> None:
        """The answer is over."""
        now_s = self._clock()
        if self._trace.status == 200:
            self._read_line(self._rest, now_s)
            self._reader.close(now_s)
        else:
            self._close_refusal(now_s)

    def _read_line(self, line: bytes, now_s: float) -> None:
        if line.startswith(b"error:"):  # llama.cpp's server up to 2025
            raise StreamError(f"error inside the stream: {error_text(_json_or_text(line[6:]))}", "error_in_stream")
        if not line.startswith(b"data:") or self._reader.is_done:
            return
        self._reader.feed(line[5:].strip().decode("utf-8", "replace"), now_s)
        if self._reader.is_done:
            self._reader.close(now_s)  # the rest is read so that the server does not see us leave
        elif self._leaves_at is not None and self._reader.num_tokens >= self._leaves_at:
            raise LeftError(f"the client left after {self._reader.num_tokens} tokens, as planned")

    def _close_refusal(self, now_s: float) -> None:
        status = self._trace.status or 0
        body = _json_or_text(self._rest)
        code = error_code(body)
        self._trace.finish(_refusal_end(status, code), now_s, f"HTTP {status}: {error_text(body)}", code)


def _json_or_text(raw: bytes) -> object:
    try:
        body: object = json.loads(raw)
    except ValueError:
        body = raw.decode("utf-8", "replace")
    return body


def _refusal_end(status: int, code: str | None) -> TraceEnd:
    """429 and 503 are a server's way to say no; anything else that is not 200 is a failure. So is an engine that died
    with the request in it, though the status is 503."""
    if status == 503 and code == "expired":
        return TraceEnd.EXPIRED
    if code == "engine_died":
        return TraceEnd.FAILED
    return TraceEnd.REFUSED if status in (429, 503) else TraceEnd.FAILED


def error_text(body: object) -> str:
    """What an error body says, in one line of at most `_MAX_ERROR_CHARS`: the way out often stands at its end."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    text = " ".join(str(message).split())
    if len(text) <= _MAX_ERROR_CHARS:
        return text
    return text[: _MAX_ERROR_CHARS - len(_CUT)].rsplit(" ", 1)[0] + _CUT


def error_code(body: object) -> str | None:
    """The `code` of an error body in OpenAI's shape, or its `type` where the code only repeats the status."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return None
    names = (error.get("code"), error.get("type"))
    return next((name for name in names if isinstance(name, str) and name), None)


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
