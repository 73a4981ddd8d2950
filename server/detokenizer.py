"""Token ids to text, piece by piece: the pieces side by side are the text of the whole."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from server.tokenizer import Tokenizer

_PREFIX_TOKENS = 8
"""How many tokens before the first new one can matter: a character has at most four bytes."""
_MAX_HELD_TOKENS = 32
"""A decoder that ends in U+FFFD for so many tokens is not in the middle of a character."""


class Detokenizer:
    """Text of a growing list of token ids.

    What `push` returns never ends in half a character; the joined returns of all pushes and of `flush` equal
    `tokenizer.decode` of all ids, however they were cut. With `prefix_ids` they equal what the ids add to the text of
    the prefix. Each token costs the same, however long the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, prefix_ids: Sequence[int] = ()) -> None:
        kind = _DecoderDetokenizer if tokenizer.pieces is None else _ByteDetokenizer
        self._decoder: _ByteDetokenizer | _DecoderDetokenizer = kind(tokenizer, skip_special_tokens)
        if prefix_ids:
            self._decoder.push(prefix_ids[-_PREFIX_TOKENS:])
            self._decoder.start_after_prefix()

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        return self._decoder.push(ids)

    def flush(self) -> str:
        """The rest; an unfinished character is U+FFFD, as in the text of the whole."""
        return self._decoder.flush()


class _ByteDetokenizer:
    """For vocabularies whose tokens are bytes."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_next = tokenizer.pieces is not None and tokenizer.pieces.strips_first_space

    def start_after_prefix(self) -> None:
        self._strip_next = False

    def push(self, ids: Sequence[int]) -> str:
        return self._text(ids, final=False)

    def flush(self) -> str:
        return self._text((), final=True)

    def _text(self, ids: Sequence[int], *, final: bool) -> str:
        new_bytes = self._tokenizer.join_bytes(ids, skip_special_tokens=self._skip_special_tokens)
        text = self._utf8.decode(new_bytes, final=final)
        if text and self._strip_next:
            self._strip_next = False
            return text.removeprefix(" ")
        return text


class _DecoderDetokenizer:
    """For vocabularies that only their decoder understands: decode with the last text for context, keep what is new."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._context: list[int] = []  # its text was returned
        self._held: list[int] = []

    def start_after_prefix(self) -> None:
        self._context += self._held
        self._held = []

    def push(self, ids: Sequence[int]) -> str:
        self._held += [token_id for token_id in ids if token_id not in self._skipped]
        text = self._new_text()
        is_open = not text or text.endswith("\ufffd")
        return "" if is_open and len(self._held) <= _MAX_HELD_TOKENS else self._take(text)

    def flush(self) -> str:
        return self._take(self._new_text())

    def _take(self, text: str) -> str:
        self._context, self._held = self._held[-_PREFIX_TOKENS:], []
        return text

    def _new_text(self) -> str:
        before, after = self._decode(self._context), self._decode(self._context + self._held)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
