"""What the configuration of each family says: in transformers' words of all times, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import ModelError, ModelFileError, UnsupportedModelError
from engine.models.architectures import gguf_architecture, hf_architecture
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from kernels.rotary import LinearScaling, LongScaling, Rope
from tests.paged_decoding import PagedDecoding
from tests.tiny_families import FAMILIES, LONG_ROPE, make_variant
from tests.tiny_model import VOCAB_SIZE

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}


def read(family: str, **values: Any) -> ModelConfig:
    """Of a config.json with these values beside the sizes."""
    fields = ConfigFields({"architectures": [FAMILIES[family][1].__name__]} | SIZES | values, "config.json")
    return hf_architecture(fields).read_config(fields)


def windows(config: ModelConfig) -> list[int | None]:
    return [config.attention_kinds[config.kind_of(layer)].sliding_window for layer in range(config.num_layers)]


def ropes(config: ModelConfig) -> list[Rope]:
    return [config.attention_kinds[config.kind_of(layer)].rope for layer in range(config.num_layers)]


@pytest.mark.parametrize("family", FAMILIES)
def test_where_a_config_is_silent_transformers_defaults_hold(family: str) -> None:
    theirs = FAMILIES[family][0](**SIZES | {"num_attention_heads": 32, "hidden_size": 512})
    ours = read(family, num_attention_heads=32, hidden_size=512)
    head_dim = getattr(theirs, "head_dim", None) or 16
    assert (ours.head_dim, ours.num_kv_heads) == (head_dim, theirs.num_key_value_heads)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position_tokens == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 8
    window = getattr(theirs, "sliding_window", None)
    assert windows(ours) == [window if name == "sliding_attention" else None for name in types]
    rope = theirs.rope_parameters
    thetas = [rope.get(name, rope)["rope_theta"] for name in types]
    assert [kind.theta for kind in ropes(ours)] == thetas
    scalar = getattr(theirs, "query_pre_attn_scalar", head_dim)
    assert ours.attention_scale == scalar**-0.5


def test_a_null_is_not_silence() -> None:
    assert windows(read("mistral", num_key_value_heads=2, sliding_window=None)) == [None] * 8
    assert windows(read("mistral", num_key_value_heads=2, sliding_window=77)) == [77] * 8
    assert read("mistral", num_key_value_heads=None).num_kv_heads == 4
    assert windows(read("phi3", sliding_window=77)) == [77] * 8


def test_a_window_as_wide_as_the_context_is_none() -> None:
    lengths = {"max_position_embeddings": 64, "sliding_window": 64}
    assert windows(read("phi3", **lengths)) == [None] * 8
    assert windows(read("phi3", **lengths | {"sliding_window": 63})) == [63] * 8


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_has_windows_where_they_are_switched_on(family: str) -> None:
    sizes = {"num_key_value_heads": 2, "sliding_window": 9, "max_window_layers": 6}
    assert windows(read(family, **sizes)) == [None] * 8
    assert windows(read(family, **sizes, use_sliding_window=True)) == [None] * 6 + [9, 9]
    types = ["full_attention", "sliding_attention"] * 4
    assert windows(read(family, **sizes, use_sliding_window=True, layer_types=types)) == [None, 9] * 4
    assert windows(read(family, **sizes | {"max_window_layers": 8}, use_sliding_window=True)) == [None] * 8


def test_gemma_is_read_in_the_words_of_both_times() -> None:
    old = read(
        "gemma3",
        sliding_window=512,
        sliding_window_pattern=3,
        rope_theta=50_000.0,
        rope_local_base_freq=700,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    new = read(
        "gemma3",
        sliding_window=512,
        layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["sliding_attention"] * 2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        },
    )
    assert windows(old) == [512, 512, None, 512, 512, None, 512, 512]
    assert ropes(old)[1:3] == [Rope(700.0, 256), Rope(50_000.0, 256, LinearScaling(8.0))]
    assert windows(new) == windows(old) and ropes(new) == ropes(old)
    assert old.embedding_scale == 8.0 and old.attention_scale == 1 / 16


@pytest.mark.parametrize("type_key", ["type", "rope_type"])
@pytest.mark.parametrize("name", ["su", "longrope", "yarn"])
def test_long_rope_is_read_in_the_words_of_all_times(type_key: str, name: str) -> None:
    factors = {key: LONG_ROPE[key] for key in ("short_factor", "long_factor")}
    lengths = {"max_position_embeddings": 4096 * 32, "original_max_position_embeddings": 4096}
    old = read("phi3", rope_theta=500.0, rope_scaling={type_key: name, **factors}, **lengths)
    new = read("phi3", rope_parameters={"rope_type": "longrope", "rope_theta": 500.0, **factors}, **lengths)
    config = FAMILIES["phi3"][0](**SIZES | lengths, pad_token_id=0, rope_parameters=dict(LONG_ROPE))
    theirs = FAMILIES["phi3"][1](config).model.rotary_emb
    assert ropes(old) == ropes(new)
    (kind,) = old.attention_kinds
    assert kind.rope.amplitude == pytest.approx(theirs.attention_scaling)
    short, long = tuple(LONG_ROPE["short_factor"]), tuple(LONG_ROPE["long_factor"])
    assert kind.rope.scaling == LongScaling(short, long, 4096, 4096 * 32)


@pytest.mark.parametrize("library_name", ["torch", "native"])
def test_sequences_within_the_original_context_turn_by_the_short_divisors(
    tmp_path: Path, library_name: str, request: pytest.FixtureRequest
) -> None:
    """The model is served for 16 tokens, what it was first trained for; `test_families` serves it for 512."""
    library: NativeLibrary | None = request.getfixturevalue("native_library") if library_name == "native" else None
    model = make_variant("phi3_long")
    model.save_pretrained(tmp_path)
    prompt = list(range(5, 21))
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    asked: list[int] = []

    def served(context_tokens: int) -> torch.Tensor:
        def limit(config: ModelConfig) -> int:
            asked.append(config.max_position_tokens)
            return context_tokens

        loaded = load_model(str(tmp_path), "float32", lambda _: None, library=library, context_tokens=limit)
        return PagedDecoding(loaded.decoder, num_blocks=4).logits({0: prompt})[0]

    torch.testing.assert_close(served(16), expected, rtol=0, atol=1e-4)
    assert (served(17) - expected).abs().max() > 0.1
    assert asked == [512, 512]


REFUSED: dict[str, tuple[str, dict[str, Any], type[ModelError], str]] = {
    "mistral_layer_types": ("mistral", {"layer_types": ["full_attention"] * 8}, UnsupportedModelError, "layer_types"),
    "mistral_activation": ("mistral", {"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act is 'gelu', only 'sil"),
    "mistral_partial": ("mistral", {"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor is"),
    "mistral_window": ("mistral", {"sliding_window": "wide"}, ModelFileError, "sliding_window is 'wide', expected int"),
    "qwen2_yarn": ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, UnsupportedModelError, "'yarn'; sup"),
    "qwen2_rope_by_type": (
        "qwen2",
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
        UnsupportedModelError,
        "rope_parameters has an entry per layer type, one for all layers is supported",
    ),
    "qwen2_layer_types": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 8},
        UnsupportedModelError,
        "'chunked_attention'; supported are 'full_attention' and 'sliding_attention'",
    ),
    "qwen3_layer_types": (
        "qwen3",
        {"use_sliding_window": True, "layer_types": ["full_attention"]},
        ModelFileError,
        "layer_types is .*, expected a list of 8 entries",
    ),
    "gemma3_activation": (
        "gemma3", {"hidden_activation": "gelu"}, UnsupportedModelError, "only 'gelu_pytorch_tanh' is supported",
    ),
    "gemma3_final_cap": (
        "gemma3", {"final_logit_softcapping": 30.0}, UnsupportedModelError, "final_logit_softcapping is 30.0, soft",
    ),
    "gemma3_cap": ("gemma3", {"attn_logit_softcapping": 50}, UnsupportedModelError, "attn_logit_softcapping is 50.0"),
    "gemma3_both_ways": (
        "gemma3", {"use_bidirectional_attention": True}, UnsupportedModelError, "use_bidirectional_attention",
    ),
    "gemma3_pattern": ("gemma3", {"sliding_window_pattern": 0}, ModelFileError, "sliding_window_pattern is 0, it must"),
    "gemma3_local_rope": (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
        UnsupportedModelError,
        "sliding_attention: rope_type is 'yarn'",
    ),
    "gemma3_multi_modal": (
        "gemma3",
        {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {}},
        UnsupportedModelError,
        "Gemma3ForConditionalGeneration with model_type 'gemma3' is multi-modal, which is not supported; use a dir",
    ),
    "phi3_linear": (
        "phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, UnsupportedModelError, "'linear'; supported are",
    ),
    "phi3_factors": ("phi3", {"rope_scaling": {"type": "su"}}, ModelFileError, "short_factor is None, expected a list"),
    "quantised": ("qwen3", {"quantization_config": {"bits": 4}}, UnsupportedModelError, "quantization_config is not"),
    "unknown": (
        "qwen3",
        {"architectures": ["Qwen3MoeForCausalLM"]},
        UnsupportedModelError,
        "'Qwen3MoeForCausalLM' is not supported; known are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
        "Qwen3ForCausalLM, Gemma3ForCausalLM, Phi3ForCausalLM",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_named(name: str) -> None:
    family, values, error, message = REFUSED[name]
    with pytest.raises(error, match=message) as caught:
        read(family, **{"num_key_value_heads": 2} | values)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partial_rotary_factor": 0.01}, "rotary_dim is 0, it must be even"),
        ({"partial_rotary_factor": 1.5}, r"rotary_dim is 24, .* at most head_dim \(16\)"),
        ({"sliding_window": -1}, "sliding_window is -1, it must be at least 1"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, it must be positive and finite"),
        ({"rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [2]}}, "1 frequency divisors for 16 rot"),
        ({"rope_scaling": LONG_ROPE, "original_max_position_embeddings": 1}, "original_max_position_embeddings is 1"),
    ],
)
def test_numbers_that_fit_no_model_are_named(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    config = {"architectures": ["Phi3ForCausalLM"]} | SIZES | values
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=f"impossible configuration: {message}"):
        load_model(str(tmp_path), "float32", lambda _: None)


def test_the_text_part_of_a_multi_modal_name_is_read() -> None:
    config = read("gemma3", architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3_text")
    assert config == read("gemma3", model_type="gemma3_text")


def write_header(path: Path, architecture: str, metadata: Mapping[str, Any]) -> GGUFFile:
    """A file with an embedding alone: what a configuration is read from."""
    values: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": 64,
        "block_count": 8,
        "feed_forward_length": 32,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (values | dict(metadata)).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](f"{architecture}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def read_header(path: Path, architecture: str, metadata: Mapping[str, Any]) -> ModelConfig:
    file = write_header(path, architecture, metadata)
    try:
        return gguf_architecture(file).read_config(file)
    finally:
        file.close()


def test_what_gguf_files_of_gemma_leave_unsaid_is_known(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    sizes = {"attention.key_length": 32, "rope.freq_base": 1e6, "attention.sliding_window": 512}
    config = read_header(path, "gemma3", sizes)
    assert windows(config) == [512] * 5 + [None] + [512] * 2
    assert ropes(config)[4:6] == [Rope(1e4, 32), Rope(1e6, 32)]
    assert config.attention_scale == 32**-0.5
    assert windows(read_header(path, "gemma3", sizes | {"attention.sliding_window_pattern": 4}))[3] is None
    assert read_header(path, "gemma3", sizes | {"block_count": 62}).attention_scale == 16**-0.5
    without = read_header(path, "gemma3", {"attention.sliding_window": 0})
    assert windows(without) == [None] * 8


@pytest.mark.parametrize(
    ("architecture", "metadata", "message"),
    [
        ("gemma3", {"final_logit_softcapping": 30.0}, "gemma3.final_logit_softcapping is 30.0, soft caps are not"),
        ("gemma3", {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True]}, "has 1 entries for 8"),
        ("qwen2", {"rope.scaling.type": "yarn"}, "qwen2.rope.scaling.type is 'yarn'; supported are none, linear"),
        ("qwen3", {"rope.dimension_count": 8}, "qwen3.rope.dimension_count is 8, only the head's 16 is supported"),
        ("qwen3", {"attention.value_length": 8}, "qwen3.attention.value_length is 8"),
        ("phi3", {"rope.scaling.type": "linear"}, "phi3.rope.scaling.type is 'linear'; supported are none, longrope"),
        ("phi3", {"expert_count": 16}, r"a mixture of experts \(phi3.expert_count\)"),
        ("qwen3moe", {}, "'qwen3moe' is not supported; known are llama, qwen2, qwen3, gemma3, phi3"),
    ],
)
def test_what_a_gguf_file_may_not_ask_for_is_named(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_header(tmp_path / "model.gguf", architecture, metadata)
    assert "model.gguf" in str(caught.value)


def test_a_gguf_file_of_a_mistral_states_its_window(tmp_path: Path) -> None:
    assert windows(read_header(tmp_path / "m.gguf", "llama", {"attention.sliding_window": 30})) == [30] * 8
    assert windows(read_header(tmp_path / "m.gguf", "llama", {})) == [None] * 8


def test_layers_beyond_counting_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_layers is 100000000, it must be at most 65536"):
        read("gemma3", num_hidden_layers=10**8)
