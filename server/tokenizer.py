"""Text to token ids and back."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers import AddedToken

from server.gguf_tokenizer import load_gguf_tokenizer
from server.hf_tokenizer import load_hf_tokenizer
from server.special_tokens import NONCHARACTERS, SpecialToken, SpecialTokens
from server.token_pieces import TokenPieces, pieces_of
from server.tokenizer_parts import TokenizerParts

_SURROGATE_WINDOW_CHARS = 1 << 14


class PromptTooLong(ValueError):
    """A text has more tokens than allowed."""

    def __init__(self, min_num_tokens: int, max_tokens: int, *, is_exact: bool) -> None:
        number = str(min_num_tokens) if is_exact else f"at least {min_num_tokens}"
        super().__init__(f"the prompt has {number} tokens, the limit is {max_tokens}; shorten it")
        self.min_num_tokens = min_num_tokens
        """Its number of tokens, or fewer where it was refused before encoding."""
        self.max_tokens = max_tokens
        self.is_exact = is_exact


class Tokenizer:
    """An immutable tokenizer; every method may be called from any thread.

    Long texts do not hold the interpreter: the work is done by `encode_batch_fast`, which releases it (`encode` does
    not), in time linear in the text.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._added: Mapping[int, AddedToken] = parts.backend.get_added_tokens_decoder()
        special = [SpecialToken.of(token_id, token) for token_id, token in self._added.items() if token.special]
        self.special_tokens = SpecialTokens(special)
        self.special_token_ids = frozenset(token.token_id for token in special)
        self._anchor = NONCHARACTERS[0] + secrets.token_hex(16)
        self._plain = _without_special(parts.backend, self._added, self._anchor)
        self.pieces: TokenPieces | None = pieces_of(parts.backend)
        self.vocab_size: int = parts.backend.get_vocab_size(with_added_tokens=True)
        self.named_tokens: Mapping[str, str] = dict(parts.named_tokens)
        self.bos_token = parts.named_tokens.get("bos_token")
        self.eos_token = parts.named_tokens.get("eos_token")
        self.unk_token_id = self._id_of(parts.named_tokens.get("unk_token"))
        self.eos_token_ids = parts.eos_token_ids
        self.chat_template = parts.chat_template
        bos_ids, eos_ids = _ids(self._id_of(self.bos_token)), _ids(self._id_of(self.eos_token))
        self._begin = bos_ids if parts.adds_bos else []
        self._end = eos_ids if parts.adds_eos else []
        self.adds_bos = bool(bos_ids) and self.encode("", add_special_tokens=True, parse_special=True)[:1] == bos_ids
        vocabulary = parts.backend.get_vocab(with_added_tokens=True)
        self._missing_bytes = self.pieces.missing_bytes(vocabulary) if self.pieces is not None else b""
        self._max_bytes_per_token = self._measure_bytes_per_token(vocabulary)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The tokenizer of a GGUF file, or of a directory with tokenizer.json.

        Raises:
            TokenizerError: there is none, or it is of an unknown kind.
            OSError: a file cannot be read.
        """
        path = Path(path)
        return cls(load_hf_tokenizer(path) if path.is_dir() else load_gguf_tokenizer(path))

    def encode(
        self, text: str, *, add_special_tokens: bool, parse_special: bool, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of `text`; a lone surrogate counts as U+FFFD.

        Args:
            add_special_tokens: put the begin (and end) token around it where the model wants them.
            parse_special: a special token's text is that token; otherwise it is encoded like any other text.
            max_tokens: how many ids there may be.

        Raises:
            PromptTooLong: there are more than `max_tokens`; where the length of the text shows it, nothing is encoded.
        """
        self.check_length(text, max_tokens)
        backend = self._backend if parse_special else self._plain
        ids = _encode(backend, replace_surrogates(text), add_special_tokens, max_tokens)
        return [*self._begin, *ids, *self._end] if add_special_tokens else ids

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of `text` as plain text that stands behind a special token, not at the start of a prompt."""
        return _encode(self._plain, self._anchor + replace_surrogates(text), False, None)[1:]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """The text of `ids`: their bytes read as UTF-8, with U+FFFD for what is none. Unknown ids are skipped."""
        if self.pieces is None:
            known = [token_id for token_id in ids if self._is_known(token_id)]
            text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
            return text
        text = self.join_bytes(ids, skip_special_tokens=skip_special_tokens).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.pieces.strips_first_space else text

    def join_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool) -> bytes:
        """The bytes of `ids` side by side."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in skipped])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id outside the vocabulary."""
        if token_id in self._added:
            return self._added[token_id].content.encode()
        if not self._is_known(token_id):
            return b""
        if self.pieces is None:
            alone: str = self._backend.decode([token_id], skip_special_tokens=False)
            return alone.encode()
        name = self._backend.id_to_token(token_id)
        return b"" if name is None else self.pieces.to_bytes(name)

    def token_text(self, token_id: int) -> str:
        """A token's text for people; a part of a character is written as `bytes:\\xe2\\x82`, as OpenAI does."""
        token = self.token_bytes(token_id)
        try:
            return token.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)

    def min_num_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`, without encoding it: as if all were of the longest kind.

        For refusing a text that is far too long before spending time on it. 0 where the vocabulary has no such bound.
        """
        if self._max_bytes_per_token is None:
            return 0
        num_bytes = len(text.encode("utf-8", errors="replace").translate(None, self._missing_bytes))
        return -(-num_bytes // self._max_bytes_per_token)

    def check_length(self, text: str, max_tokens: int | None) -> None:
        """Raises PromptTooLong: `text` is certain to have more than `max_tokens` tokens."""
        if max_tokens is None or len(text) <= max_tokens:
            return
        at_least = self.min_num_tokens(text)
        if at_least > max_tokens:
            raise PromptTooLong(at_least, max_tokens, is_exact=False)

    def _is_known(self, token_id: int) -> bool:
        return 0 <= token_id < 2**32

    def _id_of(self, text: str | None) -> int | None:
        token_id: int | None = self._backend.token_to_id(text) if text is not None else None
        return token_id

    def _measure_bytes_per_token(self, vocabulary: Collection[str]) -> int | None:
        """The most bytes of text that one token can stand for, missing bytes apart; None: no such bound."""
        shrink = _normalizer_shrink(self._backend)
        if self.pieces is None or shrink is None:
            return None
        if self._missing_bytes and not self.pieces.is_byte_level:
            return None  # what has no byte tokens may be one unknown token, however long
        if any(token.lstrip or token.rstrip for token in self._added.values()):
            return None  # such a token swallows any amount of white space
        added = (len(token.content.encode()) for token in self._added.values())
        return max([self.pieces.longest(vocabulary), *added]) * shrink


def replace_surrogates(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate; a pair becomes the character that it encodes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(_without_surrogates, _windows(text)))
    return text


def _windows(text: str) -> Iterator[str]:
    """Pieces of `text`, none of which ends inside a surrogate pair: the conversion holds the interpreter."""
    start = 0
    while start < len(text):
        end = start + _SURROGATE_WINDOW_CHARS
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        yield text[start:end]
        start = end


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _encode(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool, max_tokens: int | None) -> list[int]:
    encoding = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
    if max_tokens is not None and len(encoding) > max_tokens:  # before a list is made of what may be millions
        raise PromptTooLong(len(encoding), max_tokens, is_exact=True)
    ids: list[int] = encoding.ids
    return ids


def _ids(token_id: int | None) -> list[int]:
    return [] if token_id is None else [token_id]


def _without_special(
    backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken], anchor: str
) -> tokenizers.Tokenizer:
    """A twin that shares the model and encodes special tokens as plain text; `anchor` is one more token of it."""
    twin = tokenizers.Tokenizer(backend.model)
    _copy_stages(backend, twin)
    twin.add_tokens([added[token_id] for token_id in sorted(added)])
    if {token_id: token.content for token_id, token in twin.get_added_tokens_decoder().items()} != {
        token_id: token.content for token_id, token in added.items()
    }:  # ids with gaps: only the whole description keeps them
        twin = tokenizers.Tokenizer.from_str(backend.to_str())
    twin.encode_special_tokens = True
    twin.add_tokens([AddedToken(anchor, special=False, normalized=False)])
    return twin


def _copy_stages(source: tokenizers.Tokenizer, target: tokenizers.Tokenizer) -> None:
    if source.normalizer is not None:
        target.normalizer = source.normalizer
    if source.pre_tokenizer is not None:
        target.pre_tokenizer = source.pre_tokenizer
    if source.post_processor is not None:
        target.post_processor = source.post_processor


def _normalizer_shrink(backend: tokenizers.Tokenizer) -> int | None:
    """By what factor normalising may shorten a text, in bytes; None: by any."""
    if backend.normalizer is None:
        return 1
    state = json.loads(backend.normalizer.__getstate__())
    steps: Sequence[Mapping[str, object]] = state["normalizers"] if state["type"] == "Sequence" else [state]
    factor = 1
    for step in steps:
        if step["type"] == "NFC":
            factor *= 3  # the Kelvin sign: three bytes become one
        elif step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"] == "▁":
            continue  # never shorter
        elif step["type"] != "Prepend":
            return None
    return factor
