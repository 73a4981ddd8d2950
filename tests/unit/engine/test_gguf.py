"""GGUF files: every supported number format, what the metadata says, and files that are not what they claim."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, GgufConfig

from engine.gguf_file import PLAIN_TYPES
from engine.gguf_header import read_gguf_header
from engine.model_error import ModelError, ModelFileError, UnsupportedModelError
from engine.weights import LoadedModel, load_model
from kernels.quantised.block_type import BLOCK_TYPES
from tests.paged_decoding import PagedDecoding
from tests.tiny_gguf import state_of, write_gguf
from tests.tiny_model import VOCAB_SIZE, make_llama_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PROMPT = torch.randint(0, VOCAB_SIZE, (90,), generator=torch.Generator().manual_seed(7)).tolist()


def load(path: Path) -> LoadedModel:
    return load_model(str(path), "float32", lambda _: None)


def logits_of(model: LoadedModel) -> Tensor:
    return PagedDecoding(model.decoder, num_blocks=8).logits({0: PROMPT})[0]


@pytest.mark.parametrize("kind", [*PLAIN_TYPES, *BLOCK_TYPES, "TQ2_0"])
def test_every_number_format_gives_the_logits_of_its_dequantised_weights(tmp_path: Path, kind: str) -> None:
    width = max(64, gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0])
    sizes = {"hidden_size": width, "intermediate_size": width, "initializer_range": 1.6 / width**0.5}
    model = make_llama_model(seed=3, tie_word_embeddings=kind == "Q4_1", **sizes)
    path = tmp_path / "model.gguf"
    stored = write_gguf(path, model, GGMLQuantizationType[kind])
    exact = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state_of(stored), strict=not model.config.tie_word_embeddings)
    assert kind == "F32" or any(not torch.equal(exact[name], value) for name, value in model.state_dict().items())
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    loaded = load(path)
    assert loaded.config.tie_word_embeddings == model.config.tie_word_embeddings
    torch.testing.assert_close(logits_of(loaded), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"rope_parameters": LLAMA3_ROPE}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 32}],
    ids=["llama3_rope", "biases", "wide_heads"],
)
def test_options_survive_the_format(tmp_path: Path, options: dict[str, Any]) -> None:
    model = make_llama_model(seed=4, **options)
    write_gguf(tmp_path / "model.gguf", model, GGMLQuantizationType.F32)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(load(tmp_path / "model.gguf")), expected, rtol=0, atol=1e-4)


def test_transformers_reads_the_same_model_from_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", make_llama_model(seed=5), GGMLQuantizationType.Q8_0)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(load(tmp_path / "model.gguf")), expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    model = make_llama_model(hidden_size=32, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1)
    write_gguf(path, model, GGMLQuantizationType.Q4_0)
    return path.read_bytes()


def test_metadata_is_read(tmp_path: Path, sound_file: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound_file)
    config = load(path).config
    assert (config.num_layers, config.hidden_size, config.head_dim, config.vocab_size) == (1, 32, 16, VOCAB_SIZE)
    assert (config.eos_token_ids, config.bos_token_id) == ((2,), 1)
    metadata = read_gguf_header(path).metadata
    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        assert value == reader.fields[key].contents(), key
    assert len(metadata["tokenizer.ggml.tokens"]) == VOCAB_SIZE


@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_refused(tmp_path: Path, sound_file: bytes, data: st.DataObject) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound_file[: data.draw(st.integers(0, len(sound_file) - 32))])
    with pytest.raises(ModelFileError, match=r"model\.gguf"):
        load(path)


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_header_ends_in_an_error_of_ours_or_in_a_model(
    tmp_path: Path, sound_file: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(sound_file)
    header_bytes = sound_file.index(b"output_norm.weight") + 60
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, header_bytes))
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.gguf"
    path.write_bytes(damaged)
    try:
        load(path)
    except ModelError as error:
        assert "model.gguf" in str(error)


@pytest.mark.parametrize("place", [8, 16])
def test_a_count_beyond_the_file_ends_at_once(tmp_path: Path, sound_file: bytes, place: int) -> None:
    damaged = bytearray(sound_file)
    damaged[place : place + 8] = struct.pack("<Q", 2**62)
    (tmp_path / "model.gguf").write_bytes(damaged)
    with pytest.raises(ModelFileError, match="GGUF header"):
        load(tmp_path / "model.gguf")


def test_what_is_no_gguf_file_is_refused(tmp_path: Path, sound_file: bytes) -> None:
    path = tmp_path / "model.gguf"
    for content, message in (
        (b"", "cannot be read"),
        (b"PK\x03\x04 a zip", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + sound_file[8:], "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + sound_file[8:], "big-endian"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=message):
            load(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        load(tmp_path / "absent.gguf")


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A file that differs from a sound one in one point."""

    message: str
    error: type[ModelError]
    architecture: str = "llama"
    kind: GGMLQuantizationType = GGMLQuantizationType.F32
    skip: str = ""
    extra: str = ""
    metadata: tuple[tuple[str, int | str], ...] = ()
    norm_size: int = 32


