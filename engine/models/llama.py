"""The Llama family: Llama 2 and 3, SmolLM2, and whatever else calls itself LlamaForCausalLM.

GGUF files of Mistral models call themselves llama too, and may state a sliding window.
"""

from __future__ import annotations

import dataclasses

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.models.architecture import GGUFArchitecture, HFArchitecture
from engine.models.decoder_names import gguf_names, hf_names
from engine.models.gguf_config import read_gguf_decoder, read_gguf_window
from engine.models.hf_config import HFDefaults, read_hf_decoder, with_window

NAME = "llama"
DEFAULTS = HFDefaults(max_position_tokens=2048)


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' LlamaConfig."""
    has_attention_bias = config.with_default("attention_bias", bool, False)
    return dataclasses.replace(
        read_hf_decoder(config, NAME, DEFAULTS),
        attention_bias=has_attention_bias,
        attention_output_bias=has_attention_bias,
        mlp_bias=config.with_default("mlp_bias", bool, False),
    )


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Of a GGUF file's metadata."""
    window = read_gguf_window(ConfigFields(file.header.metadata, file.name), NAME)
    return with_window(read_gguf_decoder(file, NAME), window)


HF = HFArchitecture("LlamaForCausalLM", read_hf_config, hf_names())
GGUF = GGUFArchitecture(NAME, read_gguf_config, gguf_names(has_interleaved_rotary_pairs=True))
