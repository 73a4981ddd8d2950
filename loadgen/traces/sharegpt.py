"""Conversations without times: JSON or JSONL like ShareGPT's. Lengths are estimated, arrivals are drawn."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, TextIO

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.messages import Message, estimated_tokens, joined, messages_of, num_chars
from loadgen.traces.prefix_ids import DEFAULT_BLOCK_TOKENS, Context, PrefixIds
from loadgen.traces.source_format import TURN_KEYS
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import TraceSource, Transform

SHAREGPT_SOURCE = TraceSource(
    "conversations in the form of ShareGPT",
    "not told by the file; ShareGPT's own provenance is unclear, so do not pass it on",
)
_DEFAULT_RATE_PER_S = 1.0


def read_sharegpt(file: TextIO, config: ImportConfig) -> Iterator[SourceRow | DropReason]:
    """One row for each answer of an assistant, its prompt all that was said before it.

    Conversations begin as a Poisson process. From a turn to the next one passes a think time, drawn from an
    exponential distribution; a turn is placed where it would be if answers took no time.

    Raises:
        TraceError: the file is not JSON.
    """
    rng = random.Random(config.seed)
    ids = PrefixIds(config.block_tokens or DEFAULT_BLOCK_TOKENS)
    start_s = 0.0
    for number, conversation in enumerate(_conversations(file)):
        start_s += rng.expovariate(config.rate_per_s or _DEFAULT_RATE_PER_S)
        messages = _messages(conversation)
        if not any(message.role == "assistant" for message in messages):
            yield DropReason.MALFORMED
            continue
        yield from _turns(messages, f"{number}", start_s, config, rng, ids)


def sharegpt_transforms(config: ImportConfig) -> tuple[Transform, ...]:
    """What the reader does, for the sidecar."""
    return (
        Transform("estimate_tokens", {"chars_per_token": config.chars_per_token}),
        Transform(
            "draw_arrivals",
            {
                "conversations_per_s": config.rate_per_s or _DEFAULT_RATE_PER_S,
                "mean_think_s": config.mean_think_s,
                "answer_s": 0,
                "seed": config.seed,
            },
        ),
    )


def _conversations(file: TextIO) -> Iterator[Any]:
    text = file.read()
    try:
        if text.lstrip("\ufeff \r\n\t").startswith("["):
            yield from json.loads(text)
            return
    except ValueError as error:
        raise TraceError(f"not JSON: {error}; is the file whole?") from error
    for line in text.splitlines():
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                yield None


def _messages(conversation: object) -> list[Message]:
    if not isinstance(conversation, dict):
        return []
    found = (messages_of(conversation.get(name)) for name in TURN_KEYS)
    return next((messages for messages in found if messages), [])


def _turns(
    messages: list[Message], session: str, start_s: float, config: ImportConfig, rng: random.Random, ids: PrefixIds
) -> Iterator[SourceRow | DropReason]:
    time_s, turn, context, last_key = start_s, 0, Context(), None
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        think_s = rng.expovariate(1.0 / config.mean_think_s) if config.mean_think_s else 0.0
        prompt = messages[:index]
        in_tokens = estimated_tokens(num_chars(prompt), config.chars_per_token)
        out_tokens = estimated_tokens(len(message.text), config.chars_per_token)
        checked = row_of(SourceRow(0, in_tokens, out_tokens))
        if isinstance(checked, DropReason):
            yield checked
            continue
        time_s += think_s if last_key is not None else 0.0
        prefix = ids.prompt(context, context.num_tokens, in_tokens)
        key = f"{session}#{turn}"
        yield SourceRow(
            time_ns=round(time_s * 10**9),
            in_tokens=in_tokens,
            out_tokens=out_tokens,
            prefix=prefix,
            block=ids.block_tokens,
            session=session,
            turn=turn,
            key=key,
            after=() if last_key is None else (last_key,),
            think_s=None if last_key is None else round(think_s, 9),
            text=joined(prompt) if config.keep_text else None,
        )
        context, last_key, turn = ids.answered(prefix, in_tokens, out_tokens), key, turn + 1
