"""Rotary scaling as configurations spell it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config_fields import ConfigFields
from engine.model_error import ModelFileError, UnsupportedModelError
from kernels.rotary import FrequencyDivisors, LinearScaling, Llama3Scaling, RopeScaling

DEFAULT_THETA = 10_000.0
SUPPORTED_TYPES = ("default", "linear", "llama3")


def read_hf_rope(config: ConfigFields, max_position_tokens: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling of a config.json: `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling`.

    Raises:
        ModelFileError: a value is missing or of another type.
        UnsupportedModelError: another kind of scaling, or rotation of a part of the head.
    """
    rope = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.with_default("rope_theta", float, DEFAULT_THETA)
    if rope is not None:
        theta = rope.with_default("rope_theta", float, theta)
    for fields in (config, rope):
        partial = fields.optional("partial_rotary_factor", float) if fields else None
        if partial not in (None, 1.0):
            raise UnsupportedModelError(f"{config.source}: partial_rotary_factor is {partial}, only 1 is supported")
    if rope is None:
        return theta, None
    kind = rope.optional("rope_type", str) or rope.optional("type", str) or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, LinearScaling(_positive(rope, "factor"))
    if kind == "llama3":
        original = rope.with_default("original_max_position_embeddings", int, max_position_tokens)
        if original < 1:
            raise ModelFileError(f"{rope.source}: original_max_position_embeddings is {original}, it must be positive")
        return theta, Llama3Scaling(
            _positive(rope, "factor"), _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor"), original
        )
    raise UnsupportedModelError(f"{rope.source}: rope_type is {kind!r}; supported are {', '.join(SUPPORTED_TYPES)}")


def _positive(rope: ConfigFields, key: str) -> float:
    """Raises ModelFileError: missing, or no number above 0."""
    value = rope.required(key, float)
    if not value > 0:
        raise ModelFileError(f"{rope.source}: {key} is {value}, it must be positive")
    return value


def read_gguf_rope(
    metadata: ConfigFields, architecture: str, frequency_divisors: Sequence[float] | None
) -> tuple[float, RopeScaling | None]:
    """Base and scaling of a GGUF file; Llama 3's scaling is stored as one divisor per frequency.

    Raises:
        ModelFileError: a value is missing or of another type.
        UnsupportedModelError: another kind of scaling.
    """
    theta = metadata.with_default(f"{architecture}.rope.freq_base", float, DEFAULT_THETA)
    key = f"{architecture}.rope.scaling.type"
    kind = metadata.optional(key, str) or "none"
    factor = metadata.optional(f"{architecture}.rope.scaling.factor", float)
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(f"{metadata.source}: {key} is {kind!r}; supported are none, linear")
    if frequency_divisors is not None:
        return theta, FrequencyDivisors(tuple(frequency_divisors))
    if kind == "linear" and factor is not None:
        return theta, LinearScaling(factor)
    return theta, None
