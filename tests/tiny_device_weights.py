"""Weights of a tiny decoder on a device of just the size wanted; a layer's bytes are its number plus one."""

from __future__ import annotations

import torch

from engine.attention_kind import AttentionKind
from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderFormats, weight_sizes
from kernels.native.tiled_format import TiledFormat
from kernels.rotary import Rope
from offload.arena import Arena, aligned
from offload.residency import ResidencyOrder
from tests.fake_link import FakeLink

BLOCK_BYTES = 1000
NUM_LAYERS = 4
CONFIG = ModelConfig(
    architecture="llama", num_layers=NUM_LAYERS, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8,
    intermediate_size=64, vocab_size=50, max_position_tokens=100, rms_norm_eps=1e-5,
    attention_kinds=(AttentionKind(Rope(1e4, 8)),), mlp_bias=True,
)  # fmt: skip
FORMATS = DecoderFormats.uniform(CONFIG, TiledFormat(torch.bfloat16), torch.float32)
SIZES = weight_sizes(CONFIG, FORMATS)
LAYER_BYTES = SIZES.layer_bytes[0]


def make_device_weights(
    num_streamed: int = 2,
    min_streamed: int = 0,
    max_streamed: int = NUM_LAYERS,
    num_slots: int = 1,
    *,
    unit_bytes: int = LAYER_BYTES,
    spare_bytes: int = 10_000,
) -> tuple[DeviceWeights, Arena, FakeLink]:
    """With room for `spare_bytes` of KV at `min_streamed`."""
    numbers = StreamingNumbers(
        ResidencyOrder.spread(NUM_LAYERS),
        (unit_bytes,) * NUM_LAYERS,
        num_streamed,
        min_streamed,
        max_streamed,
        num_slots,
    )
    resident = NUM_LAYERS * LAYER_BYTES - min_streamed * unit_bytes
    capacity = aligned(SIZES.fixed_bytes) + resident + num_slots * unit_bytes + aligned(spare_bytes)
    arena, link = Arena(capacity), FakeLink(1e6)
    weights = DeviceWeights(SIZES, arena, link, numbers, BLOCK_BYTES)
    for layer, slab in enumerate(weights.slabs):
        slab.head.fill_(layer + 1)
        slab.tail.fill_(layer + 1)
    weights.loaded()
    weights.check()
    return weights, arena, link
