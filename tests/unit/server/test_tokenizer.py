"""Tokenizers from a Hugging Face directory, and what holds for every tokenizer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from server.gguf_tokenizer import parts_from_metadata
from server.special_tokens import SpecialToken, SpecialTokens
from server.tokenizer import Tokenizer, replace_surrogates
from server.tokenizer_parts import TokenizerError, TokenizerParts
from tests.tiny_tokenizers import (
    BOS,
    CONTROL,
    EOS,
    IM_END,
    SOURCE,
    gpt2_metadata,
    tiny_gpt2,
    tiny_spm,
    tiny_word_piece,
)

ROOT = Path(__file__).resolve().parents[3]


def _backend() -> Backend:
    """As tokenizer.json of a model of the field, end token not marked as special, begin token by post-processor."""
    tokens: Any = gpt2_metadata()["tokenizer.ggml.tokens"]
    backend = Backend(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return backend


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    _backend().save(str(tmp_path / "tokenizer.json"))
    _write(tmp_path, "tokenizer_config.json", bos_token="<s>", eos_token={"content": "</s>"}, chat_template="config")
    return tmp_path


def _write(directory: Path, name: str, **values: object) -> None:
    (directory / name).write_text(json.dumps(values))


def test_directory_says_special_tokens_and_begin_token(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template) == ("<s>", "</s>", "config")
    assert tokenizer.adds_bos
    assert tokenizer.encode("a</s>", add_special_tokens=True, parse_special=True)[0] == BOS
    assert EOS in tokenizer.special_token_ids, "named in the configuration, not marked in tokenizer.json"
    assert EOS not in tokenizer.encode("a</s>", add_special_tokens=False, parse_special=False)


@pytest.mark.parametrize(("listed", "expected"), [(7, (7, EOS)), ([9, EOS, 8], (9, EOS, 8)), (None, (EOS,))])
def test_end_tokens_may_be_a_list(directory: Path, listed: object, expected: tuple[int, ...]) -> None:
    _write(directory, "generation_config.json", eos_token_id=listed)
    assert Tokenizer.load(directory).eos_token_ids == expected


def test_end_tokens_of_the_model_configuration_count_where_no_other_are(directory: Path) -> None:
    _write(directory, "config.json", eos_token_id=[5])
    assert Tokenizer.load(directory).eos_token_ids == (5, EOS)


def test_additional_special_tokens_are_special(directory: Path) -> None:
    _write(directory, "tokenizer_config.json", additional_special_tokens=["<|im_end|>", {"content": "[INST]"}])
    tokenizer = Tokenizer.load(directory)
    assert {CONTROL.index("<|im_end|>"), CONTROL.index("[INST]")} <= tokenizer.special_token_ids
    assert IM_END not in tokenizer.encode("<|im_end|>", add_special_tokens=False, parse_special=False)


def test_template_file_comes_before_the_configuration(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(directory).chat_template == "file"


def test_of_named_templates_the_default_is_taken(directory: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    _write(directory, "tokenizer_config.json", chat_template=named)
    assert Tokenizer.load(directory).chat_template == "d"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{}", r"tokenizer\.json: not a tokenizer"),
        ("tokenizer.json", "{", r"tokenizer\.json: not a tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not valid JSON"),
        ("tokenizer_config.json", "[]", "a JSON object was expected"),
        (
            "tokenizer_config.json",
            '{"chat_template": 5}',
            r"config\.json: chat_template is of type int, it must be",
        ),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default", "template": {}}]}',
            "is of type dict",
        ),
    ],
)
def test_broken_file_is_named(directory: Path, name: str, text: str, message: str) -> None:
    (directory / name).write_text(text)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(directory)


def test_a_template_file_that_holds_no_text_is_named(directory: Path) -> None:
    _write(directory, "tokenizer_config.json", bos_token="<s>")
    _write(directory, "chat_template.json", chat_template=True)
    with pytest.raises(TokenizerError, match=r"chat_template\.json: chat_template is of type bool, it must be text"):
        Tokenizer.load(directory)


def test_loading_imports_neither_transformers_nor_torch(directory: Path) -> None:
    code = (
        "import sys; from server.tokenizer import Tokenizer; Tokenizer.load(sys.argv[1]); "
        "assert not {'transformers', 'torch', 'gguf'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(directory)], cwd=ROOT, check=True, timeout=60)


def test_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_path_to_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"absent\.gguf: cannot be read"):
        Tokenizer.load(tmp_path / "absent.gguf")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é", "plain é"),
        ("a\ud83db", "a\ufffdb"),
        ("\ude00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00x\ude00", "\ufffd😀x\ufffd"),
    ],
)
def test_lone_surrogates_become_the_replacement_character(text: str, expected: str) -> None:
    assert replace_surrogates(text) == expected
    for tokenizer in (tiny_gpt2(), tiny_spm()):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected


def test_surrogates_in_long_texts_are_replaced_window_by_window() -> None:
    text = "a" + "\ud83d\ude00" * 30_000 + "\ud83d"
    assert replace_surrogates(text) == "a" + "😀" * 30_000 + "\ufffd"


def test_bytes_of_all_tokens_are_the_text() -> None:
    text = "the fox 😀 <think> 漢字"
    for tokenizer in (tiny_gpt2(), tiny_spm(add_space_prefix=False)):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_text_of_a_part_of_a_character_tells_its_bytes() -> None:
    tokenizer = tiny_spm()
    first, *_ = tokenizer.encode("漢", add_special_tokens=False, parse_special=False)[1:]
    assert tokenizer.token_text(first) == "bytes:\\xe6"
    assert tokenizer.token_text(EOS) == "</s>"


def test_unknown_ids_have_no_text() -> None:
    for tokenizer in (tiny_gpt2(), tiny_spm(), tiny_word_piece()):
        for token_id in (-1, 10**6, 2**40):
            assert tokenizer.token_bytes(token_id) == b""
            assert tokenizer.decode([token_id], skip_special_tokens=False) == ""


def test_fewest_tokens_is_a_lower_bound() -> None:
    rng = random.Random(3)
    for tokenizer in (tiny_gpt2(), tiny_spm()):
        assert tokenizer.min_num_tokens("x" * 10_000) > 100
        for _ in range(200):
            text = "".join(rng.choice(["hello", " the", "▁", "漢字", "</s>", "a", "\n"]) for _ in range(20))
            for parse_special in (True, False):
                ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
                assert tokenizer.min_num_tokens(text) <= len(ids)


def test_bytes_that_the_vocabulary_lacks_count_for_nothing() -> None:
    """SmolLM2 cannot spell some control characters: they vanish."""
    metadata = gpt2_metadata()
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.tokens"] = ["gone" if token == "Ą" else token for token in tokens]  # byte 0x04
    tokenizer = Tokenizer(parts_from_metadata(SOURCE, metadata))
    assert tokenizer.encode("a\x04\x04b", add_special_tokens=False, parse_special=False) == tokenizer.encode(
        "ab", add_special_tokens=False, parse_special=False
    )
    assert tokenizer.min_num_tokens("\x04" * 100_000) == 0
    assert tokenizer.min_num_tokens("\x04a" * 100_000) == tokenizer.min_num_tokens("a" * 100_000) > 0


def _shrinking(normalizer: normalizers.Normalizer | None, *, rstrip: bool = False) -> Tokenizer:
    backend = _backend()
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens([AddedToken("<eat>", rstrip=rstrip, special=True)])
    return Tokenizer(TokenizerParts(SOURCE, backend, {}, (), None))


def test_no_lower_bound_where_one_token_may_swallow_any_text() -> None:
    long = "x" * 100_000
    assert _shrinking(None).min_num_tokens(long) > 0
    assert _shrinking(normalizers.NFC()).min_num_tokens(long) == -(-_shrinking(None).min_num_tokens(long) // 3)
    assert _shrinking(normalizers.Strip()).min_num_tokens(long) == 0
    assert _shrinking(None, rstrip=True).min_num_tokens(long) == 0
    assert tiny_word_piece().min_num_tokens(long) == 0


def test_continuation_is_encoded_as_behind_a_special_token() -> None:
    for tokenizer in (tiny_gpt2(), tiny_spm()):
        whole = tokenizer.encode("<|im_end|>hello", add_special_tokens=False, parse_special=True)
        assert tokenizer.encode_continuation("hello") == whole[whole.index(IM_END) + 1 :]


def _special(*texts: str) -> SpecialTokens:
    return SpecialTokens([SpecialToken(index, text) for index, text in enumerate(texts)])


@pytest.mark.parametrize(
    ("texts", "text", "expected"),
    [
        (["<a>", "<ab>"], "x<ab>y<a>", ["x", 1, "y", 0]),
        (["ab", "abcd"], "abc abcd", [0, "c ", 1]),
        (["[x]"], "[[x]]", ["[", 0, "]"]),
        ([], "a<b", ["a<b"]),
        (["<a>"], "", []),
    ],
)
def test_special_tokens_are_found_leftmost_and_longest(texts: list[str], text: str, expected: list[object]) -> None:
    assert list(_special(*texts).split(text, "\ufdd0")) == expected


@pytest.mark.parametrize("text", ["<a>b>", "<a><a>", "x<a", "x<a \n", "<<a>", "a>", "|", "||", "<|", ""])
def test_defused_text_holds_no_special_token_and_comes_back(text: str) -> None:
    special = _special("<a>", ">b>", "|", "<<a>>")
    defused = special.defuse(text, "\ufdd0")
    assert "".join(map(str, special.split(defused, "\ufdd0"))) == text
    assert all(isinstance(piece, str) for piece in special.split(defused, "\ufdd0"))


def test_defused_texts_side_by_side_hold_no_special_token() -> None:
    special = _special("<|im_end|>")
    for cut in range(len("<|im_end|>") + 1):
        left, right = "<|im_end|>"[:cut], "<|im_end|>"[cut:]
        joined = special.defuse(left, "\ufdd0") + special.defuse(right, "\ufdd0")
        assert list(special.split(joined, "\ufdd0")) == ["<|im_end|>"]


def test_trimming_a_defused_text_still_trims_it() -> None:
    assert _special("<|im_end|>").defuse("a <|im_ \n", "\ufdd0").strip() == "a <|im_\ufdd0"


def test_special_tokens_across_search_windows_are_found() -> None:
    special = _special("<|im_end|>")
    text = "x" * 65_530 + "<|im_end|>" + "y" * 200_000 + "<|im_end|>"
    assert list(special.split(text, "\ufdd0")) == ["x" * 65_530, 0, "y" * 200_000, 0]


def test_tokens_that_swallow_white_space_do() -> None:
    special = SpecialTokens([SpecialToken(0, "<r>", eats_right=True), SpecialToken(1, "<l>", eats_left=True)])
    assert list(special.split("a <r> \n b  <l> c", "\ufdd0")) == ["a ", 0, "b", 1, " c"]


def test_ids_with_gaps_are_kept_in_the_plain_twin() -> None:
    source = json.loads(_backend().to_str())
    source["added_tokens"][0]["content"] = "<far>"
    source["added_tokens"][0]["id"] = 5000
    backend = Backend.from_str(json.dumps(source))
    tokenizer = Tokenizer(TokenizerParts(SOURCE, backend, {}, (), None))
    far = backend.token_to_id("<far>")
    assert tokenizer.encode("<far>", add_special_tokens=False, parse_special=True) == [far]
    plain = tokenizer.encode("<far>", add_special_tokens=False, parse_special=False)
    assert tokenizer.decode(plain, skip_special_tokens=True) == "<far>"
