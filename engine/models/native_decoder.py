"""The decoder on native kernels: the same computation as `engine.models.decoder`, two calls a step.

Where layers are streamed, one call more for each of them and for each run of others between: the wait for a layer's
weights, and the word that its memory may be filled anew, come between calls. So does the wait for keys and values that
are on their way.

The residual stream is float32 whatever the type of the activations. Every row of every operation is computed by one
sequence of instructions whatever the batch: this path is batch-invariant always, at no cost.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from engine.layers.layer_access import LayerAccess, ResidentLayers
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.layers.slab import Slab
from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderWeights, LayerWeights
from kernels.attention.base import AttentionMetadata
from kernels.native.activation import Activation
from kernels.native.decoder import (
    DecoderOperands,
    LayerKind,
    LayerOperands,
    LayerShape,
    NativeStack,
    PlacedLayer,
)
from kernels.native.linear import Head
from kernels.native.rotary import HeadNorms
from kernels.native_library import NativeLibrary

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_tanh": Activation.GELU_TANH}


class NativeDecoder:
    """Holds weights and no state of a step. The library and its threads are the caller's to close."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        dtype: torch.dtype,
        library: NativeLibrary,
        access: LayerAccess | None = None,
    ) -> None:
        """
        Args:
            weights: in native formats, vectors in float32.
            dtype: of activations, keys and values.
            access: where the layers' slabs are in a step; None: where `weights` has them.
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
            layers=tuple(_operands(config, index, layer, layer.slab) for index, layer in enumerate(weights.layers)),
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
        self._access = access or ResidentLayers([layer.slab for layer in weights.layers])
        self._placed: dict[Slab, PlacedLayer] = {}
        self._streamed = tuple(range(len(weights.layers)))
        """Of the last step; at first no layer is known to be where it stays."""

    def with_library(self, library: NativeLibrary, max_bytes: int | None = None) -> NativeDecoder:
        """The same weights on other threads.

        Args:
            max_bytes: of the matrices of its layers: only the first ones that fit, at least one. None: all.
        """
        layers = self.weights.layers
        if max_bytes is not None:
            layers = layers[: max(1, max_bytes // layers[0].layout.num_bytes)]
        return NativeDecoder(self.config, dataclasses.replace(self.weights, layers=layers), self.dtype, library)

    def forward(
        self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE
    ) -> Tensor:
        """As `Decoder.forward`."""
        access, num_layers, first = self._access, len(self.weights.layers), 0
        if access.streamed_layers is not self._streamed:
            self._settle()
        step = self._stack.begin(token_ids, kv_cache, metadata)
        streamed, gated = self._streamed, gate.gated_layers
        for layer in sorted({*streamed, *gated}) if gated else streamed:
            if first < layer:
                step.run(first, layer)
                first = layer
            if layer in gated:
                gate.pass_layer(layer)
            if gated and layer not in streamed:
                continue
            self._move(layer)
            step.run(layer, layer + 1)
            access.release(layer)
            first = layer + 1
        if first < num_layers:
            step.run(first, num_layers)
        return step.out

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] of `forward` → [R, vocab] float32."""
        return self._head.logits(hidden)

    def _settle(self) -> None:
        """The set of streamed layers has changed: point to where the others stay."""
        self._streamed = self._access.streamed_layers
        for layer in set(range(len(self.weights.layers))).difference(self._streamed):
            self._move(layer)

    def _move(self, layer: int) -> None:
        """Read a layer where it is now, waiting until it is there."""
        slab = self._access.acquire(layer)
        placed = self._placed.get(slab)
        if placed is None:
            operands = _operands(self.config, layer, self.weights.layers[layer], slab)
            placed = self._placed[slab] = self._stack.place(operands)
        self._stack.move(layer, placed)


def _operands(config: ModelConfig, index: int, layer: LayerWeights, slab: Slab) -> LayerOperands:
    layout = layer.layout
    norms = None
    if layer.query_norm is not None and layer.key_norm is not None:
        norms = HeadNorms(layer.query_norm, layer.key_norm, config.rms_norm_eps)
    return LayerOperands(
        qkv=layout.qkv(slab),
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
