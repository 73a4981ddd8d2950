"""Weights that stay as their file stores them, on native kernels, against transformers on the dequantised numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import LlamaForCausalLM

from engine.model_error import UnsupportedModelError
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from kernels.quantised.block_type import BLOCK_TYPES
from tests.paged_decoding import PagedDecoding
from tests.quantised_blocks import assert_same_bits
from tests.tiny_gguf import state_of, write_gguf
from tests.tiny_model import VOCAB_SIZE, make_llama_model

Kind = GGMLQuantizationType
PROMPT = torch.randint(0, VOCAB_SIZE, (150,), generator=torch.Generator().manual_seed(7)).tolist()
TOLERANCE = 0.04
"""Mean error of the logits over their spread: 8-bit activations, and bfloat16 ones; bfloat16 alone: see test_models."""


def make_model(**options: Any) -> LlamaForCausalLM:
    """Rows of 256 numbers: whole blocks of every type."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.1, "num_attention_heads": 8}
    return make_llama_model(seed=3, **sizes | options)


def load(path: Path, library: NativeLibrary | None, dtype: str = "auto", **options: Any) -> LoadedModel:
    return load_model(str(path), dtype, lambda _: None, library=library, **options)


def assert_near(loaded: LoadedModel, model: LlamaForCausalLM, tolerance: float = TOLERANCE) -> None:
    """The whole prompt in one step, then the last tokens one by one."""
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    decoding = PagedDecoding(loaded.decoder, num_blocks=12)
    parts = [decoding.logits({0: PROMPT[:-5]})[0], *(decoding.logits({0: [token]})[0] for token in PROMPT[-5:])]
    logits = torch.cat(parts)
    assert expected.std() > 0.5, "flat logits prove nothing"
    assert (logits - expected).abs().mean() / expected.std() < tolerance
    assert (logits[-5:] - expected[-5:]).abs().mean() / expected.std() < tolerance


def numbers_of(loaded: LoadedModel, layer: int) -> dict[str, Tensor]:
    """The matrices of a layer as transformers names them."""
    weights = loaded.decoder.weights.layers[layer]
    layout, prefix = weights.layout, f"model.layers.{layer}."
    places = {
        "self_attn.q_proj": layout.query,
        "self_attn.k_proj": layout.key,
        "self_attn.v_proj": layout.value,
        "self_attn.o_proj": layout.output,
        "mlp.gate_proj": layout.gate,
        "mlp.up_proj": layout.up,
        "mlp.down_proj": layout.down,
    }
    return {f"{prefix}{name}.weight": place.over(weights.slab).unpack() for name, place in places.items()}


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_a_model_of_every_type_is_multiplied_as_stored(
    tmp_path: Path, native_library: NativeLibrary, kind: str
) -> None:
    model = make_model(tie_word_embeddings=kind == "Q8_0")
    stored = write_gguf(tmp_path / "model.gguf", model, Kind[kind])
    model.load_state_dict(state_of(stored), strict=False)
    loaded = load(tmp_path / "model.gguf", native_library)
    assert set(loaded.bytes_by_format) == {kind}
    numbers = numbers_of(loaded, 1) | {"model.embed_tokens.weight": loaded.decoder.weights.embedding.unpack()}
    for name, matrix in numbers.items():
        assert_same_bits(matrix.contiguous(), model.state_dict()[name])
    assert_near(loaded, model)


def test_the_bytes_are_about_those_of_the_file(tmp_path: Path, native_library: NativeLibrary) -> None:
    write_gguf(tmp_path / "model.gguf", make_model(tie_word_embeddings=True), Kind.Q4_K)
    loaded = load(tmp_path / "model.gguf", native_library)
    stored = sum(int(t.n_bytes) for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors)
    assert loaded.decoder.weights.head is loaded.decoder.weights.embedding
    assert stored < loaded.weights_bytes < 1.06 * stored
    assert sum(loaded.bytes_by_format.values()) <= loaded.weights_bytes


MIXED = {
    "layers.0.self_attn.v_proj": Kind.Q6_K,
    "layers.1.self_attn.k_proj": Kind.Q5_0,
    "layers.0.mlp.down_proj": Kind.Q6_K,
    "layers.1.mlp.up_proj": Kind.BF16,
    "layers.1.mlp.down_proj": Kind.Q4_1,
    "layers.1.self_attn.o_proj": Kind.F32,
    "lm_head": Kind.Q6_K,
    "embed_tokens": Kind.F16,
}


