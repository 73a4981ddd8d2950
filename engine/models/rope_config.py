"""Rotary embedding as configurations spell it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.config_fields import ConfigFields
from engine.model_error import ModelFileError, UnsupportedModelError
from kernels.rotary import LinearScaling, Llama3Scaling, LongScaling, Rope, RopeScaling

DEFAULT_THETA = 10_000.0
SUPPORTED_TYPES = ("default", "linear", "llama3")


def hf_rope_section(config: ConfigFields, layer_type: str | None) -> ConfigFields | None:
    """What a config.json says of the rotation in layers of that type, None: of all.

    It says it in `rope_parameters` (transformers 5, there also one entry per layer type) or in `rope_scaling`.

    Raises:
        UnsupportedModelError: there are entries per layer type in a family that has none.
    """
    section = config.section("rope_parameters") or config.section("rope_scaling")
    if section is None or not is_by_layer_type(section):
        return section
    if layer_type is None:
        raise UnsupportedModelError(f"{section.source} has an entry per layer type, one for all layers is supported")
    return section.section(layer_type)


def is_by_layer_type(section: ConfigFields) -> bool:
    """Whether a section has one entry per layer type."""
    return bool({"full_attention", "sliding_attention"} & section.values.keys())


def read_hf_rope(
    config: ConfigFields,
    head_dim: int,
    max_position_tokens: int,
    default_theta: float = DEFAULT_THETA,
    layer_type: str | None = None,
) -> Rope:
    """Of a config.json, in layers of `layer_type`, None: in all.

    Raises:
        ModelFileError: a value is missing or of another type.
        UnsupportedModelError: another kind of scaling, or rotation of a part of the head.
    """
    rope = hf_rope_section(config, layer_type)
    for fields in (config, rope):
        partial = fields.optional("partial_rotary_factor", float) if fields else None
        if partial not in (None, 1.0):
            raise UnsupportedModelError(f"{config.source}: partial_rotary_factor is {partial}, only 1 is supported")
    theta = read_hf_theta(config, rope, default_theta)
    return Rope(theta, head_dim, None if rope is None else _hf_scaling(rope, max_position_tokens))


def read_hf_theta(config: ConfigFields, rope: ConfigFields | None, default_theta: float) -> float:
    """Of `rope`, the section; of `config` where that has none."""
    theta = config.with_default("rope_theta", float, default_theta)
    return theta if rope is None else rope.with_default("rope_theta", float, theta)


def hf_rope_type(rope: ConfigFields) -> str:
    """The kind of scaling."""
    return rope.optional("rope_type", str) or rope.optional("type", str) or "default"


def _hf_scaling(rope: ConfigFields, max_position_tokens: int) -> RopeScaling | None:
    kind = hf_rope_type(rope)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(_positive(rope, "factor"))
    if kind == "llama3":
        original = rope.with_default("original_max_position_embeddings", int, max_position_tokens)
        if original < 1:
            raise ModelFileError(f"{rope.source}: original_max_position_embeddings is {original}, it must be positive")
        return Llama3Scaling(
            _positive(rope, "factor"), _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor"), original
        )
    raise UnsupportedModelError(f"{rope.source}: rope_type is {kind!r}; supported are {', '.join(SUPPORTED_TYPES)}")


def _positive(rope: ConfigFields, key: str) -> float:
    """Raises ModelFileError: missing, or no number above 0."""
    value = rope.required(key, float)
    if not value > 0:
        raise ModelFileError(f"{rope.source}: {key} is {value}, it must be positive")
    return value


def long_rope(
    theta: float,
    rotary_dim: int,
    short_divisors: Sequence[float],
    long_divisors: Sequence[float],
    original_max_position_tokens: int,
    max_position_tokens: int,
    stretch: float | None = None,
    amplitude: float | None = None,
) -> Rope:
    """LongRoPE of a model for `max_position_tokens`.

    Args:
        stretch: None: how much longer that is than the original context.
        amplitude: None: it follows from `stretch`.

    Raises:
        ValueError: a number of tokens is impossible.
    """
    if original_max_position_tokens < 2:
        raise ValueError(f"original_max_position_embeddings is {original_max_position_tokens}, it must be at least 2")
    if amplitude is None:
        stretch = max_position_tokens / original_max_position_tokens if stretch is None else stretch
        amplitude = math.sqrt(1 + math.log(max(stretch, 1.0)) / math.log(original_max_position_tokens))
    scaling = LongScaling(
        tuple(short_divisors), tuple(long_divisors), original_max_position_tokens, max_position_tokens
    )
    return Rope(theta, rotary_dim, scaling, amplitude)


def read_gguf_scaling(metadata: ConfigFields, architecture: str, supported: Sequence[str]) -> LinearScaling | None:
    """The scaling that a GGUF file's metadata names.

    Raises:
        ModelFileError: a value is of another type.
        UnsupportedModelError: a kind that is not among `supported`.
    """
    key = f"{architecture}.rope.scaling.type"
    kind = metadata.optional(key, str) or "none"
    if kind not in supported:
        raise UnsupportedModelError(f"{metadata.source}: {key} is {kind!r}; supported are {', '.join(supported)}")
    factor = metadata.optional(f"{architecture}.rope.scaling.factor", float)
    return LinearScaling(factor) if kind == "linear" and factor is not None else None
