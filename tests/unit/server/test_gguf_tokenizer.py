"""Tokenizers from GGUF metadata."""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from server.gguf_tokenizer import load_gguf_tokenizer, parts_from_metadata
from server.pre_tokenizers import PRE_TOKENIZERS
from server.tokenizer import Tokenizer
from server.tokenizer_parts import TokenizerError
from tests.tiny_tokenizers import (
    BOS,
    EOS,
    IM_END,
    IM_START,
    SOURCE,
    gpt2_metadata,
    spm_metadata,
    tiny_gpt2,
    tiny_spm,
)

SAMPLES = (
    "",
    "the quick brown fox",
    "don't you'll WE'RE",
    "  two  spaces\n\n\ttab \n",
    "pi is 3.14159, year 2024",
    "ünïcödé 漢字 한국어 😀 👨‍👩‍👧 \u0301",
    "a\x00b\x1b[0m",
)


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, parse_special=True)


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_gives_the_text_back(pre: str) -> None:
    tokenizer = tiny_gpt2(pre=pre)
    for text in SAMPLES:
        assert tokenizer.decode(_plain(tokenizer, text), skip_special_tokens=False) == text


def test_smollm_cuts_numbers_into_digits() -> None:
    tokenizer = tiny_gpt2(pre="smollm")
    assert _texts(tokenizer, _plain(tokenizer, "2024")) == ["2", "0", "2", "4"]
    assert len(_plain(tiny_gpt2(pre="gpt-2"), "2024")) < 4, "the tiny vocabulary has a merge inside 2024"


def test_smollm_cuts_as_the_models_own_tokenizer_does() -> None:
    """The original is Digits(individual_digits), then ByteLevel with GPT-2's pattern."""
    ours = parts_from_metadata(SOURCE, gpt2_metadata(pre="smollm")).backend
    original = Backend(ours.model)
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    rng = random.Random(5)
    for _ in range(500):
        text = "".join(rng.choice("abs 019 \n\t'tre.,<|é漢½Ⅷ²😀\u0301\u00a0\u3000٣") for _ in range(16))
        assert ours.encode(text, add_special_tokens=False).ids == original.encode(text).ids


def test_llama3_takes_up_to_three_digits_and_whole_words_before_merges() -> None:
    metadata = gpt2_metadata(pre="llama-bpe")
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [*tokens, "1234", "123", "Ġzebra"]  # of no merge
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1, 1, 1]  # type: ignore[misc]
    tokenizer = Tokenizer(parts_from_metadata(SOURCE, metadata))
    texts = _texts(tokenizer, _plain(tokenizer, "12345 zebra"))
    assert texts[0] == "123"
    assert texts[-1] == " zebra"


