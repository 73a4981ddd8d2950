"""Log-probabilities as OpenAI's two endpoints write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from engine.messages import TokenLogprob
from server.detokenizer import Detokenizer
from server.json_pieces import JsonItems, Piece
from server.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, records: Sequence[TokenLogprob], num_top: int) -> list[dict[str, Any]]:
    """`choice.logprobs.content` of a chat completion: one entry a token, each with `num_top` alternatives."""
    return [
        {
            **_entry(tokenizer, record.token_id, record.logprob),
            "top_logprobs": [_entry(tokenizer, token_id, logprob) for token_id, logprob in _top(record, num_top)],
        }
        for record in records
    ]


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": logprob,
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _top(record: TokenLogprob, num_top: int) -> list[tuple[int, float]]:
    return list(zip(record.top_token_ids, record.top_logprobs, strict=True))[:num_top]


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """`choice.logprobs` of a text completion, or a part of it: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


class EncodedLogprobs:
    """Parts of one choice's `CompletionLogprobs`, joined and encoded as they come."""

    def __init__(self) -> None:
        self._tokens = JsonItems()
        self._token_logprobs = JsonItems()
        self._top_logprobs = JsonItems()
        self._text_offset = JsonItems()

    def add(self, part: CompletionLogprobs, num_chars_before: int = 0) -> None:
        """Append a part whose text stands `num_chars_before` further into the choice's text than it says."""
        self._tokens.add(part.tokens)
        self._token_logprobs.add(part.token_logprobs)
        self._top_logprobs.add(part.top_logprobs)
        self._text_offset.add([offset + num_chars_before for offset in part.text_offset])

    def pieces(self) -> Iterator[Piece]:
        """The JSON object."""
        lists = {
            "tokens": self._tokens,
            "token_logprobs": self._token_logprobs,
            "top_logprobs": self._top_logprobs,
            "text_offset": self._text_offset,
        }
        for index, (name, items) in enumerate(lists.items()):
            yield b'%s"%s":' % (b"," if index else b"{", name.encode())
            yield from items.pieces()
        yield b"}"


class CompletionLogprobWriter:
    """Writes the log-probabilities of one choice in order, counting where each token begins in the choice's text.

    The offset of a token that continues a character is that of the character. With echo the prompt's tokens come
    first; the very first has no log-probability.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._text = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._num_chars = 0

    def first_prompt_token(self, token_id: int) -> CompletionLogprobs:
        """The token that nothing stands before."""
        return CompletionLogprobs([self._tokenizer.token_text(token_id)], [None], [None], [self._advance(token_id)])

    def write(self, records: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next tokens; the chosen one is always among its `top_logprobs`, as in OpenAI's API."""
        return CompletionLogprobs(
            tokens=[self._tokenizer.token_text(record.token_id) for record in records],
            token_logprobs=[record.logprob for record in records],
            top_logprobs=[self._top_texts(record) for record in records],
            text_offset=[self._advance(record.token_id) for record in records],
        )

    def _top_texts(self, record: TokenLogprob) -> dict[str, float]:
        texts: dict[str, float] = {}
        for token_id, logprob in _top(record, self._num_top):
            texts.setdefault(self._tokenizer.token_text(token_id), logprob)  # of equal texts the more probable
        texts.setdefault(self._tokenizer.token_text(record.token_id), record.logprob)
        return texts

    def _advance(self, token_id: int) -> int:
        offset = self._num_chars
        self._num_chars += len(self._text.push((token_id,)))
        return offset
