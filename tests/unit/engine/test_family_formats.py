"""Families with options in other number formats than float32, and in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from engine.config import EngineConfig
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.process_config import ProcessConfig
from engine.runner_factory import build_model_runner
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from scheduler.config import SchedulerConfig
from tests.paged_decoding import PagedDecoding
from tests.quantised_blocks import assert_same_bits
from tests.tiny_families import make_model, make_variant
from tests.tiny_gguf import state_of, write_gguf
from tests.tiny_model import VOCAB_SIZE

Kind = GGMLQuantizationType
PROMPT = torch.randint(0, VOCAB_SIZE, (150,), generator=torch.Generator().manual_seed(7)).tolist()
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.1}
OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 64},
    "gemma3": {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 40, "num_hidden_layers": 6},
    "phi3": {"sliding_window": 60},
}


@pytest.fixture(params=["torch", "native"])
def library(request: pytest.FixtureRequest) -> NativeLibrary | None:
    return request.getfixturevalue("native_library") if request.param == "native" else None


def logits_of(decoder: Decoder | NativeDecoder) -> Tensor:
    """The whole prompt but for the last tokens, which follow one by one."""
    decoding = PagedDecoding(decoder, num_blocks=12)
    parts = [decoding.logits({0: PROMPT[:-5]})[0], *(decoding.logits({0: [token]})[0] for token in PROMPT[-5:])]
    return torch.cat(parts)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().mean() / expected.std())


def expected_of(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([PROMPT])).logits[0].float()
    assert logits.std() > 0.5, "flat logits prove nothing"
    return logits


@pytest.mark.parametrize("family", OPTIONS)
@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "BF16"])
def test_stored_weights_stay_as_they_are(tmp_path: Path, native_library: NativeLibrary, family: str, kind: str) -> None:
    """Rows of a fused tensor are its own blocks."""
    model = make_model(family, seed=3, **WIDE | OPTIONS[family])
    model.load_state_dict(state_of(write_gguf(tmp_path / "model.gguf", model, Kind[kind])))
    loaded = load_model(str(tmp_path / "model.gguf"), "auto", lambda _: None, library=native_library)
    assert set(loaded.bytes_by_format) == {{"BF16": "bfloat16"}.get(kind, kind)}
    assert_same_bits(numbers(loaded, "up"), own_numbers(model, "up"))
    assert_same_bits(numbers(loaded, "key"), own_numbers(model, "key"))
    assert relative_error(logits_of(loaded.decoder), expected_of(model)) < 0.05


def numbers(loaded: LoadedModel, part: str) -> Tensor:
    layer = loaded.decoder.weights.layers[1]
    return getattr(layer.layout, part).over(layer.slab).unpack().float().contiguous()  # type: ignore[no-any-return]


def own_numbers(model: PreTrainedModel, part: str) -> Tensor:
    """Of transformers, fused or not."""
    state, config = model.state_dict(), model.config
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    if config.model_type != "phi3":
        return state[f"{attention}k_proj.weight" if part == "key" else f"{mlp}up_proj.weight"]
    if part == "up":
        return state[f"{mlp}gate_up_proj.weight"][config.intermediate_size :]
    head_dim = config.hidden_size // config.num_attention_heads
    first = config.num_attention_heads * head_dim
    return state[f"{attention}qkv_proj.weight"][first : first + config.num_key_value_heads * head_dim].contiguous()


@pytest.mark.parametrize("family", OPTIONS)
def test_half_precision_is_near_float32(tmp_path: Path, library: NativeLibrary | None, family: str) -> None:
    model = make_model(family, seed=3, **WIDE | OPTIONS[family])
    model.save_pretrained(tmp_path)
    expected = expected_of(model)
    theirs = relative_error(expected_of(model.to(torch.bfloat16)), expected)
    decoder = load_model(str(tmp_path), "bfloat16", lambda _: None, library=library).decoder
    assert relative_error(logits_of(decoder), expected) < 1.2 * theirs < 0.1


def test_the_scale_of_embeddings_is_rounded_as_transformers_rounds_it(
    tmp_path: Path, library: NativeLibrary | None
) -> None:
    """Layers that add nothing and a large eps let the scale through to the logits."""
    model = make_model("gemma3", hidden_size=96, num_hidden_layers=1, rms_norm_eps=1e4)
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter.data.zero_()
    model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].double()
    decoder = load_model(str(tmp_path), "bfloat16", lambda _: None, library=library).decoder
    actual = logits_of(decoder).double()
    ratio = float((actual * expected).sum() / (expected * expected).sum())
    rounding = float(torch.tensor(96**0.5).bfloat16()) / 96**0.5 - 1
    assert abs(rounding) > 1e-3 > 5 * abs(ratio - 1)


@pytest.mark.parametrize(("family", "options"), [("qwen3", {"head_dim": 128}), ("qwen2", {}), ("gemma3", {})])
def test_transformers_reads_the_same_model_from_the_file(
    tmp_path: Path, native_library: NativeLibrary, family: str, options: dict[str, Any]
) -> None:
    """Its reader knows no head dimension of Qwen3 and no scalar of Gemma 3 but the released models'."""
    if family == "gemma3":
        options = {"head_dim": 256, "num_hidden_layers": 6, "sliding_window": 30, "initializer_range": 0.1}
    write_gguf(tmp_path / "model.gguf", make_model(family, seed=5, **options), Kind.Q8_0)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).eval()
    loaded = load_model(str(tmp_path / "model.gguf"), "float32", lambda _: None, library=native_library)
    torch.testing.assert_close(logits_of(loaded.decoder), expected_of(theirs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["gemma3_scaled", "phi3_long_partial"])
def test_bits_do_not_depend_on_batch_or_chunk(tmp_path: Path, library: NativeLibrary | None, variant: str) -> None:
    make_variant(variant).save_pretrained(tmp_path)
    decoder = load_model(
        str(tmp_path), "bfloat16", lambda _: None, library=library, batch_invariant=library is None
    ).decoder
    text = PROMPT[:45]
    alone = PagedDecoding(decoder, num_blocks=20, block_size=4)
    one_by_one = torch.cat([alone.logits({0: [token]})[0] for token in text])
    company = PagedDecoding(decoder, num_blocks=40, block_size=4, seed=1)
    steps = [{0: text[:20], 1: PROMPT[50:70]}, {1: PROMPT[70:71], 0: text[20:21]}, {0: text[21:], 1: PROMPT[71:80]}]
    together = torch.cat([company.logits(step)[0] for step in steps])
    assert torch.equal(together, one_by_one)


def test_a_family_with_options_is_served_with_the_engines_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded weights, a limit of length, and as many blocks as memory holds of these layers and heads."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    sizes = {"initializer_range": 0.05, "original_max_position_embeddings": 32, "max_position_embeddings": 128}
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
    rope_parameters = rope | {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    model = make_model("phi3", **WIDE | sizes, rope_parameters=rope_parameters, sliding_window=20)
    model.save_pretrained(tmp_path)
    engine = EngineConfig(
        str(tmp_path), "float32", "int8", kv_cache_memory_bytes=2**20, max_model_len_tokens=32, threads=1,
        predict_steps=False,
    )  # fmt: skip
    built = build_model_runner(ProcessConfig(engine, SchedulerConfig(), "", "", 0), lambda phase, fraction: None)
    assert (built.max_model_len, built.model_max_len) == (32, 128)
    assert built.num_blocks == 2**20 // (16 * 2 * 2 * 2 * 64 * 4)
    assert set(built.weights_bytes_by_format) == {"Q8_0"}
    decoder = built.runner._decoder  # type: ignore[attr-defined]
    prompt = PROMPT[:32]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    logits = PagedDecoding(decoder, num_blocks=4).logits({0: prompt})[0]
    assert relative_error(logits, expected) < 0.05
