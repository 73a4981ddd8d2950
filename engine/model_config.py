"""What a decoder is: sizes and options, whatever file format and architecture they came from."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from engine.attention_kind import AttentionKind

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
    attention_kinds: tuple[AttentionKind, ...]
    layer_kinds: tuple[int, ...] = ()
    """Of every layer, the index of its kind; empty: all are of the first."""
    query_pre_attention_scalar: float | None = None
    """Dot products are divided by its root; None: by that of the head dimension."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the gate."""
    has_head_norms: bool = False
    """Each query and key head is normalised before it turns."""
    has_post_norms: bool = False
    """What attention and feed-forward give is normalised before it is added."""
    has_wide_norms: bool = False
    """Norms multiply in float32, before the result is rounded to the activations' type."""
    embedding_scale: float = 1.0
    """Factor on embeddings, rounded to the activations' type before it multiplies."""
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
        for name in ("rms_norm_eps", "query_pre_attention_scalar", "embedding_scale"):
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(f"{name} is {number}, it must be positive and finite")
        for kind in self.attention_kinds:
            kind.check_fits(self.head_dim)
        if self.layer_kinds and len(self.layer_kinds) != self.num_layers:
            raise ValueError(f"{len(self.layer_kinds)} layers have a kind of attention, there are {self.num_layers}")

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
        return float((self.query_pre_attention_scalar or self.head_dim) ** -0.5)

    def kind_of(self, layer: int) -> int:
        """The index of the layer's kind of attention."""
        return self.layer_kinds[layer] if self.layer_kinds else 0

    def for_context(self, context_tokens: int) -> ModelConfig:
        """Where no sequence is longer than `context_tokens`."""
        kinds = tuple(kind.for_context(context_tokens) for kind in self.attention_kinds)
        return dataclasses.replace(self, attention_kinds=kinds)
