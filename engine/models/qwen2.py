"""Qwen2 and Qwen2.5: Llama with biases of query, key and value."""

from __future__ import annotations

import dataclasses

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.models.architecture import GGUFArchitecture, HFArchitecture
from engine.models.decoder_names import gguf_names, hf_names
from engine.models.gguf_config import read_gguf_decoder
from engine.models.hf_config import HFDefaults, read_hf_decoder, read_hf_window
from engine.models.layer_types import SLIDING, mixed_layers, read_layer_types

NAME = "qwen2"
DEFAULTS = HFDefaults(max_position_tokens=32_768, num_kv_heads=32)
DEFAULT_WINDOW = 4096
DEFAULT_FULL_LAYERS = 28
"""`max_window_layers`: so many layers see everything before those with a window."""


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' Qwen2Config."""
    decoder = dataclasses.replace(read_hf_decoder(config, NAME, DEFAULTS), attention_bias=True)
    return with_windows(config, decoder)


def with_windows(config: ConfigFields, decoder: ModelConfig) -> ModelConfig:
    """The decoder with the windows that a config.json of Qwen2 or Qwen3 switches on."""
    if not config.with_default("use_sliding_window", bool, False):
        return decoder
    (full,) = decoder.attention_kinds
    window = read_hf_window(config, DEFAULT_WINDOW)
    num_full_layers = config.with_default("max_window_layers", int, DEFAULT_FULL_LAYERS)
    types = read_layer_types(config, decoder.num_layers)
    return mixed_layers(
        decoder,
        full,
        dataclasses.replace(full, sliding_window=window),
        lambda layer: layer >= num_full_layers if types is None else types[layer] == SLIDING,
    )


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Of a GGUF file's metadata."""
    return read_gguf_decoder(file, NAME)


HF = HFArchitecture("Qwen2ForCausalLM", read_hf_config, hf_names())
GGUF = GGUFArchitecture(NAME, read_gguf_config, gguf_names())
