"""Shapes of well-known models, for plans without their files. Sources: the models' published config.json."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Literal

from offload.errors import OffloadError
from offload.model_shape import ModelShape

WeightType = Literal["float32", "bfloat16", "float16", "int8", "int4"]
BYTES_PER_PARAMETER: dict[WeightType, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 34 / 32,
    "int4": 20 / 32,
}
"""Of matrices. int8: Q8_0, a group of 32 with a half-precision scale; int4: Q4_1, with scale and minimum."""
_VECTOR_BYTES = 4


class UnknownModelError(OffloadError):
    """No built-in shape of that name; the message lists the known ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderSizes:
    """A decoder as its config.json describes it."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_tokens: int
    is_gated: bool = True
    """Three matrices in the feed-forward block; else two."""
    is_tied: bool = False
    """The head is the embedding."""

    @property
    def part_parameters(self) -> tuple[int, ...]:
        """Of a layer's matrices in the order of a slab: query, key and value; output; up (and gate); down."""
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        up = (2 if self.is_gated else 1) * self.intermediate_size
        return tuple(self.hidden_size * n for n in (query + 2 * kv, query, up, self.intermediate_size))

    def shape(self, weight_type: WeightType = "bfloat16") -> ModelShape:
        """With matrices of that type; embedding and head of 4-bit models have 8 bits, as `--quantize` gives them."""
        per_parameter = BYTES_PER_PARAMETER[weight_type]
        per_head = BYTES_PER_PARAMETER["int8"] if weight_type == "int4" else per_parameter
        parts = tuple(round(parameters * per_parameter) for parameters in self.part_parameters)
        table = round(self.vocab_size * self.hidden_size * per_head)
        vectors = (2 * self.num_layers + 1) * self.hidden_size * _VECTOR_BYTES
        kv_values = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return ModelShape(
            name=self.name,
            layer_bytes=(sum(parts),) * self.num_layers,
            fixed_bytes=table * (1 if self.is_tied else 2) + vectors,
            kv_bytes_per_token=kv_values * (4 if weight_type == "float32" else 2),
            max_position_tokens=self.max_position_tokens,
            layer_parameters=sum(self.part_parameters),
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            bytes_per_parameter=per_parameter,
            layer_part_bytes=(parts,) * self.num_layers,
            head_bytes_per_parameter=per_head,
        )


KNOWN_MODELS: dict[str, DecoderSizes] = {
    sizes.name: sizes
    for sizes in (
        DecoderSizes("smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, 8192, is_tied=True),
        DecoderSizes("llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, is_tied=True),
        DecoderSizes("llama-3.2-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, is_tied=True),
        DecoderSizes("llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256, 8192),
        DecoderSizes("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072),
        DecoderSizes("llama-3-70b", 80, 8192, 28672, 64, 8, 128, 128256, 8192),
        DecoderSizes("llama-3.1-70b", 80, 8192, 28672, 64, 8, 128, 128256, 131072),
        DecoderSizes("llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, 4096),
        DecoderSizes("llama-2-13b", 40, 5120, 13824, 40, 40, 128, 32000, 4096),
        DecoderSizes("llama-2-70b", 80, 8192, 28672, 64, 8, 128, 32000, 4096),
        DecoderSizes("codellama-34b", 48, 8192, 22016, 64, 8, 128, 32000, 16384),
        DecoderSizes("mistral-7b", 32, 4096, 14336, 32, 8, 128, 32768, 32768),
        DecoderSizes("qwen-7b", 32, 4096, 11008, 32, 32, 128, 151936, 32768),
        DecoderSizes("qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, 152064, 32768),
        DecoderSizes("qwen2.5-32b", 64, 5120, 27648, 40, 8, 128, 152064, 32768),
        DecoderSizes("qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, 40960),
        DecoderSizes("qwen3-32b", 64, 5120, 25600, 64, 8, 128, 151936, 40960),
        DecoderSizes("opt-1.3b", 24, 2048, 8192, 32, 32, 64, 50272, 2048, is_gated=False, is_tied=True),
        DecoderSizes("opt-6.7b", 32, 4096, 16384, 32, 32, 128, 50272, 2048, is_gated=False, is_tied=True),
        DecoderSizes("opt-13b", 40, 5120, 20480, 40, 40, 128, 50272, 2048, is_gated=False, is_tied=True),
        DecoderSizes("opt-30b", 48, 7168, 28672, 56, 56, 128, 50272, 2048, is_gated=False, is_tied=True),
        DecoderSizes("opt-66b", 64, 9216, 36864, 72, 72, 128, 50272, 2048, is_gated=False, is_tied=True),
        DecoderSizes("opt-175b", 96, 12288, 49152, 96, 96, 128, 50272, 2048, is_gated=False, is_tied=True),
    )
}


def known_shape(name: str, weight_type: WeightType = "bfloat16") -> ModelShape:
    """The shape of that name.

    Raises:
        UnknownModelError: there is none.
    """
    sizes = KNOWN_MODELS.get(name.lower())
    if sizes is None:
        close = difflib.get_close_matches(name.lower(), KNOWN_MODELS, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise UnknownModelError(f"{name!r} is no built-in shape; known are {', '.join(KNOWN_MODELS)}.{guess}")
    return sizes.shape(weight_type)
