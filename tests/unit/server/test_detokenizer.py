"""Streaming text from token ids: the cases; tests/property has the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.detokenizer import Detokenizer
from server.tokenizer import Tokenizer
from tests.tiny_tokenizers import EOS, tiny_gpt2, tiny_spm, tiny_word_piece

EMOJI = "🧑‍🚀 한국어 漫畫 👨‍👩‍👧"


def _pushes(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True, prefix: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, prefix_ids=prefix or [])
    return [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_spm])
def test_characters_split_over_tokens_are_never_half(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    ids = tokenizer.encode(EMOJI, add_special_tokens=False, parse_special=False)
    assert len(ids) > len(EMOJI), "the tiny vocabularies know no such character"
    pieces = _pushes(tokenizer, ids)
    assert "".join(pieces) == EMOJI
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_spm])
def test_token_limit_inside_a_character_ends_as_the_whole_text_does(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    ids = tokenizer.encode("a 👨‍👩‍👧", add_special_tokens=False, parse_special=False)
    for count in range(len(ids) + 1):
        *pushed, rest = _pushes(tokenizer, ids[:count])
        assert "\ufffd" not in "".join(pushed)
        assert "".join(pushed) + rest == tokenizer.decode(ids[:count], skip_special_tokens=True)


def test_special_tokens_are_shown_only_where_asked() -> None:
    for tokenizer in (tiny_gpt2(), tiny_spm()):
        ids = [*tokenizer.encode("hello", add_special_tokens=False, parse_special=False), EOS]
        assert "".join(_pushes(tokenizer, ids, skip=True)) == "hello"
        assert "".join(_pushes(tokenizer, ids, skip=False)) == "hello</s>"


def test_space_before_the_text_is_kept_behind_a_prompt() -> None:
    tokenizer = tiny_spm()
    ids = tokenizer.encode("hello", add_special_tokens=False, parse_special=False)
    assert "".join(_pushes(tokenizer, ids)) == "hello"
    assert "".join(_pushes(tokenizer, ids, prefix=ids)) == " hello"


def test_character_begun_in_the_prompt_is_finished() -> None:
    tokenizer = tiny_gpt2()
    ids = tokenizer.encode("x漢", add_special_tokens=False, parse_special=False)
    for cut in range(1, len(ids)):
        text = "".join(_pushes(tokenizer, ids[cut:], prefix=ids[:cut]))
        assert text == "漢", "the prompt's half is part of the character"


def test_vocabulary_without_bytes_is_decoded_with_context() -> None:
    tokenizer = tiny_word_piece()
    ids = tokenizer.encode("the foxes jumping, the fox", add_special_tokens=False, parse_special=False)
    pieces = _pushes(tokenizer, [*ids, 1])
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True) == "the foxes jumping, the fox"
    assert pieces[:3] == ["the", " fox", "es"]
    with_special = _pushes(tokenizer, [*ids, 1], skip=False)
    assert "".join(with_special) == "the foxes jumping, the fox [SEP]"


def test_long_run_of_skipped_tokens_is_not_kept() -> None:
    tokenizer = tiny_word_piece()
    assert "".join(_pushes(tokenizer, [2, *[1] * 100, 3])) == "the fox"
