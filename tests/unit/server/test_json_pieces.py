"""JSON in pieces equals JSON in one piece, and what is kept of it is nothing to the garbage collector."""

from __future__ import annotations

import json

import msgspec
import pytest

from server.json_pieces import BLOCK_BYTES, JsonItems, array_pieces, blocks, object_pieces, raw_value


def _items(*parts: list[object]) -> JsonItems:
    items = JsonItems()
    for part in parts:
        items.add(part)
    return items


def test_items_added_in_parts_are_one_array() -> None:
    parts: tuple[list[object], ...] = ([1, None, "a,]"], [], [{"b": [2.5]}], ["漢"])
    assert json.loads(b"".join(_items(*parts).pieces())) == [item for part in parts for item in part]
    assert b"".join(_items().pieces()) == b"[]"


def test_objects_and_arrays_nest() -> None:
    inner = [object_pieces({"index": index}, "items", _items([index]).pieces()) for index in range(3)]
    whole = b"".join(object_pieces({"id": "x"}, "choices", array_pieces(inner)))
    assert json.loads(whole) == {"id": "x", "choices": [{"index": index, "items": [index]} for index in range(3)]}
    assert json.loads(b"".join(array_pieces(()))) == []


def test_pieces_may_stand_inside_of_an_encoded_value() -> None:
    assert msgspec.json.encode({"a": raw_value(_items([1], [2]).pieces())}) == b'{"a":[1,2]}'


@pytest.mark.parametrize(
    "sizes", [(), (0,), (1, 2, 3), (BLOCK_BYTES,), (BLOCK_BYTES - 1, 1, 1), (3 * BLOCK_BYTES + 5, 7)]
)
def test_blocks_have_the_same_bytes_and_one_size(sizes: tuple[int, ...]) -> None:
    pieces = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    made = list(blocks(pieces))
    assert b"".join(made) == b"".join(pieces)
    assert all(len(block) == BLOCK_BYTES for block in made[:-1])
    assert all(made)
