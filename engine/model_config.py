"""What a decoder is: sizes and options, whatever file format and architecture they came from."""

from __future__ import annotations

import dataclasses
import math

from kernels.rotary import RopeScaling

MAX_SIZE = 2**28
"""No size of a model is larger; a damaged file's may be."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Every option of `engine.models.decoder.Decoder` is a field here; the architectures differ in values only."""

    architecture: str
    """Our name of the family, e.g. "llama"."""
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_tokens: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    """The head is the embedding."""
    attention_bias: bool = False
    """Biases of the query, key and value projections."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a generation; may be empty."""
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not 1 <= value <= MAX_SIZE:
                raise ValueError(f"{field.name} is {value}, it must be between 1 and {MAX_SIZE}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, it must be even: rotary embedding turns pairs")
        for name, number in (("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)):
            if not (math.isfinite(number) and number > 0):
                raise ValueError(f"{name} is {number}, it must be positive and finite")

    @property
    def query_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        """Factor on the dot products."""
        return float(self.head_dim**-0.5)
