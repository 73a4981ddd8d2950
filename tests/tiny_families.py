"""Small random models of every family, in transformers: float32, eval mode, logits that are not flat."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.tiny_model import TINY_OPTIONS

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [2.0 + 0.5 * index for index in range(8)],
}
"""For 16 rotated dimensions."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral_window": ("mistral", {"sliding_window": 20, "head_dim": 24}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2_tied_mha": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2_window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_window_bias": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma3": (
        "gemma3",
        {
            "num_hidden_layers": 7,
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
            "initializer_range": 0.1,
        },
    ),
    "gemma3_scalar": ("gemma3", {"query_pre_attn_scalar": 40, "attention_bias": True, "sliding_window": 50}),
    "gemma3_scaled": (
        "gemma3",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "num_key_value_heads": 1,
            "sliding_window": 7,
            "tie_word_embeddings": False,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            },
        },
    ),
    "phi3": ("phi3", {"sliding_window": 31}),
    "phi3_partial": (
        "phi3",
        {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        },
    ),
    "phi3_short": (
        "phi3",
        {"max_position_embeddings": 256, "original_max_position_embeddings": 256, "rope_parameters": LONG_ROPE},
    ),
    "phi3_long": (
        "phi3",
        {"max_position_embeddings": 512, "original_max_position_embeddings": 16, "rope_parameters": LONG_ROPE},
    ),
    "phi3_long_partial": (
        "phi3",
        {
            "hidden_size": 128,
            "max_position_embeddings": 512,
            "original_max_position_embeddings": 16,
            "initializer_range": 0.1,
            "rope_parameters": LONG_ROPE | {"partial_rotary_factor": 0.5, "attention_factor": 1.3},
        },
    ),
}
"""Of every family but Llama, whose variants are in tests/unit/engine/test_models.py."""


def make_variant(variant: str, seed: int = 1, **overrides: Any) -> PreTrainedModel:
    """One of `VARIANTS`."""
    family, options = VARIANTS[variant]
    return make_model(family, seed, **options | overrides)


def make_model(family: str, seed: int = 0, **config_overrides: Any) -> PreTrainedModel:
    """The model itself; the caller's random state is left alone.

    Args:
        config_overrides: fields of transformers' configuration class.
    """
    config_class, model_class = FAMILIES[family]
    options = dict(TINY_OPTIONS)
    if family in ("qwen3", "gemma3"):
        options["head_dim"] = 16
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config_class(**copy.deepcopy(options | config_overrides))).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # made as ones and zeros, which would hide a mix-up
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model
