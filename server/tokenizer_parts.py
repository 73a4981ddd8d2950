"""What a tokenizer file says, whatever its format: the record that the readers fill and `Tokenizer` is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import tokenizers


class TokenizerError(ValueError):
    """A tokenizer cannot be made from the given file or directory; the message names it and says what is wrong."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A tokenizer as read from a GGUF file or a Hugging Face directory."""

    source: Path
    backend: tokenizers.Tokenizer
    named_tokens: Mapping[str, str]
    """`bos_token`, `eos_token`, ... and their text; what chat templates are given under these names."""
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    adds_bos: bool | None = None
    """None: the post-processor of `backend` decides."""
    adds_eos: bool = False


def checked_template(value: object, source: str) -> str | None:
    """A chat template; None where there is none, or an empty one.

    Raises:
        TokenizerError: it is no text.
    """
    if value is None or isinstance(value, str):
        return value or None
    raise TokenizerError(f"{source} is of type {type(value).__name__}, it must be text; correct or remove it")


def make_backend(source: Path, tokenizer_json: str) -> tokenizers.Tokenizer:
    """The `tokenizers` object of a tokenizer.json's text.

    Raises:
        TokenizerError: the library refuses it.
    """
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{source}: not a tokenizer that the tokenizers library can read: {error}") from error


def make_bpe(
    source: Path, vocab: dict[str, int], merges: list[tuple[str, str]], *, ignore_merges: bool, byte_fallback: bool
) -> tokenizers.Tokenizer:
    """A BPE without normaliser, pre-tokenizer and decoder. Token ids are the values of `vocab`.

    Raises:
        TokenizerError: the library refuses vocabulary or merges.
    """
    try:
        model = tokenizers.models.BPE(
            vocab=vocab, merges=merges, ignore_merges=ignore_merges, byte_fallback=byte_fallback, fuse_unk=byte_fallback
        )
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{source}: its vocabulary and merges do not fit each other: {error}") from error
    return tokenizers.Tokenizer(model)
