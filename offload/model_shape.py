"""The sizes of a model that placement depends on: bytes a layer, bytes that never move, bytes of KV a token."""

from __future__ import annotations

import dataclasses
import itertools


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
    matrix_bytes: tuple[int, ...] = ()
    """Of a layer, in the order of the slab: where a layer can be cut. Empty: it moves whole or not at all."""

    def __post_init__(self) -> None:
        for name in ("fixed_bytes", "kv_bytes_per_token", "max_position_tokens", "layer_parameters", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.name}: {name} is {getattr(self, name)}, it must be at least 1")
        if not self.layer_bytes or min(self.layer_bytes) < 1:
            raise ValueError(f"{self.name}: layer_bytes is {self.layer_bytes}, each layer must have at least one byte")
        if sum(self.matrix_bytes) > max(self.layer_bytes):
            raise ValueError(
                f"{self.name}: the matrices take {sum(self.matrix_bytes)} bytes, the largest layer "
                f"has {max(self.layer_bytes)}"
            )

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
    def cuts(self) -> tuple[float, ...]:
        """Shares of a layer that can be streamed: the last matrices of its slab, from the smallest tail to all of it.

        A tail ends at a matrix boundary; alignment gaps count to the matrix before them, so the shares are those of
        the matrices' bytes alone.
        """
        total = sum(self.matrix_bytes)
        tails = itertools.accumulate(reversed(self.matrix_bytes[1:])) if total else iter(())
        return (*(tail / total for tail in tails), 1.0)
