"""The decoder on native kernels: the same computation as `engine.models.decoder`, a handful of calls a step.

The residual stream is float32 whatever the type of the activations. Every row of every operation is computed by one
sequence of instructions whatever the batch: this path is batch-invariant always, at no cost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderWeights, LayerWeights
from kernels.attention.base import AttentionMetadata
from kernels.native.attention import plan_attention
from kernels.native.gather import gather
from kernels.native.layers import LayerOperands, LayerShape, LayerStack, StepKind
from kernels.native.linear import linear
from kernels.native.norm import add_rms_norm
from kernels.native.rotary import Rotation
from kernels.native_library import NativeLibrary
from kernels.rotary import inverse_frequencies


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
        self._library = library
        self._frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        shape = LayerShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.rms_norm_eps,
            attention_scale=config.attention_scale,
            dtype=dtype,
        )
        self._layers = LayerStack(shape, [_operands(layer) for layer in weights.layers])

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `Decoder.forward`."""
        config = self.config
        work = plan_attention(
            self._library,
            metadata.query_lens,
            metadata.context_lens,
            metadata.block_tables.numpy(),
            config.num_heads,
            config.num_kv_heads,
            kv_cache.shape[3],
        )
        kind = StepKind(work, Rotation.of(metadata.positions, self._frequencies))
        hidden = torch.empty(len(token_ids), config.hidden_size)
        gather(self._library, self.weights.embedding, token_ids, hidden)
        self._layers.run(self._library, hidden, kv_cache, metadata.slot_mapping, (kind,))
        normed = torch.empty(hidden.shape, dtype=self.dtype)
        add_rms_norm(self._library, hidden, self.weights.final_norm, normed, config.rms_norm_eps)
        return normed

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] of `forward` → [R, vocab] float32."""
        logits = torch.empty(len(hidden), self.config.vocab_size)
        linear(self._library, hidden, self.weights.head, logits)
        return logits


def _operands(layer: LayerWeights) -> LayerOperands:
    layout, slab = layer.layout, layer.slab
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
    )
