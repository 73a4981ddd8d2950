"""Phi-3, Phi-3.5 and Phi-4-mini: Llama with fused projections, rotation of a part of the head, and LongRoPE."""

from __future__ import annotations

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import ModelFileError, UnsupportedModelError
from engine.models.architecture import GGUFArchitecture, HFArchitecture
from engine.models.decoder_names import gguf_names, hf_names
from engine.models.gguf_config import read_gguf_decoder, read_gguf_head_dim, read_gguf_vector, read_gguf_window
from engine.models.hf_config import HFDefaults, read_hf_decoder, read_hf_head_dim, with_window
from engine.models.rope_config import (
    DEFAULT_THETA,
    hf_rope_section,
    hf_rope_type,
    long_rope,
    read_gguf_scaling,
    read_hf_theta,
)
from kernels.rotary import Rope

NAME = "phi3"
DEFAULTS = HFDefaults(max_position_tokens=4096, rms_norm_eps=1e-5)
DEFAULT_ORIGINAL_TOKENS = 4096
LONG_TYPES = ("longrope", "su", "yarn")
"""The same scaling under the names of three times."""
SHORT_DIVISORS, LONG_DIVISORS = "rope_factors_short.weight", "rope_factors_long.weight"


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' Phi3Config."""
    decoder = read_hf_decoder(config, NAME, DEFAULTS, _read_hf_rope(config))
    return with_window(decoder, config.optional("sliding_window", int))


def _read_hf_rope(config: ConfigFields) -> Rope:
    rope = hf_rope_section(config, None)
    theta = read_hf_theta(config, rope, DEFAULT_THETA)
    partial = config.with_default("partial_rotary_factor", float, 1.0)
    partial = partial if rope is None else rope.with_default("partial_rotary_factor", float, partial)
    rotary_dim = int(read_hf_head_dim(config, DEFAULTS) * partial)
    kind = "default" if rope is None else hf_rope_type(rope)
    if rope is None or kind == "default":
        return Rope(theta, rotary_dim)
    if kind not in LONG_TYPES:
        raise UnsupportedModelError(
            f"{rope.source}: rope_type is {kind!r}; supported are default, {', '.join(LONG_TYPES)}"
        )
    original = config.with_default("original_max_position_embeddings", int, DEFAULT_ORIGINAL_TOKENS)
    max_tokens = config.with_default("max_position_embeddings", int, DEFAULTS.max_position_tokens)
    return long_rope(
        theta,
        rotary_dim,
        _divisors(rope, "short_factor"),
        _divisors(rope, "long_factor"),
        original,
        max_tokens,
        stretch=rope.optional("factor", float),
        amplitude=rope.optional("attention_factor", float),
    )


def _divisors(rope: ConfigFields, key: str) -> list[float]:
    values = rope.values.get(key)
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise ModelFileError(f"{rope.source}: {key} is {values!r}, expected a list of numbers")
    return [float(value) for value in values]


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Of a GGUF file's metadata."""
    metadata = ConfigFields(file.header.metadata, file.name)
    decoder = read_gguf_decoder(file, NAME, _read_gguf_rope(file, metadata))
    return with_window(decoder, read_gguf_window(metadata, NAME))


def _read_gguf_rope(file: GGUFFile, metadata: ConfigFields) -> Rope:
    theta = metadata.with_default(f"{NAME}.rope.freq_base", float, DEFAULT_THETA)
    rotary_dim = metadata.with_default(f"{NAME}.rope.dimension_count", int, read_gguf_head_dim(metadata, NAME))
    read_gguf_scaling(metadata, NAME, ("none", "longrope"))
    if LONG_DIVISORS not in file.shapes or SHORT_DIVISORS not in file.shapes:
        return Rope(theta, rotary_dim)
    max_tokens = metadata.required(f"{NAME}.context_length", int)
    return long_rope(
        theta,
        rotary_dim,
        read_gguf_vector(file, SHORT_DIVISORS),
        read_gguf_vector(file, LONG_DIVISORS),
        metadata.with_default(f"{NAME}.rope.scaling.original_context_length", int, max_tokens),
        max_tokens,
        amplitude=metadata.optional(f"{NAME}.rope.scaling.attn_factor", float),
    )


_QKV, _GATE_UP = ("query", "key", "value"), ("gate", "up")
HF = HFArchitecture(
    "Phi3ForCausalLM",
    read_hf_config,
    hf_names(dict.fromkeys(_QKV, "self_attn.qkv_proj") | dict.fromkeys(_GATE_UP, "mlp.gate_up_proj")),
)
GGUF = GGUFArchitecture(
    NAME, read_gguf_config, gguf_names(dict.fromkeys(_QKV, "attn_qkv") | dict.fromkeys(_GATE_UP, "ffn_up"))
)
