"""Gemma 3, its text part: scaled embeddings, norms before and after, most layers with a window and its own rotation.

safetensors hold the norms less one, GGUF files as they multiply. Source of what GGUF files leave unsaid: llama.cpp,
src/models/gemma3.cpp.
"""

from __future__ import annotations

import dataclasses

from engine.attention_kind import AttentionKind
from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import ModelFileError, UnsupportedModelError
from engine.models.architecture import GGUFArchitecture, HFArchitecture
from engine.models.decoder_names import gguf_names, hf_names
from engine.models.gguf_config import read_gguf_decoder, read_gguf_window
from engine.models.hf_config import HFDefaults, read_hf_decoder, read_hf_head_dim, read_hf_window
from engine.models.layer_types import FULL, SLIDING, mixed_layers, read_layer_types
from engine.models.rope_config import hf_rope_section, is_by_layer_type, read_hf_rope
from kernels.rotary import Rope

NAME = "gemma3"
DEFAULTS = HFDefaults(
    max_position_tokens=131_072,
    num_kv_heads=4,
    head_dim=256,
    tie_word_embeddings=True,
    rope_theta=1_000_000.0,
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
)
DEFAULT_LOCAL_THETA = 10_000.0
DEFAULT_PERIOD = 6
"""Every such layer sees everything."""
DEFAULT_WINDOW = 4096
DEFAULT_QUERY_SCALAR = 256.0
_LAYERS_OF_27B = 62
"""The one size whose scale of dot products is not its head dimension's; GGUF files do not say it."""
_SOFT_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")
"""Gemma 2's."""


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json of `gemma3_text`, with the defaults of transformers' Gemma3TextConfig."""
    _check_soft_caps(config, "")
    if config.with_default("use_bidirectional_attention", bool, False):
        raise UnsupportedModelError(f"{config.source}: use_bidirectional_attention is not supported")
    has_bias = config.with_default("attention_bias", bool, False)
    head_dim = read_hf_head_dim(config, DEFAULTS)
    max_tokens = config.with_default("max_position_embeddings", int, DEFAULTS.max_position_tokens)
    rope = read_hf_rope(config, head_dim, max_tokens, DEFAULTS.rope_theta, FULL)
    decoder = dataclasses.replace(
        _gemma(read_hf_decoder(config, NAME, DEFAULTS, rope)),
        query_pre_attention_scalar=config.with_default("query_pre_attn_scalar", float, DEFAULT_QUERY_SCALAR),
        attention_bias=has_bias,
        attention_output_bias=has_bias,
    )
    (full,) = decoder.attention_kinds
    window = read_hf_window(config, DEFAULT_WINDOW)
    sliding = AttentionKind(_hf_local_rope(config, decoder), window)
    types = read_layer_types(config, decoder.num_layers)
    period = _period(config, "sliding_window_pattern")
    return mixed_layers(
        decoder, full, sliding, lambda layer: (layer + 1) % period > 0 if types is None else types[layer] == SLIDING
    )


def _hf_local_rope(config: ConfigFields, decoder: ModelConfig) -> Rope:
    """Of layers with a window: `rope_local_base_freq`, or an entry of its own in `rope_parameters`."""
    theta = config.with_default("rope_local_base_freq", float, DEFAULT_LOCAL_THETA)
    section = config.section("rope_parameters")
    if section is None or not is_by_layer_type(section):
        return Rope(theta, decoder.head_dim)
    own = hf_rope_section(config, SLIDING)
    theta = theta if own is None else own.with_default("rope_theta", float, theta)
    rope = read_hf_rope(config, decoder.head_dim, decoder.max_position_tokens, layer_type=SLIDING)
    return dataclasses.replace(rope, theta=theta)


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Of a GGUF file's metadata."""
    metadata = ConfigFields(file.header.metadata, file.name)
    _check_soft_caps(metadata, f"{NAME}.")
    decoder = _gemma(read_gguf_decoder(file, NAME))
    if decoder.num_layers == _LAYERS_OF_27B:
        scalar = float(decoder.hidden_size // decoder.num_heads)
        decoder = dataclasses.replace(decoder, query_pre_attention_scalar=scalar)
    window = read_gguf_window(metadata, NAME)
    if window is None:
        return decoder
    (full,) = decoder.attention_kinds
    theta = metadata.with_default(f"{NAME}.rope.freq_base_swa", float, DEFAULT_LOCAL_THETA)
    sliding = AttentionKind(Rope(theta, decoder.head_dim), window)
    pattern_key = f"{NAME}.attention.sliding_window_pattern"
    flags = metadata.values.get(pattern_key)
    if isinstance(flags, list):
        if len(flags) != decoder.num_layers:
            raise ModelFileError(f"{file.name}: {pattern_key} has {len(flags)} entries for {decoder.num_layers} layers")
        return mixed_layers(decoder, full, sliding, lambda layer: bool(flags[layer]))
    period = _period(metadata, pattern_key)
    return mixed_layers(decoder, full, sliding, lambda layer: (layer + 1) % period > 0)


def _gemma(decoder: ModelConfig) -> ModelConfig:
    """What is so in every Gemma 3."""
    return dataclasses.replace(
        decoder,
        activation="gelu_tanh",
        has_head_norms=True,
        has_post_norms=True,
        has_wide_norms=True,
        embedding_scale=decoder.hidden_size**0.5,
    )


def _check_soft_caps(config: ConfigFields, prefix: str) -> None:
    for key in _SOFT_CAPS:
        soft_cap = config.optional(prefix + key, float)
        if soft_cap:
            raise UnsupportedModelError(f"{config.source}: {prefix}{key} is {soft_cap}, soft caps are not supported")


def _period(config: ConfigFields, key: str) -> int:
    """One layer in so many sees everything.

    Raises:
        ModelFileError: no whole number of at least 1.
    """
    period = config.with_default(key, int, DEFAULT_PERIOD)
    if period < 1:
        raise ModelFileError(f"{config.source}: {key} is {period}, it must be at least 1")
    return period


def read_multi_modal_config(config: ConfigFields) -> ModelConfig:
    """Of a directory that calls itself Gemma3ForConditionalGeneration: read where it holds the text part alone.

    Raises:
        UnsupportedModelError: it holds more.
    """
    model_type = config.optional("model_type", str)
    if model_type != "gemma3_text":
        raise UnsupportedModelError(
            f"{config.source}: Gemma3ForConditionalGeneration with model_type {model_type!r} is multi-modal, which is "
            f"not supported; use a directory of the text part alone (Gemma3ForCausalLM, gemma3_text) or a GGUF file"
        )
    return read_hf_config(config)


_HF_NAMES = hf_names(
    {
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    norm_offset=1.0,
)
HF = HFArchitecture("Gemma3ForCausalLM", read_hf_config, _HF_NAMES)
HF_MULTI_MODAL = HFArchitecture("Gemma3ForConditionalGeneration", read_multi_modal_config, _HF_NAMES)
GGUF = GGUFArchitecture(NAME, read_gguf_config, gguf_names())