@pytest.mark.parametrize("head_dim", [32, 24], ids=["whole_tiles", "cut_tiles"])
def test_matrices_of_one_layer_may_differ(tmp_path: Path, native_library: NativeLibrary, head_dim: int) -> None:
    # 24 * 8 query rows are whole tiles of 16, 24 * 1 key rows are not
    model = make_model(head_dim=head_dim, num_key_value_heads=1)
    exceptions: Mapping[str, Kind] = MIXED | ({"o_proj": Kind.Q5_1} if head_dim == 24 else {})
    stored = write_gguf(tmp_path / "model.gguf", model, Kind.Q4_K, exceptions)
    model.load_state_dict(state_of(stored))
    loaded = load(tmp_path / "model.gguf", native_library)
    wanted = {"Q4_K", "Q6_K", "Q5_0", "Q4_1", "bfloat16", "float16"} | ({"float32"} if head_dim == 32 else {"Q5_1"})
    assert wanted <= set(loaded.bytes_by_format)
    for layer in (0, 1):
        for name, matrix in numbers_of(loaded, layer).items():
            assert_same_bits(matrix.float().contiguous(), model.state_dict()[name])
    assert_near(loaded, model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_explicit_type_converts_everything(tmp_path: Path, native_library: NativeLibrary, dtype: str) -> None:
    model = make_model()
    model.load_state_dict(state_of(write_gguf(tmp_path / "model.gguf", model, Kind.Q4_K)))
    loaded = load(tmp_path / "model.gguf", native_library, dtype)
    assert set(loaded.bytes_by_format) == {dtype}
    assert_near(loaded, model, 1e-5 if dtype == "float32" else 0.02)


def test_what_no_kernel_multiplies_is_up_cast_and_the_log_says_so(
    tmp_path: Path, native_library: NativeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    model.load_state_dict(state_of(write_gguf(tmp_path / "model.gguf", model, Kind.Q4_K, {"down_proj": Kind.TQ2_0})))
    with caplog.at_level(logging.INFO):
        loaded = load(tmp_path / "model.gguf", native_library)
    name = str(loaded.dtype).removeprefix("torch.")
    assert set(loaded.bytes_by_format) == {"Q4_K", name}
    assert caplog.messages == [f"2 matrices stored as TQ2_0 become {name}: no kernel multiplies them as they are"]
    assert_near(loaded, model)


def test_without_native_kernels_everything_is_up_cast_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    model.load_state_dict(state_of(write_gguf(tmp_path / "model.gguf", model, Kind.Q4_K)))
    with caplog.at_level(logging.INFO):
        loaded = load(tmp_path / "model.gguf", None)
    name = str(loaded.dtype).removeprefix("torch.")
    assert caplog.messages == [f"16 matrices stored as Q4_K become {name}: there are no native kernels"]
    assert_near(loaded, model, 0.02)


@pytest.mark.parametrize(
    ("quantize", "formats", "tolerance"),
    [("int8", {"Q8_0"}, 0.05), ("int4", {"Q4_1", "Q8_0"}, 0.35)],
)
def test_a_checkpoint_is_quantised(
    tmp_path: Path, native_library: NativeLibrary, quantize: str, formats: set[str], tolerance: float
) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, native_library, quantize=quantize)
    assert set(loaded.bytes_by_format) == formats
    assert_near(loaded, model, tolerance)
    rounded = numbers_of(loaded, 0) | numbers_of(loaded, 1)
    rounded |= {"model.embed_tokens.weight": loaded.decoder.weights.embedding.unpack()}
    rounded |= {"lm_head.weight": loaded.decoder.weights.head.unpack()}
    model.load_state_dict(rounded, strict=False)
    assert_near(loaded, model)


def test_rows_without_whole_groups_are_not_quantised(
    tmp_path: Path, native_library: NativeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(intermediate_size=272)
    model.save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO):
        loaded = load(tmp_path, native_library, quantize="int8")
    assert "rows of 272 numbers are no whole groups of 32" in caplog.text
    assert_near(loaded, model, 0.05)


def test_quantize_is_refused_where_it_cannot_be(tmp_path: Path, native_library: NativeLibrary) -> None:
    write_gguf(tmp_path / "model.gguf", make_model(), Kind.Q8_0)
    with pytest.raises(UnsupportedModelError, match=r"attn_q\.weight is stored as Q8_0 already; leave out --quantize"):
        load(tmp_path / "model.gguf", native_library, quantize="int4")
    with pytest.raises(UnsupportedModelError, match="--quantize int4 needs the native kernels"):
        load(tmp_path / "model.gguf", None, quantize="int4")
