"""Qwen3, dense: Qwen2 with norms of query and key heads in place of biases."""

from __future__ import annotations

import dataclasses

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.models.architecture import GGUFArchitecture, HFArchitecture
from engine.models.decoder_names import gguf_names, hf_names
from engine.models.gguf_config import read_gguf_decoder
from engine.models.hf_config import HFDefaults, read_hf_decoder
from engine.models.qwen2 import with_windows

NAME = "qwen3"
DEFAULTS = HFDefaults(max_position_tokens=32_768, num_kv_heads=32, head_dim=128)


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' Qwen3Config."""
    has_attention_bias = config.with_default("attention_bias", bool, False)
    decoder = dataclasses.replace(
        read_hf_decoder(config, NAME, DEFAULTS),
        has_head_norms=True,
        attention_bias=has_attention_bias,
        attention_output_bias=has_attention_bias,
    )
    return with_windows(config, decoder)


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Of a GGUF file's metadata."""
    return dataclasses.replace(read_gguf_decoder(file, NAME), has_head_norms=True)


HF = HFArchitecture("Qwen3ForCausalLM", read_hf_config, hf_names())
GGUF = GGUFArchitecture(NAME, read_gguf_config, gguf_names())
