"""Long texts made of pieces: as long as asked, alike for a seed, and different from their first words on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.words import WORDS, WordPool, head_words

POOL = WordPool("a")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**12), st.integers(0, 600))
def test_a_text_has_its_number_of_words_and_begins_like_a_shorter_one(number: int, num_words: int) -> None:
    words = POOL.text(number, num_words).split()
    assert len(words) == num_words
    assert set(words) <= set(WORDS)
    assert POOL.text(number, 700).split()[:num_words] == words


@pytest.mark.parametrize("num_words", [131_071, 131_072, 131_075, 131_076, 300_000])
def test_a_text_may_be_longer_than_the_pool(num_words: int) -> None:
    assert len(POOL.text(5, num_words).split(" ")) == num_words


def test_texts_of_other_numbers_begin_otherwise() -> None:
    heads = {tuple(POOL.text(number, 3).split()) for number in range(5000)}
    assert len(heads) == 5000
    assert len({tuple(head_words(number)) for number in range(5000)}) == 5000


def test_the_seed_decides() -> None:
    assert WordPool("a").text(7, 50) == POOL.text(7, 50)
    assert WordPool("b").text(7, 50) != POOL.text(7, 50)
