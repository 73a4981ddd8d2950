"""The sizes of a model that placement depends on: bytes a layer, bytes that never move, bytes of KV a token."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class ModelShape:
    """One decoder. Embedding, head (counted once where they are tied), norms and biases are never streamed.

    Raises:
        ValueError: a size that no model has, or matrices that do not fit into a layer.
    """

    name: str
    layer_bytes: tuple[int, ...]
    """The slab of each decoder layer in the form it is multiplied in; layers may differ (mixed K-quants)."""
    fixed_bytes: int
    """Embedding and head (once where they are tied), norms and biases: always on the device."""
    kv_bytes_per_token: int
    """Keys and values of all layers."""
    max_position_tokens: int
    layer_parameters: int
    """Of one layer's matrices; of the largest layer where they differ."""
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    bytes_per_parameter: float
    """Of the layers' matrices, scales included: 2 for bfloat16, 0.5625 for 4 bits with a half-precision scale a 32."""
    layer_part_bytes: tuple[tuple[int, ...], ...] = ()
    """Of each layer, its parts in the order of the slab, gaps counted to the part before them: where a layer can be
    cut. Matrices that are multiplied as one are one part. Empty: layers move whole or not at all."""

    head_bytes_per_parameter: float = 2.0
    """Of the head's matrix."""

    def __post_init__(self) -> None:
        for name in ("fixed_bytes", "kv_bytes_per_token", "max_position_tokens", "layer_parameters", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}, it must be at least 1")
        if not self.layer_bytes or min(self.layer_bytes) < 1:
            raise ValueError(f"{self.name}: layer_bytes is {self.layer_bytes}, each layer must have at least one byte")
        sums = tuple(sum(parts) for parts in self.layer_part_bytes)
        if sums and (sums != self.layer_bytes or len({len(parts) for parts in self.layer_part_bytes}) > 1):
            raise ValueError(
                f"{self.name}: the parts of the layers add up to {sums}, the layers are {self.layer_bytes}"
            )

    @property
    def head_bytes(self) -> float:
        """What the head reads."""
        return self.vocab_size * self.hidden_size * self.head_bytes_per_parameter

    @property
    def num_layers(self) -> int:
        return len(self.layer_bytes)

    @property
    def weights_bytes(self) -> int:
        """All of the model."""
        return self.fixed_bytes + sum(self.layer_bytes)

    @property
    def mean_layer_bytes(self) -> float:
        return sum(self.layer_bytes) / len(self.layer_bytes)

    @property
    def num_parts(self) -> int:
        """Of every layer."""
        return len(self.layer_part_bytes[0]) if self.layer_part_bytes else 1

    def tail_bytes(self, num_parts: int) -> tuple[int, ...]:
        """Of each layer, the last `num_parts` parts of its slab: what is streamed of it; all parts are the layer.

        Raises:
            ValueError: layers have no such number of parts.
        """
        if not 1 <= num_parts <= self.num_parts:
            raise ValueError(f"{self.name}: {num_parts} parts of a layer, they have {self.num_parts}")
        if num_parts == self.num_parts:
            return self.layer_bytes
        return tuple(sum(parts[-num_parts:]) for parts in self.layer_part_bytes)