def test_unknown_pre_tokenizer_warns_and_still_works(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = tiny_gpt2(pre="brand-new")
    assert "brand-new" in caplog.text and "smollm" in caplog.text
    assert tokenizer.decode(_plain(tokenizer, "a 12 b"), skip_special_tokens=False) == "a 12 b"


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_spm])
def test_control_tokens_are_ids_only_where_asked(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    text = "hello<|im_end|>hello</s>"
    parsed = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    assert IM_END in parsed and EOS in parsed
    plain = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert not tokenizer.special_token_ids.intersection(plain)
    assert tokenizer.decode(plain, skip_special_tokens=True) == text


def test_user_defined_tokens_are_tokens_in_every_text() -> None:
    tokenizer = tiny_gpt2()
    for parse_special in (True, False):
        ids = tokenizer.encode("<think>", add_special_tokens=False, parse_special=parse_special)
        assert _texts(tokenizer, ids) == ["<think>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>"


@pytest.mark.parametrize(("make", "default"), [(gpt2_metadata, False), (spm_metadata, True)])
def test_begin_token_follows_the_file(make: object, default: bool) -> None:
    metadata = make()  # type: ignore[operator]
    metadata.pop("tokenizer.ggml.add_bos_token", None)
    for value, expected in ((None, default), (True, True), (False, False)):
        said = metadata if value is None else metadata | {"tokenizer.ggml.add_bos_token": value}
        tokenizer = Tokenizer(parts_from_metadata(SOURCE, said))
        assert tokenizer.adds_bos is expected
        ids = tokenizer.encode("hello", add_special_tokens=True, parse_special=True)
        assert (ids[:1] == [BOS]) is expected
        assert BOS not in tokenizer.encode("hello", add_special_tokens=False, parse_special=True)


def test_end_token_is_added_where_the_file_says_so() -> None:
    tokenizer = tiny_gpt2(add_eos_token=True, add_bos_token=True)
    ids = tokenizer.encode("hello", add_special_tokens=True, parse_special=True)
    assert (ids[0], ids[-1]) == (BOS, EOS)


@pytest.mark.parametrize(("architecture", "eats"), [("llama", False), ("phi3", True)])
def test_special_tokens_of_phi3_swallow_the_space_behind_them(architecture: str, eats: bool) -> None:
    tokenizer = Tokenizer(parts_from_metadata(SOURCE, {**spm_metadata(), "general.architecture": architecture}))
    ids = tokenizer.encode("<|im_start|>\nhello<s>\nhello", add_special_tokens=False, parse_special=True)
    assert _texts(tokenizer, ids) == [
        "<|im_start|>",
        *([" hello"] if eats else [" ", "\n", "hello"]),
        *["<s>", " ", "\n", "hello"],
    ]


def test_user_defined_spaces_are_tokens_before_anything_else() -> None:
    """As converters write Gemma's runs of spaces: plain ones, where the vocabulary has `▁`."""
    metadata = spm_metadata(add_space_prefix=False)
    for key, value in (("tokens", "   "), ("scores", -1000.0), ("token_type", 4)):
        metadata[f"tokenizer.ggml.{key}"] = [*metadata[f"tokenizer.ggml.{key}"], value]  # type: ignore[misc]
    tokenizer = Tokenizer(parts_from_metadata(SOURCE, metadata))
    ids = _plain(tokenizer, "hello   hello")
    assert _texts(tokenizer, ids) == ["hello", "   ", "hello"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello   hello"


def test_end_tokens_are_the_declared_and_the_end_of_turn() -> None:
    assert tiny_gpt2().eos_token_ids == (EOS, IM_END)
    assert tiny_gpt2(eot_token_id=IM_START).eos_token_ids == (EOS, IM_START, IM_END)


def test_named_tokens_are_texts() -> None:
    tokenizer = tiny_gpt2()
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.named_tokens["unk_token"] == "<unk>"


def test_token_id_outside_the_vocabulary_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = tiny_gpt2(eos_token_id=10**6)
    assert tokenizer.eos_token is None and "1000000" in caplog.text


def _oracle(metadata: Mapping[str, object], text: str) -> list[str]:
    """SentencePiece's BPE, as llama.cpp does it: join the neighbours that make the best piece, from the left."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    types: list[int] = metadata["tokenizer.ggml.token_type"]  # type: ignore[assignment]
    scores = {
        token: score
        for token, score, kind in zip(tokens, metadata["tokenizer.ggml.scores"], types, strict=True)  # type: ignore[call-overload]
        if kind == 1
    }
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [
            (-scores[left + right], index)
            for index, (left, right) in enumerate(itertools.pairwise(pieces))
            if left + right in scores
        ]
        if not joins:
            break
        index = heapq.nsmallest(1, joins)[0][1]
        pieces[index : index + 2] = [pieces[index] + pieces[index + 1]]
    return [
        name
        for piece in pieces
        for name in ([piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()])
    ]


def test_sentencepiece_merges_by_score_and_spells_the_rest_in_bytes() -> None:
    metadata = spm_metadata()
    backend = parts_from_metadata(SOURCE, metadata).backend
    rng = random.Random(11)
    for _ in range(300):
        text = "".join(rng.choice(["hello", "the", "world", " ", "l", "e", "é", "漢", "q", "imend"]) for _ in range(8))
        assert backend.encode(text, add_special_tokens=False).tokens == _oracle(metadata, text)


def test_sentencepiece_text_comes_back() -> None:
    tokenizer = tiny_spm()
    for text in SAMPLES:
        assert tokenizer.decode(_plain(tokenizer, text), skip_special_tokens=True) == text
    no_prefix = tiny_spm(add_space_prefix=False)
    assert _plain(no_prefix, "hello") != _plain(tokenizer, "hello")
    assert no_prefix.decode(_plain(no_prefix, " hello"), skip_special_tokens=True) == " hello"


def test_text_that_spells_a_byte_token_is_text() -> None:
    tokenizer = tiny_spm()
    assert tokenizer.decode(_plain(tokenizer, "<0x0A>"), skip_special_tokens=True) == "<0x0A>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "'rwkv'.*'gpt2' and 'llama'"),
        ({"tokens": []}, "no vocabulary"),
        ({"tokens": ["a", "a"]}, "not distinct"),
        ({"token_type": [1]}, "token types"),
        ({"merges": 3}, "merges is not a list"),
    ],
)
def test_contradictory_metadata_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        parts_from_metadata(SOURCE, gpt2_metadata(**changes))  # type: ignore[arg-type]


def test_a_chat_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.chat_template is of type int, it must be text"):
        parts_from_metadata(SOURCE, {**gpt2_metadata(), "tokenizer.chat_template": 3})


def test_merges_of_unknown_tokens_are_dropped() -> None:
    merges = [*gpt2_metadata()["tokenizer.ggml.merges"], "zz qq", "nonsense"]  # type: ignore[misc]
    tokenizer = tiny_gpt2(merges=merges)
    assert tokenizer.decode(_plain(tokenizer, "zzqq"), skip_special_tokens=True) == "zzqq"


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    metadata = gpt2_metadata()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_eos_token_id(EOS)
    writer.add_chat_template("{{ messages }} é")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_file_is_read(gguf_path: Path) -> None:
    assert load_gguf_tokenizer(gguf_path).chat_template == "{{ messages }} é"
    tokenizer = Tokenizer.load(gguf_path)
    assert tokenizer.eos_token_ids == (EOS, IM_END)
    assert tokenizer.vocab_size == len(gpt2_metadata()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [0, 3, 2000])
def test_what_is_wrong_with_a_file_is_an_error_of_the_tokenizer(gguf_path: Path, keep: int) -> None:
    gguf_path.write_bytes(gguf_path.read_bytes()[:keep])
    with pytest.raises(TokenizerError, match=r"tiny\.gguf: (cannot be read|not a GGUF file|truncated)"):
        load_gguf_tokenizer(gguf_path)


def test_the_header_is_read_without_torch(gguf_path: Path) -> None:
    """The HTTP process reads the tokenizer with it, and torch takes seconds to import."""
    code = (
        "import sys; from server.tokenizer import Tokenizer; Tokenizer.load(sys.argv[1]); "
        "print(sorted({'transformers', 'torch'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code, str(gguf_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30.0)
    assert done.stdout == "[]\n"
