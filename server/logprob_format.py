"""Log-probabilities as OpenAI's two endpoints write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from engine.messages import TokenLogprob
from server.tokenizer import Tokenizer

FLOOR = -9999.0
"""What stands for minus infinity: JSON has no infinity."""


class LogprobFormat:
    """Turns the engine's records into JSON values."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def chat(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """Entries of `logprobs.content`: the chosen token and the most probable ones."""
        return [
            {
                **self._entry(item.token_id, item.logprob),
                "top_logprobs": [
                    self._entry(token_id, logprob)
                    for token_id, logprob in zip(item.top_token_ids, item.top_logprobs, strict=True)
                ],
            }
            for item in logprobs
        ]

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": finite(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }

    def top(self, item: TokenLogprob) -> dict[str, float]:
        """An entry of `top_logprobs` of a text completion: the most probable tokens and always the chosen one.

        Of two tokens with one text the more probable is kept.
        """
        table: dict[str, float] = {}
        for token_id, logprob in zip(item.top_token_ids, item.top_logprobs, strict=True):
            table.setdefault(self._tokenizer.token_text(token_id), finite(logprob))
        table.setdefault(self._tokenizer.token_text(item.token_id), finite(item.logprob))
        return table

    def text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id)


def finite(logprob: float) -> float:
    """`logprob` with the floor for minus infinity and NaN."""
    return logprob if logprob > FLOOR else FLOOR


@dataclasses.dataclass(slots=True)
class CompletionLogprobsTable:
    """The four parallel lists of a text completion's `logprobs`."""

    tokens: list[str] = dataclasses.field(default_factory=list)
    token_logprobs: list[float | None] = dataclasses.field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = dataclasses.field(default_factory=list)
    text_offset: list[int] = dataclasses.field(default_factory=list)

    def add(self, token: str, logprob: float | None, top: dict[str, float] | None, offset: int) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def extend(self, other: CompletionLogprobsTable) -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
