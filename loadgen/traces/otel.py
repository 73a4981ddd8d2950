"""OpenTelemetry spans of language model calls, as collected in one JSON object (inference-perf's form)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.messages import Message, estimated_tokens, joined, messages_of, num_chars
from loadgen.traces.prefix_ids import DEFAULT_BLOCK_TOKENS, Context, PrefixIds
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.timestamps import parse_time_ns
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import TraceSource

OTEL_SOURCE = TraceSource(
    "OpenTelemetry spans",
    "not told by the file (the examples of github.com/kubernetes-sigs/inference-perf: Apache-2.0)",
)
_SESSION_KEYS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
_CALLS = frozenset({"chat", "text_completion", "generate_content"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """A call, as far as it matters here."""

    key: str
    parent_key: str | None
    session: str
    begin_ns: int
    end_ns: int
    in_tokens: int
    out_tokens: int
    messages: tuple[Message, ...]
    answer: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Done:
    """A call that was placed: its ancestors in the graph, and what it left for the prompts after it."""

    span: _Span
    ancestors: frozenset[str]
    context: Context


def read_otel(file: TextIO, config: ImportConfig) -> Iterator[SourceRow | DropReason]:
    """One row for each call, in the order of their beginnings.

    A call needs those before it in its session whose answers are among its messages, else its parent span where that
    is a call that had ended. Counts are those of the span's usage, else estimated from its texts. What it shares with
    the prompt before it is estimated by characters.

    Raises:
        TraceError: the file is not a JSON object with a list of spans.
    """
    try:
        spans = json.load(file)["spans"]
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"no JSON object with spans: {error!r}; is the file whole?") from error
    if not isinstance(spans, list):
        raise TraceError(f"spans is a {type(spans).__name__}, a list is needed")
    read = [_span(body, config.chars_per_token) for body in spans]
    yield from (item for item in read if isinstance(item, DropReason))
    ids = PrefixIds(config.block_tokens or DEFAULT_BLOCK_TOKENS)
    sessions: dict[str, list[_Done]] = {}
    for span in sorted((item for item in read if isinstance(item, _Span)), key=lambda span: span.begin_ns):
        yield _row(span, sessions.setdefault(span.session, []), ids, config.keep_text)


def _span(body: Any, chars_per_token: float) -> _Span | DropReason:
    try:
        attributes: dict[str, Any] = body["attributes"]
        if attributes.get("gen_ai.operation.name") not in _CALLS:
            return DropReason.NOT_LLM
        trace, parent = body.get("trace_id"), body.get("parent_span_id")
        span = _Span(
            key=f"{trace}/{body['span_id']}",
            parent_key=None if parent is None else f"{trace}/{parent}",
            session=str(next((attributes[key] for key in _SESSION_KEYS if attributes.get(key)), trace)),
            begin_ns=parse_time_ns(body["start_time"]),
            end_ns=parse_time_ns(body["end_time"]),
            in_tokens=0,
            out_tokens=0,
            messages=tuple(messages_of(attributes.get("gen_ai.input.messages"))),
            answer=_answer(attributes),
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return DropReason.MALFORMED
    in_tokens = _usage(attributes, ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"))
    out_tokens = _usage(attributes, ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"))
    if in_tokens is None:
        in_tokens = estimated_tokens(num_chars(list(span.messages)), chars_per_token)
    if out_tokens is None:
        out_tokens = estimated_tokens(len(span.answer), chars_per_token)
    checked = row_of(SourceRow(0, in_tokens, out_tokens))
    if isinstance(checked, DropReason):
        return checked
    return dataclasses.replace(span, in_tokens=in_tokens, out_tokens=out_tokens)


def _usage(attributes: dict[str, Any], names: tuple[str, str]) -> int | None:
    return next((attributes[name] for name in names if type(attributes.get(name)) is int), None)


def _answer(attributes: dict[str, Any]) -> str:
    text = attributes.get("gen_ai.output.text")
    if isinstance(text, str):
        return text
    return "".join(message.text for message in messages_of(attributes.get("gen_ai.output.messages")))


def _row(span: _Span, done: list[_Done], ids: PrefixIds, keep_text: bool) -> SourceRow:
    needed = _needed(span, done)
    last = needed[-1] if needed else None
    shared_tokens = 0 if last is None else _shared_tokens(span, last)
    prefix = ids.prompt(Context() if last is None else last.context, shared_tokens, span.in_tokens)
    turn = len(done)
    ancestors = frozenset(each.span.key for each in needed).union(*(each.ancestors for each in needed))
    done.append(_Done(span, ancestors, ids.answered(prefix, span.in_tokens, span.out_tokens)))
    return SourceRow(
        time_ns=span.begin_ns,
        in_tokens=span.in_tokens,
        out_tokens=span.out_tokens,
        prefix=prefix,
        block=ids.block_tokens,
        session=span.session,
        turn=turn,
        key=span.key,
        after=tuple(each.span.key for each in needed),
        think_s=None if last is None else (span.begin_ns - last.span.end_ns) / 10**9,
        text=joined(list(span.messages)) if keep_text and span.messages else None,
    )


def _needed(span: _Span, done: Sequence[_Done]) -> list[_Done]:
    """The calls that this one waited for, without those that one of them waited for, in the order of their ends."""
    ended = [each for each in done if each.span.end_ns <= span.begin_ns]
    quoted = {message.text for message in span.messages if message.role == "assistant" and message.text}
    needed = [each for each in ended if each.span.answer in quoted]
    if not needed:
        needed = [each for each in ended if each.span.key == span.parent_key]
    covered = frozenset[str]().union(*(each.ancestors for each in needed))
    return sorted((each for each in needed if each.span.key not in covered), key=lambda each: each.span.end_ns)


def _shared_tokens(span: _Span, last: _Done) -> int:
    """Of the leading messages that both have, the smaller of what either one's tokens per character say."""
    context = (*last.span.messages, Message("assistant", last.span.answer))
    num_chars_shared = 0
    for mine, theirs in zip(span.messages, context, strict=False):
        if mine != theirs:
            break
        num_chars_shared += len(mine.text)
    chars, context_chars = num_chars(list(span.messages)), num_chars(list(context))
    if not num_chars_shared:
        return 0
    return min(num_chars_shared * span.in_tokens // chars, num_chars_shared * last.context.num_tokens // context_chars)
