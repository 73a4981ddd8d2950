"""One decoder layer around its attention: what is computed row by row before it and after it.

Axes: T tokens, H query heads, KH key/value heads, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layers.layer_layout import LayerMatrices
from engine.model_config import ModelConfig
from engine.models.decoder_weights import LayerWeights
from kernels.activation import gelu_tanh_gate, silu_gate
from kernels.norm import rms_norm
from kernels.packed_matrix import PackedMatrix
from kernels.rotary import rotate

_GATES = {"silu": silu_gate, "gelu_tanh": gelu_tanh_gate}


class DecoderLayer:
    """Pre-norm attention and gated feed-forward. Holds no weights: the slab may move between calls."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._gate = _GATES[config.activation]

    def project(
        self, weights: LayerWeights, matrices: LayerMatrices, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values.

        Args:
            hidden: [T, hidden], not changed.
            cos, sin: of `kernels.rotary.rotation`.

        Returns:
            [T, H, D], [T, KH, D], [T, KH, D].
        """
        config = self._config
        normed = rms_norm(hidden, weights.attention_norm, config.rms_norm_eps)
        qkv = _linear(normed, matrices.qkv, weights.qkv_bias).view(len(hidden), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated = rotate(self._normed_heads(weights, qkv[:, :num_rotated]), cos, sin)
        return rotated[:, : config.num_heads], rotated[:, config.num_heads :], qkv[:, num_rotated:]

    def _normed_heads(self, weights: LayerWeights, heads: Tensor) -> Tensor:
        """Queries and keys [T, H + KH, D], each head normalised where the layer has norms of heads."""
        if weights.query_norm is None or weights.key_norm is None:
            return heads
        eps, num_heads = self._config.rms_norm_eps, self._config.num_heads
        query = rms_norm(heads[:, :num_heads], weights.query_norm, eps)
        return torch.cat((query, rms_norm(heads[:, num_heads:], weights.key_norm, eps)), dim=1)

    def finish(self, weights: LayerWeights, matrices: LayerMatrices, hidden: Tensor, attended: Tensor) -> tuple[Tensor]:
        """The rest of the layer.

        Args:
            hidden: [T, hidden], what `project` was given; not changed.
            attended: [T, H, D].

        Returns:
            [T, hidden].
        """
        delta = _linear(attended.flatten(1), matrices.output, weights.output_bias)
        hidden = hidden + self._normed(delta, weights.post_attention_norm)
        normed = rms_norm(hidden, weights.mlp_norm, self._config.rms_norm_eps)
        gated = self._gate(_linear(normed, matrices.gate_up, weights.gate_up_bias))
        delta = _linear(gated, matrices.down, weights.down_bias)
        return (hidden.add_(self._normed(delta, weights.post_mlp_norm)),)

    def _normed(self, x: Tensor, norm: Tensor | None) -> Tensor:
        return x if norm is None else rms_norm(x, norm, self._config.rms_norm_eps)


def _linear(x: Tensor, matrices: tuple[PackedMatrix, ...], bias: Tensor | None) -> Tensor:
    """The results of all matrices side by side; `bias` is of them all."""
    if len(matrices) == 1:
        return matrices[0].linear(x, bias)
    sizes = [matrix.out_features for matrix in matrices]
    biases = [None] * len(sizes) if bias is None else torch.split(bias, sizes)
    return torch.cat([matrix.linear(x, part) for matrix, part in zip(matrices, biases, strict=True)], dim=-1)
