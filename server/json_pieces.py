"""JSON of any size, put together from encoded pieces: what is kept is bytes, which the garbage collector never walks.

An answer with a million log-probabilities would otherwise be millions of objects, walked again and again while they
are collected, and encoded in one go at the end; every stream stands still meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

Piece = bytes | bytearray
_ENCODER = msgspec.json.Encoder()
BLOCK_BYTES = 128 * 1024


class JsonItems:
    """The items of a JSON array in the making, encoded."""

    __slots__ = ("_encoded",)

    def __init__(self) -> None:
        self._encoded = bytearray()

    def add(self, items: Sequence[Any]) -> None:
        """Append them."""
        if items:
            if self._encoded:
                self._encoded += b","
            self._encoded += memoryview(_ENCODER.encode(items))[1:-1]

    def pieces(self) -> Iterator[Piece]:
        """The array; the items are not copied."""
        yield b"["
        yield self._encoded
        yield b"]"


def object_pieces(fields: dict[str, Any], last: str, value: Iterable[Piece]) -> Iterator[Piece]:
    """A JSON object of `fields`, at least one, and after them the field `last`, whose value comes in pieces."""
    yield _ENCODER.encode(fields)[:-1] + b"," + _ENCODER.encode(last) + b":"
    yield from value
    yield b"}"


def array_pieces(items: Iterable[Iterable[Piece]]) -> Iterator[Piece]:
    """A JSON array of items that come in pieces."""
    yield b"["
    for index, item in enumerate(items):
        if index:
            yield b","
        yield from item
    yield b"]"


def raw_value(pieces: Iterable[Piece]) -> msgspec.Raw:
    """The pieces as a value inside of something that is encoded later."""
    return msgspec.Raw(b"".join(pieces))


def blocks(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """The same bytes in blocks of `BLOCK_BYTES`, the last one shorter."""
    block = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        start = 0
        while len(block) + len(view) - start >= BLOCK_BYTES:
            end = start + BLOCK_BYTES - len(block)
            block += view[start:end]
            yield bytes(block)
            block.clear()
            start = end
        block += view[start:]
    if block:
        yield bytes(block)
