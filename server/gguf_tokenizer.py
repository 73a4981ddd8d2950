"""A tokenizer from the metadata of a GGUF file, as llama.cpp reads it.

Two kinds exist here: `gpt2` (byte-level BPE, cut into words by `tokenizer.ggml.pre`) and `llama` (SentencePiece BPE:
spaces become `▁`, merges follow from the scores, characters outside the vocabulary become byte tokens).
Source: llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, normalizers

from engine.model_error import ModelError
from server.pre_tokenizers import PRE_TOKENIZERS, build_pre_tokenizer
from server.tokenizer_parts import TokenizerError, TokenizerParts, checked_template, make_bpe

if TYPE_CHECKING:
    from engine.gguf_header import GGUFValue

logger = logging.getLogger(__name__)


class TokenType(enum.IntEnum):
    """Entries of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_END_TOKENS = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|end_of_turn|>"})
"""End of a turn: generation stops there also where only the end of the text is declared."""
_NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # the specification's own spelling
    "mask_token": "mask_token_id",
}
_SPACE = "▁"
_PHI3_KEEP_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi-3's other added tokens swallow the white space behind them, which no entry of its files says; Phi-4-mini, of the
same architecture with another tokenizer, has none that do."""


def load_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Read the tokenizer and the chat template of the GGUF file at `path`.

    Raises:
        TokenizerError: no GGUF, no tokenizer in it, one of an unknown kind, or one that contradicts itself.
    """
    from engine.gguf_header import read_gguf_header  # takes 0.2 s, and other tokenizers have no need of it

    try:
        metadata = read_gguf_header(path).metadata
    except ModelError as error:
        raise TokenizerError(str(error)) from error
    return parts_from_metadata(path, metadata)


def parts_from_metadata(source: Path, metadata: Mapping[str, GGUFValue]) -> TokenizerParts:
    """The tokenizer that `metadata` describes; `source` is for messages.

    Raises:
        TokenizerError: see `load_gguf_tokenizer`.
    """
    vocabulary = _Vocabulary(source, metadata)
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        backend, default_adds_bos = _byte_level_bpe(vocabulary)
    elif model == "llama":
        backend, default_adds_bos = _sentencepiece_bpe(vocabulary), True
    else:
        raise TokenizerError(f"{source}: its tokenizer is of the kind {model!r}; known are 'gpt2' and 'llama'")
    backend.add_tokens(vocabulary.added_tokens())
    return TokenizerParts(
        source=source,
        backend=backend,
        named_tokens=vocabulary.named_tokens(),
        eos_token_ids=vocabulary.eos_token_ids(),
        chat_template=checked_template(metadata.get("tokenizer.chat_template"), f"{source}: tokenizer.chat_template"),
        adds_bos=vocabulary.flag("add_bos_token", default_adds_bos),
        adds_eos=vocabulary.flag("add_eos_token", False),
    )


