"""The decoder on native kernels: the same computation as `engine.models.decoder`, two calls a step.

The residual stream is float32 whatever the type of the activations. Every row of every operation is computed by one
sequence of instructions whatever the batch: this path is batch-invariant always, at no cost.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderWeights, LayerWeights
from kernels.attention.base import AttentionMetadata
from kernels.native.activation import Activation
from kernels.native.decoder import DecoderOperands, LayerKind, LayerOperands, LayerShape, NativeStack
from kernels.native.linear import Head
from kernels.native.rotary import HeadNorms
from kernels.native_library import NativeLibrary

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_tanh": Activation.GELU_TANH}


class NativeDecoder:
    """Holds weights and no state of a step. The library and its threads are the caller's to close."""

    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, library: NativeLibrary
    ) -> None:
        """
        Args:
            weights: in native formats, vectors in float32.
            dtype: of activations, keys and values.
        """
        self.config = config
        self.weights = weights
        self.dtype = dtype
        shape = LayerShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.rms_norm_eps,
            attention_scale=config.attention_scale,
            dtype=dtype,
            activation=_ACTIVATIONS[config.activation],
        )
        operands = DecoderOperands(
            layers=tuple(_operands(config, index, layer) for index, layer in enumerate(weights.layers)),
            kinds=tuple(
                LayerKind(kind.rope.frequencies, kind.sliding_window, kind.rope.amplitude)
                for kind in config.attention_kinds
            ),
            embedding=weights.embedding,
            final_norm=weights.final_norm,
            embedding_scale=float(torch.tensor(config.embedding_scale, dtype=dtype)),
        )
        self._stack = NativeStack(library, shape, operands)
        self._head = Head(library, weights.head, dtype)

    def with_library(self, library: NativeLibrary, max_bytes: int | None = None) -> NativeDecoder:
        """The same weights on other threads.

        Args:
            max_bytes: of the matrices of its layers: only the first ones that fit, at least one. None: all.
        """
        layers = self.weights.layers
        if max_bytes is not None:
            layers = layers[: max(1, max_bytes // layers[0].layout.num_bytes)]
        return NativeDecoder(self.config, dataclasses.replace(self.weights, layers=layers), self.dtype, library)

    def forward(self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `Decoder.forward`."""
        return self._stack.forward(token_ids, kv_cache, metadata)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] of `forward` → [R, vocab] float32."""
        return self._head.logits(hidden)


def _operands(config: ModelConfig, index: int, layer: LayerWeights) -> LayerOperands:
    layout, slab = layer.layout, layer.slab
    norms = None
    if layer.query_norm is not None and layer.key_norm is not None:
        norms = HeadNorms(layer.query_norm, layer.key_norm, config.rms_norm_eps)
    return LayerOperands(
        qkv=layout.matrices(slab).qkv,
        output=layout.output.over(slab),
        gate=layout.gate.over(slab),
        up=layout.up.over(slab),
        down=layout.down.over(slab),
        attention_norm=layer.attention_norm,
        mlp_norm=layer.mlp_norm,
        qkv_bias=layer.qkv_bias,
        output_bias=layer.output_bias,
        gate_up_bias=layer.gate_up_bias,
        down_bias=layer.down_bias,
        post_attention_norm=layer.post_attention_norm,
        post_mlp_norm=layer.post_mlp_norm,
        head_norms=norms,
        kind=config.kind_of(index),
    )
