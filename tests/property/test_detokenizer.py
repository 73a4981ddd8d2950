"""However the token ids are cut into pushes, the text is the text of the whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.detokenizer import Detokenizer
from server.gguf_tokenizer import parts_from_metadata
from server.tokenizer import Tokenizer
from tests.tiny_tokenizers import SOURCE, gpt2_metadata, tiny_gpt2, tiny_spm

TOKENIZERS = {"gpt2": tiny_gpt2(), "spm": tiny_spm(), "spm_no_prefix": tiny_spm(add_space_prefix=False)}
TEXTS = st.lists(
    st.sampled_from(
        ["👨‍👩‍👧", "漢字", "한국어", "é", "e\u0301", " ", "\n", "the ", "</s>", "<im", "\x00", "\U0010ffff"]
    )
    | st.characters(exclude_categories=["Cs"], exclude_characters="▁"),  # SentencePiece cannot tell it from a space
    max_size=12,
).map("".join)


def _cut(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    edges = [0, *cuts, len(ids)]
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


def _stream(tokenizer: Tokenizer, pushes: list[list[int]], skip: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(ids) for ids in pushes), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_in_any_pushes_give_the_whole_text(name: str, data: Any, skip: bool) -> None:
    """Random ids: mostly invalid UTF-8."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=24))
    assert "".join(_stream(tokenizer, _cut(data, ids), skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), text=TEXTS)
def test_encoded_text_comes_back_without_a_replacement_character(name: str, data: Any, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    pieces = _stream(tokenizer, _cut(data, ids), True)
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_decoding_equals_the_librarys(data: Any, skip: bool) -> None:
    """Where the library's decoder is byte-level: for any ids."""
    backend = parts_from_metadata(SOURCE, gpt2_metadata()).backend
    tokenizer = TOKENIZERS["gpt2"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=24))
    assert tokenizer.decode(ids, skip_special_tokens=skip) == backend.decode(ids, skip_special_tokens=skip)