WRONG = {
    "unknown_architecture": Wrong("'mamba' is not supported; known are llama", UnsupportedModelError, "mamba"),
    "number_format": Wrong(
        r"blk\.0\.ffn_down\.weight is stored as Q8_1; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0",
        UnsupportedModelError,
        kind=GGMLQuantizationType.Q8_1,
    ),
    "missing": Wrong(r"1 tensors are missing: blk\.0\.attn_k\.weight", ModelFileError, skip="blk.0.attn_k.weight"),
    "left_over": Wrong(r"1 tensors that llama .* has not: blk\.0\.mystery", ModelFileError, extra="blk.0.mystery"),
    "shape": Wrong(r"output_norm\.weight has shape \(16,\), expected \(32,\)", ModelFileError, norm_size=16),
    "experts": Wrong("mixture of experts", UnsupportedModelError, metadata=(("llama.expert_count", 8),)),
    "rope": Wrong("'yarn'; supported are none", UnsupportedModelError, metadata=(("llama.rope.scaling.type", "yarn"),)),
    "partial_rotation": Wrong(
        "dimension_count is 8", UnsupportedModelError, metadata=(("llama.rope.dimension_count", 8),)
    ),
    "heads": Wrong("num_heads .* must be a multiple", ModelFileError, metadata=(("llama.attention.head_count_kv", 3),)),
    "layers": Wrong("too few for 1000000 layers", ModelFileError, metadata=(("llama.block_count", 1_000_000),)),
    "type": Wrong("block_count is 'many', expected int", ModelFileError, metadata=(("llama.block_count", "many"),)),
}


def write_by_hand(path: Path, wrong: Wrong) -> None:
    metadata: dict[str, int | str] = {
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
    } | dict(wrong.metadata)
    writer = gguf.GGUFWriter(path, wrong.architecture)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in metadata.items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint32(key, value)
    matrices = [f"blk.0.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")]
    for name in ("token_embd.weight", *matrices, "blk.0.ffn_down.weight", *filter(None, (wrong.extra,))):
        if name != wrong.skip:
            kind = wrong.kind if "ffn_down" in name else GGMLQuantizationType.F32
            zeros = np.zeros(gguf.quant_shape_to_byte_shape((32, 32), kind), dtype=np.uint8)
            writer.add_tensor(name, zeros.view(np.float32) if kind == kind.F32 else zeros, raw_dtype=kind)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"):
        writer.add_tensor(name, np.ones(32, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(wrong.norm_size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", WRONG)
def test_the_error_names_file_tensor_expected_and_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    write_by_hand(path, WRONG[name])
    with pytest.raises(WRONG[name].error, match=WRONG[name].message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_the_file_written_by_hand_is_sound_but_for_the_wrong_point(tmp_path: Path) -> None:
    write_by_hand(tmp_path / "model.gguf", Wrong("", ModelFileError))
    assert load(tmp_path / "model.gguf").config.vocab_size == 32
