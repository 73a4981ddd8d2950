"""The bytes that each token stands for: the ground on which decoding and streaming agree.

Two families of vocabularies have such bytes: byte-level BPE (each character of a token's name is one byte) and
SentencePiece with byte fallback (`▁` is a space, `<0x0A>` one byte). Source of the byte table: GPT-2's encoder.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tokenizers

_SPACE = "▁"


def _byte_level_table() -> Mapping[str, int]:
    """GPT-2's printable stand-in of each byte, reversed: printable Latin-1 is itself, the rest follows from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(rest)}


_BYTE_LEVEL = _byte_level_table()
_FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPieces:
    """How a family of vocabularies spells bytes."""

    is_byte_level: bool
    strips_first_space: bool = False
    """Encoding put a space before the text; decoding a whole text takes it off."""

    def to_bytes(self, name: str) -> bytes:
        """The bytes of an ordinary token; `name` is its entry in the vocabulary."""
        if not self.is_byte_level:
            return _FALLBACK.get(name) or name.replace(_SPACE, " ").encode()
        try:
            return bytes([_BYTE_LEVEL[character] for character in name])
        except KeyError:  # a token that was added as it is written
            return name.encode()

    def missing_bytes(self, names: Collection[str]) -> bytes:
        """The bytes that the vocabulary `names` cannot spell one by one; in a text they may count as no token."""
        alphabet = _BYTE_LEVEL if self.is_byte_level else {name: byte[0] for name, byte in _FALLBACK.items()}
        return bytes(sorted(byte for name, byte in alphabet.items() if name not in names))

    def longest(self, names: Iterable[str]) -> int:
        """The most bytes of text that an ordinary token of `names` stands for."""
        if self.is_byte_level:
            return max(map(len, names), default=0)
        return max((len(name.encode()) for name in names), default=0)  # `▁` as it is: a text may hold it, too


def pieces_of(backend: tokenizers.Tokenizer) -> TokenPieces | None:
    """The family that the decoder of `backend` belongs to; None: only the decoder itself knows."""
    if backend.decoder is None:
        return None
    return _pieces_of_decoder(json.loads(backend.decoder.__getstate__()))


def _pieces_of_decoder(decoder: Mapping[str, Any]) -> TokenPieces | None:
    if decoder["type"] == "ByteLevel":
        return TokenPieces(is_byte_level=True)
    if decoder["type"] != "Sequence":
        return None
    steps = list(decoder["decoders"])
    if len(steps) == 1:
        return _pieces_of_decoder(steps[0])
    if [step["type"] for step in steps[:3]] != ["Replace", "ByteFallback", "Fuse"]:
        return None
    if steps[0]["pattern"] != {"String": _SPACE} or steps[0]["content"] != " ":
        return None
    if not steps[3:]:
        return TokenPieces(is_byte_level=False)
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return TokenPieces(is_byte_level=False, strips_first_space=True) if steps[3:] == [strip] else None
