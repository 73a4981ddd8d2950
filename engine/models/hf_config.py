"""What the config.json of every family says in the same words."""

from __future__ import annotations

import dataclasses

from engine.attention_kind import AttentionKind
from engine.config_fields import ConfigFields
from engine.model_config import ModelConfig
from engine.model_error import UnsupportedModelError
from engine.models.rope_config import DEFAULT_THETA, read_hf_rope
from kernels.rotary import Rope


@dataclasses.dataclass(frozen=True, slots=True)
class HFDefaults:
    """What transformers takes where a config.json is silent."""

    max_position_tokens: int
    num_kv_heads: int | None = None
    """None: as many as query heads."""
    head_dim: int | None = None
    """None: the hidden size cut into heads."""
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: float = DEFAULT_THETA
    activation_key: str = "hidden_act"
    activation: str = "silu"
    """The only one that is supported."""


def read_hf_decoder(
    config: ConfigFields, architecture: str, defaults: HFDefaults, rope: Rope | None = None
) -> ModelConfig:
    """A decoder with full attention in all layers and no bias; the end tokens of other files are the caller's.

    Args:
        architecture: our name of the family.
        rope: None: as `read_hf_rope` reads it.

    Raises:
        ModelFileError: a value is missing, of another type or impossible.
        UnsupportedModelError: an option the decoder has not.
    """
    activation = config.with_default(defaults.activation_key, str, defaults.activation)
    if activation != defaults.activation:
        raise UnsupportedModelError(
            f"{config.source}: {defaults.activation_key} is {activation!r}, only {defaults.activation!r} is supported"
        )
    if config.section("quantization_config") is not None:
        raise UnsupportedModelError(
            f"{config.source}: quantization_config is not supported; use plain weights or a GGUF file"
        )
    head_dim = read_hf_head_dim(config, defaults)
    max_position_tokens = config.with_default("max_position_embeddings", int, defaults.max_position_tokens)
    return ModelConfig(
        architecture=architecture,
        num_layers=config.required("num_hidden_layers", int),
        hidden_size=config.required("hidden_size", int),
        num_heads=config.required("num_attention_heads", int),
        num_kv_heads=_num_kv_heads(config, defaults),
        head_dim=head_dim,
        intermediate_size=config.required("intermediate_size", int),
        vocab_size=config.required("vocab_size", int),
        max_position_tokens=max_position_tokens,
        rms_norm_eps=config.with_default("rms_norm_eps", float, defaults.rms_norm_eps),
        attention_kinds=(
            AttentionKind(rope or read_hf_rope(config, head_dim, max_position_tokens, defaults.rope_theta)),
        ),
        tie_word_embeddings=config.with_default("tie_word_embeddings", bool, defaults.tie_word_embeddings),
        eos_token_ids=config.token_ids("eos_token_id"),
        bos_token_id=next(iter(config.token_ids("bos_token_id")), None),
    )


def read_hf_head_dim(config: ConfigFields, defaults: HFDefaults) -> int:
    """Dimensions of a head."""
    cut = config.required("hidden_size", int) // max(config.required("num_attention_heads", int), 1)
    return config.with_default("head_dim", int, defaults.head_dim or cut)


def _num_kv_heads(config: ConfigFields, defaults: HFDefaults) -> int:
    """A null says "as many as query heads", silence what the family's default is."""
    is_silent = "num_key_value_heads" not in config.values
    num_heads = config.required("num_attention_heads", int)
    default = defaults.num_kv_heads if is_silent and defaults.num_kv_heads is not None else num_heads
    return config.with_default("num_key_value_heads", int, default)


def read_hf_window(config: ConfigFields, default: int) -> int | None:
    """`sliding_window`: a null says that there is none, silence that it is `default`."""
    return config.optional("sliding_window", int) if "sliding_window" in config.values else default


def with_window(config: ModelConfig, sliding_window: int | None) -> ModelConfig:
    """`config` with that window in all layers; one as wide as the context hides nothing."""
    if sliding_window is not None and sliding_window >= config.max_position_tokens:
        sliding_window = None
    kinds = tuple(dataclasses.replace(kind, sliding_window=sliding_window) for kind in config.attention_kinds)
    return dataclasses.replace(config, attention_kinds=kinds)
