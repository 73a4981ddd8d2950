"""Writes a model of transformers as a GGUF file, the way llama.cpp's converter lays one out."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from transformers import PreTrainedConfig, PreTrainedModel

from tests.block_quantiser import quantise
from tests.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tokenizer

Array = npt.NDArray[np.float32]
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
"""By the model type of transformers."""
MAX_LAYERS = 40


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: GGMLQuantizationType,
    exceptions: Mapping[str, GGMLQuantizationType] = MappingProxyType({}),
) -> dict[str, Array]:
    """Write `model` with its matrices as `kind` and vectors as F32, with the tiny tokenizer.

    Args:
        exceptions: other types for matrices whose name in transformers holds a text, e.g. "layers.0.self_attn.v_proj".

    Returns:
        The state dict, in transformers' names and layout, of the numbers that the file stands for.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, config)
    _add_rope(writer, config)
    _add_tokenizer(writer)
    norm_offset = 1.0 if architecture == gguf.MODEL_ARCH.GEMMA3 else 0.0
    stored: dict[str, Array] = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values: Array = parameter.detach().numpy().astype(np.float32)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None and architecture == gguf.MODEL_ARCH.LLAMA:
            values = interleave_pairs(values, heads)
        offset = norm_offset if name.endswith("norm.weight") else 0.0
        others = [other for part, other in exceptions.items() if part in name]
        values_kind = (others or [kind])[0] if values.ndim > 1 else GGMLQuantizationType.F32
        packed = quantise(values + offset, values_kind)
        writer.add_tensor(gguf_name(name, architecture), packed, raw_dtype=values_kind)
        stored[name] = gguf.quants.dequantize(packed, values_kind) - offset
        if heads is not None and architecture == gguf.MODEL_ARCH.LLAMA:
            stored[name] = split_pairs(stored[name], heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def gguf_name(name: str, architecture: gguf.MODEL_ARCH = gguf.MODEL_ARCH.LLAMA) -> str:
    """The name llama.cpp gives to a tensor of transformers."""
    found: str = _name_map(architecture).get_name(name, (".weight", ".bias"))
    return found


@functools.cache
def _name_map(architecture: gguf.MODEL_ARCH) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(architecture, MAX_LAYERS)


def _add_sizes(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "head_dim", None):  # Qwen2's and Phi-3's is the hidden size cut into heads
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type in ("mistral", "gemma3_text", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)


def _add_rope(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "gemma3_text":
        _add_local_attention(writer, config)
    else:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    elif rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if config.model_type == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    if rope["rope_type"] == "longrope":
        stretch = config.max_position_embeddings / config.original_max_position_embeddings
        amplitude = math.sqrt(1 + math.log(stretch) / math.log(config.original_max_position_embeddings))
        writer.add_rope_scaling_attn_factors(rope.get("attention_factor") or amplitude)
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32))


def _add_local_attention(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """What Gemma 3's files leave unsaid where it is as in the released models."""
    theta = config.rope_parameters["sliding_attention"]["rope_theta"]
    if theta != 10_000.0:
        writer.add_rope_freq_base_swa(theta)
    is_sliding = [name == "sliding_attention" for name in config.layer_types]
    if is_sliding != [(layer + 1) % 6 > 0 for layer in range(config.num_hidden_layers)]:
        writer.add_sliding_window_pattern(is_sliding)


def interleave_pairs(values: Array, num_heads: int) -> Array:
    """Rows d and d + D/2 of each head become neighbours."""
    half = len(values) // num_heads // 2
    return values.reshape(num_heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def split_pairs(values: Array, num_heads: int) -> Array:
    """Undoes `interleave_pairs`."""
    half = len(values) // num_heads // 2
    return values.reshape(num_heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def llama3_divisors(rope: dict[str, float], head_dim: int) -> Array:
    """As the converter computes rope_freqs.weight, one frequency after the other."""
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
        context = rope["original_max_position_embeddings"]
        if wavelength < context / rope["high_freq_factor"]:
            divisors.append(1.0)
        elif wavelength > context / rope["low_freq_factor"]:
            divisors.append(rope["factor"])
        else:
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = make_tokenizer()
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in _merges(tokenizer.to_str())])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _merges(tokenizer_json: str) -> list[list[str]]:
    merges: list[list[str]] = json.loads(tokenizer_json)["model"]["merges"]
    return merges


def state_of(stored: dict[str, Array]) -> dict[str, torch.Tensor]:
    """As `load_state_dict` takes it."""
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in stored.items()}
