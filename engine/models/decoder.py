"""The decoder of every architecture: tokens to hidden states to logits, over a paged cache."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from engine.attention_kind import AttentionKind
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.layer_access import LayerAccess, ResidentLayers
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.layers.layer_layout import LayerMatrices
from engine.layers.row_tiles import RowFunction, RowMap, whole_batch, widest_tiles
from engine.layers.slab import Slab
from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderWeights
from kernels.attention.base import AttentionBackend, AttentionMetadata, layer_view
from kernels.attention.invariant_attention import InvariantAttention
from kernels.attention.torch_attention import TorchAttention
from kernels.norm import rms_norm
from kernels.rotary import rotation


class Decoder:
    """Holds weights and no state of a step: equal inputs over an equal cache give equal bits."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        dtype: torch.dtype,
        backend: AttentionBackend | None = None,
        *,
        batch_invariant: bool = False,
        access: LayerAccess | None = None,
    ) -> None:
        """
        Args:
            dtype: of activations, keys and values.
            backend: None: the plain PyTorch one, or with `batch_invariant` its invariant form.
            batch_invariant: a token's hidden state and logits depend on its own sequence up to it alone, to the bit:
                not on the batch, the chunk, or what was computed before. Slower. A given `backend` must be invariant
                itself. The number of compute threads must not change afterwards.
            access: where the layers' slabs are in a step; None: where `weights` has them.
        """
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self._backend = backend or (InvariantAttention() if batch_invariant else TorchAttention())
        self._layer = DecoderLayer(config)
        self._access = access or ResidentLayers([layer.slab for layer in weights.layers])
        self._matrices: dict[Slab, LayerMatrices] = {}
        self._rotations = tuple(_rotation_of(kind) for kind in config.attention_kinds)
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=dtype))
        self._by_rows: RowMap = self._find_tiles() if batch_invariant else whole_batch

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE
    ) -> Tensor:
        """Compute the tokens of a step and write their keys and values.

        Args:
            token_ids: [T] int64, in 0..vocab_size-1.
            kv_cache: [B, layers, 2, P, KH, D] of `dtype`; the slots of `metadata` are written.
            metadata: which tokens belong to which sequence, and where.
            gate: of blocks that are on their way while the step computes.

        Returns:
            [T, hidden] after the final norm.
        """
        steps = [
            self._backend.plan(metadata, kv_cache.shape[3], self.dtype, kind.sliding_window)
            for kind in self.config.attention_kinds
        ]
        angles = [self._by_rows(rotate, metadata.positions) for rotate in self._rotations]
        hidden = self.weights.embedding.gather(token_ids).to(self.dtype)
        if self._embedding_scale != 1.0:
            hidden = hidden * self._embedding_scale
        gated = frozenset(gate.gated_layers)
        for index in range(self.config.num_layers):
            if index in gated:
                gate.pass_layer(index)
            project, finish = self._layer_functions(index, self._access.acquire(index))
            kind = self.config.kind_of(index)
            query, key, value = self._by_rows(project, hidden, *angles[kind])
            cache, step = layer_view(kv_cache, index), steps[kind]
            step.write_kv(key, value, cache)
            attended = step.attend(query, cache, self.config.attention_scale)
            (hidden,) = self._by_rows(finish, hidden, attended)
            self._access.release(index)
        (normed,) = self._by_rows(self._final_norm, hidden)
        return normed

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] of `forward` → [R, vocab] float32."""
        (logits,) = self._by_rows(self._head, hidden)
        return logits

    def _layer_functions(self, index: int, slab: Slab) -> tuple[RowFunction, RowFunction]:
        """What a layer computes row by row: before its attention and after it."""
        weights = self.weights.layers[index]
        matrices = self._matrices.get(slab)
        if matrices is None:
            matrices = self._matrices[slab] = weights.layout.matrices(slab)
        return (
            functools.partial(self._layer.project, weights, matrices),
            functools.partial(self._layer.finish, weights, matrices),
        )

    def _final_norm(self, hidden: Tensor) -> tuple[Tensor]:
        return (rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps),)

    def _head(self, hidden: Tensor) -> tuple[Tensor]:
        return (self.weights.head.linear(hidden).float(),)

    @torch.inference_mode()
    def _find_tiles(self) -> RowMap:
        """Tiles that fit every row function of this model on this machine."""
        config = self.config
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, config.hidden_size, generator=generator).to(self.dtype)
        attended = torch.randn(1, config.num_heads, config.head_dim, generator=generator).to(self.dtype)
        positions = torch.tensor([1234])
        project, finish = self._layer_functions(0, self.weights.layers[0].slab)
        return widest_tiles(
            (
                *((rotate, (positions,)) for rotate in self._rotations),
                *((project, (hidden, *rotate(positions))) for rotate in self._rotations),
                (finish, (hidden, attended)),
                (self._final_norm, (hidden,)),
                (self._head, (hidden,)),
            )
        )


def _rotation_of(kind: AttentionKind) -> RowFunction:
    """Cosine and sine of positions [T]."""
    return functools.partial(rotation, frequencies=kind.rope.frequencies, amplitude=kind.rope.amplitude)