class _Vocabulary:
    """The checked lists of `tokenizer.ggml.*`."""

    def __init__(self, source: Path, metadata: Mapping[str, GGUFValue]) -> None:
        self.source = source
        self._metadata = metadata
        self.tokens = self._strings("tokens")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if not self.tokens:
            raise TokenizerError(f"{source}: it holds no vocabulary (tokenizer.ggml.tokens)")
        if len(self.ids) < len(self.tokens):
            raise TokenizerError(
                f"{source}: its {len(self.tokens)} tokens are not distinct: only {len(self.ids)} differ"
            )
        self.types = self._numbers("token_type") or [TokenType.NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise TokenizerError(f"{source}: {len(self.tokens)} tokens but {len(self.types)} token types")

    def _strings(self, key: str) -> list[str]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list):
            raise TokenizerError(f"{self.source}: tokenizer.ggml.{key} is not a list")
        return [str(item) for item in value]

    def _numbers(self, key: str) -> list[float]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list) or any(isinstance(item, str) for item in value[:1]):
            raise TokenizerError(f"{self.source}: tokenizer.ggml.{key} is not a list of numbers")
        return [float(item) for item in value]

    def text(self, key: str) -> str:
        return str(self._metadata.get(f"tokenizer.ggml.{key}", ""))

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._metadata.get(f"tokenizer.ggml.{key}", default))

    def scores(self) -> list[float]:
        scores = self._numbers("scores")
        if len(scores) != len(self.tokens):
            raise TokenizerError(f"{self.source}: {len(self.tokens)} tokens but {len(scores)} scores")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """Merges between tokens of the vocabulary; a space inside the first part is not a separator."""
        merges = []
        for merge in self._strings("merges"):
            cut = merge.find(" ", 1)
            left, right = merge[:cut], merge[cut + 1 :]
            if cut > 0 and left in self.ids and right in self.ids and left + right in self.ids:
                merges.append((left, right))
        return merges

    def of_type(self, *types: TokenType) -> set[str]:
        return {token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types}

    def named_tokens(self) -> dict[str, str]:
        named = {}
        for name, key in _NAMED_IDS.items():
            token_id = self._id(key)
            if token_id is not None:
                named[name] = self.tokens[token_id]
        return named

    def eos_token_ids(self) -> tuple[int, ...]:
        """The declared end tokens, then those that are known by their text."""
        declared = [self._id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
        known = [self.ids[token] for token in sorted(_END_TOKENS & self.of_type(TokenType.CONTROL))]
        return tuple(dict.fromkeys(token_id for token_id in [*declared, *known] if token_id is not None))

    def _id(self, key: str) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, int):
            return None
        if not 0 <= value < len(self.tokens):
            logger.warning("%s: %s is %d, outside its %d tokens: ignored", self.source, key, value, len(self.tokens))
            return None
        return value

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are cut out of the text before anything else, in the order of their ids."""
        added = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        is_phi3 = (self._metadata.get("general.architecture"), self.text("model")) == ("phi3", "llama")
        return [
            AddedToken(
                token,
                special=kind != TokenType.USER_DEFINED,
                normalized=False,
                rstrip=is_phi3 and token not in _PHI3_KEEP_SPACE,
            )
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in added and token.strip(_SPACE)  # runs of spaces come out of merges
        ]


def _byte_level_bpe(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """Returns the tokenizer and whether it adds the begin token by default."""
    name = vocabulary.text("pre")
    family = PRE_TOKENIZERS.get(name)
    if family is None:
        logger.warning(
            "%s: unknown pre-tokenizer %r (tokenizer.ggml.pre), 'default' is used: numbers and punctuation may be "
            "cut otherwise than the model learnt; known are %s",
            vocabulary.source,
            name,
            ", ".join(sorted(PRE_TOKENIZERS)),
        )
        family = PRE_TOKENIZERS["default"]
    backend = make_bpe(
        vocabulary.source,
        vocabulary.ids,
        vocabulary.merges(),
        ignore_merges=family.ignore_merges,
        byte_fallback=False,
    )
    backend.pre_tokenizer = build_pre_tokenizer(family)
    backend.decoder = decoders.ByteLevel()
    return backend, family.adds_bos


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> Tokenizer:
    backend = make_bpe(
        vocabulary.source, vocabulary.ids, _merges_by_score(vocabulary), ignore_merges=False, byte_fallback=True
    )
    adds_space = vocabulary.flag("add_space_prefix", True)
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(_SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges that SentencePiece implies: every way to join two pieces into one, the best score first.

    Control, unknown and byte tokens never come out of a merge: a text that spells them is plain text.
    """
    skipped = vocabulary.of_type(TokenType.BYTE) | {token.content for token in vocabulary.added_tokens()}
    pieces = vocabulary.ids.keys() - skipped
    ranked = []
    for token, score in zip(vocabulary.tokens, vocabulary.scores(), strict=True):
        if token in skipped:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                ranked.append((-score, -len(left), -len(right), left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
