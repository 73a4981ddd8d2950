"""Mistral: Llama with a sliding window in all layers. Its GGUF files call themselves llama."""

from __future__ import annotations

from engine.config_fields import ConfigFields
from engine.model_config import ModelConfig
from engine.model_error import UnsupportedModelError
from engine.models.architecture import HFArchitecture
from engine.models.decoder_names import hf_names
from engine.models.hf_config import HFDefaults, read_hf_decoder, read_hf_window, with_window

NAME = "mistral"
DEFAULTS = HFDefaults(max_position_tokens=131_072, num_kv_heads=8)
DEFAULT_WINDOW = 4096


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' MistralConfig."""
    if config.values.get("layer_types") is not None:
        raise UnsupportedModelError(f"{config.source}: layer_types is not supported in a Mistral; leave it out")
    return with_window(read_hf_decoder(config, NAME, DEFAULTS), read_hf_window(config, DEFAULT_WINDOW))


HF = HFArchitecture("MistralForCausalLM", read_hf_config, hf_names())
