"""Writes a Llama of transformers as a GGUF file, the way llama.cpp's converter lays one out."""

from __future__ import annotations

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
from transformers import LlamaForCausalLM

from tests.block_quantiser import quantise
from tests.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tokenizer

Array = npt.NDArray[np.float32]
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
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
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    stored: dict[str, Array] = {}
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config.rope_parameters, config.head_dim))
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values: Array = parameter.detach().numpy().astype(np.float32)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None:
            values = interleave_pairs(values, heads)
        others = [other for part, other in exceptions.items() if part in name]
        values_kind = (others or [kind])[0] if values.ndim > 1 else GGMLQuantizationType.F32
        packed = quantise(values, values_kind)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=values_kind)
        stored[name] = gguf.quants.dequantize(packed, values_kind)
        if heads is not None:
            stored[name] = split_pairs(stored[name], heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def gguf_name(name: str) -> str:
    """The name llama.cpp gives to a tensor of transformers."""
    if name == "lm_head.weight":
        return "output.weight"
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, ending = rest.rpartition(".")
    return f"blk.{layer}.{PARTS[part]}.{ending}"


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
