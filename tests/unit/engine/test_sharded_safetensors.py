"""A model in several safetensors files: the same numbers as in one, and indexes that are not what they claim."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model_error import ModelFileError, UnsupportedModelError
from engine.sharded_safetensors import ShardedSafetensors
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from tests.paged_decoding import PagedDecoding
from tests.tiny_model import make_llama_model

INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"
TOKENS = (5, 300, 17, 2, 399, 40)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_llama_model(seed=6).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return tmp_path


def load_logits(directory: Path, library: NativeLibrary | None, dtype: str) -> torch.Tensor:
    decoder = load_model(str(directory), dtype, lambda _: None, library=library).decoder
    return PagedDecoding(decoder, num_blocks=1).logits({0: TOKENS})[0]


def edit_index(directory: Path, change: Callable[[dict[str, str]], Any]) -> None:
    path = directory / INDEX
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def shard_of(directory: Path, tensor: str) -> Path:
    return directory / json.loads((directory / INDEX).read_text())["weight_map"][tensor]


def edit_shard(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def other_shard(directory: Path, tensor: str) -> Path:
    return next(path for path in sorted(directory.glob("*.safetensors")) if path != shard_of(directory, tensor))


def assert_refused(directory: Path, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_model(str(directory), "float32", lambda _: None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_files_give_the_numbers_of_one_and_those_of_transformers(
    directory: Path, tmp_path: Path, library: NativeLibrary | None, dtype: str
) -> None:
    model = make_llama_model(seed=6)
    model.save_pretrained(tmp_path / "whole")
    assert not (tmp_path / "whole" / INDEX).exists()
    logits = load_logits(directory, library, dtype)
    assert torch.equal(logits, load_logits(tmp_path / "whole", library, dtype))
    if dtype == "float32":
        with torch.inference_mode():
            expected = model(torch.tensor([TOKENS])).logits[0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-4)


def test_what_the_index_does_not_list_is_left_alone_with_a_line_in_the_log(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"x": torch.zeros(1)}, directory / "adapter.safetensors")
    edit_shard(shard_of(directory, NORM), lambda tensors: tensors.update({"unlisted": torch.zeros(3)}))
    caplog.set_level(logging.INFO)
    source = ShardedSafetensors(directory / INDEX)
    assert set(source.shapes) == set(json.loads((directory / INDEX).read_text())["weight_map"])
    assert "not listed and not read: adapter.safetensors" in caplog.text
    assert "1 tensors in its files are not listed" in caplog.text
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source.read_rows(NORM, 0, 1)


def test_one_file_of_everything_goes_before_an_index(directory: Path) -> None:
    make_llama_model(seed=6).save_pretrained(directory, max_shard_size="1GB")  # removes the files, not what is wrong
    (directory / INDEX).write_text("{")
    assert load_model(str(directory), "float32", lambda _: None).weights_bytes > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an index"),
        ("[" * 100_000, "not an index"),
        ('"\udcff"', "not an index"),
        ("[]", "has no weight_map"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": ["a"]}', "has no weight_map"),
        ('{"weight_map": {"a": "x.safetensors", "b": "x.safetensors", "a": "y.safetensors"}}', "a is there twice"),
    ],
)
def test_what_is_no_index_is_refused(directory: Path, text: str, message: str) -> None:
    (directory / INDEX).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert_refused(directory, rf"index\.json: {message}|index\.json: .*{message}")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "a/b.safetensors",
        r"a\b.safetensors",
        "..",
        "",
        ".safetensors/..",
        "pytorch_model.bin",
        "a\0.safetensors",
        7,
        None,
    ],
)
def test_only_plain_names_of_safetensors_files_are_followed(directory: Path, name: Any) -> None:
    edit_index(directory, lambda weight_map: weight_map.update({NORM: name}))
    assert_refused(
        directory, "model.norm.weight is said to be in .*only safetensors files in the index's own directory"
    )


def test_missing_files_are_named(directory: Path) -> None:
    path = shard_of(directory, NORM)
    path.unlink()
    assert_refused(directory, rf"index\.json: 1 of \d+ files are missing: {path.name}; pull the model again")
    path.mkdir()
    assert_refused(directory, path.name)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_named(directory: Path, keep: int) -> None:
    path = shard_of(directory, NORM)
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(directory, rf"{path.name}: truncated or damaged")


def test_a_tensor_that_is_not_where_the_index_says_is_refused(directory: Path) -> None:
    edit_index(directory, lambda weight_map: weight_map.update({"nowhere": other_shard(directory, NORM).name}))
    assert_refused(directory, r"nowhere is said to be in \S+, which does not hold it")
    edit_index(directory, lambda weight_map: weight_map.pop("nowhere"))
    path, other = shard_of(directory, NORM), other_shard(directory, NORM)
    edit_index(directory, lambda weight_map: weight_map.update({NORM: other.name}))
    assert_refused(directory, rf"{NORM} is said to be in {other.name}, but {path.name} holds it")


def test_a_tensor_in_two_files_is_refused(directory: Path) -> None:
    path, other = shard_of(directory, NORM), other_shard(directory, NORM)
    edit_shard(other, lambda tensors: tensors.update({NORM: torch.ones(64)}))
    assert_refused(directory, rf"{NORM} is said to be in {path.name}, but {other.name} holds it too")


def test_a_tensor_that_the_index_forgot_is_missing(directory: Path) -> None:
    edit_index(directory, lambda weight_map: weight_map.pop(NORM))
    assert_refused(directory, rf"index\.json: 1 tensors are missing: {NORM}")


def test_a_number_format_that_is_not_read_names_file_and_tensor(directory: Path) -> None:
    path = shard_of(directory, NORM)
    edit_shard(path, lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModelError, match=f"{path.name}: {NORM} is stored as I8"):
        load_model(str(directory), "float32", lambda _: None)
