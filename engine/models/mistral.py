"""Mistral: Llama with a sliding window in all layers. Its GGUF files call themselves llama."""

from __future__ import annotations

from engine.config_fields import ConfigFields
from engine.model_config import ModelConfig
from engine.model_error import UnsupportedModelError
from engine.models.architecture import HFArchitecture
from engine.models.decoder_names import hf_names
from engine.models.hf_config import HFDefaults, read_hf_decoder, with_window

NAME = "mistral"
DEFAULTS = HFDefaults(max_position_tokens=131_072, num_kv_heads=8)
DEFAULT_WINDOW = 4096
"""Where a config.json is silent; a null says that there is none."""


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' MistralConfig."""
    if config.values.get("layer_types") is not None:
        raise UnsupportedModelError(f"{config.source}: layer_types is not supported in a Mistral; leave it out")
    is_silent = "sliding_window" not in config.values
    window = DEFAULT_WINDOW if is_silent else config.optional("sliding_window", int)
    return with_window(read_hf_decoder(config, NAME, DEFAULTS), window)


HF = HFArchitecture("MistralForCausalLM", read_hf_config, hf_names())
