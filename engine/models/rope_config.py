"""Rotary scaling as configurations spell it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config_fields import ConfigFields
from engine.model_error import UnsupportedModelError
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
    theta = (rope and rope.optional("rope_theta", float)) or config.optional("rope_theta", float) or DEFAULT_THETA
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
        return theta, LinearScaling(rope.required("factor", float))
    if kind == "llama3":
        return theta, Llama3Scaling(
            rope.required("factor", float),
            rope.required("low_freq_factor", float),
            rope.required("high_freq_factor", float),
            rope.optional("original_max_position_embeddings", int) or max_position_tokens,
        )
    raise UnsupportedModelError(f"{rope.source}: rope_type is {kind!r}; supported are {', '.join(SUPPORTED_TYPES)}")


def read_gguf_rope(
    metadata: ConfigFields, architecture: str, frequency_divisors: Sequence[float] | None
) -> tuple[float, RopeScaling | None]:
    """Base and scaling of a GGUF file; Llama 3's scaling is stored as one divisor per frequency.

    Raises:
        ModelFileError: a value is missing or of another type.
        UnsupportedModelError: another kind of scaling.
    """
    theta = metadata.optional(f"{architecture}.rope.freq_base", float) or DEFAULT_THETA
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
