"""The default model with layers streamed over a real, capped link, copied while it is computed: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.dtype import resolve_dtype
from engine.kv_cache import KVCache, bytes_per_block
from engine.model_config import ModelConfig
from engine.models.weights_placement import WeightSizes
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from offload.arena import Arena
from offload.host_link import HostLink
from offload.link_config import LinkConfig
from offload.residency import ResidencyOrder
from offload.transfer import Direction
from tests.paged_decoding import PagedDecoding

BYTES_PER_S = 0.5e9
NUM_KV_BLOCKS = 12
PROMPTS = {0: [1, 4093, 198, 3725, 314, 260, 3575, 282, 4649, 47], 1: [1, 9690, 198] * 9}


@pytest.fixture
def link() -> Iterator[HostLink]:
    made = HostLink(LinkConfig(BYTES_PER_S, BYTES_PER_S), {Direction.H2D: BYTES_PER_S})
    yield made
    made.check()
    made.close()


@pytest.mark.real_model
def test_a_real_model_streamed_over_a_real_link_gives_the_same_bits(
    real_model_path: Path, native_library: NativeLibrary, link: HostLink
) -> None:
    """A third of the layers at least; k changes on the way, and the step's bytes are the plan's."""
    made: list[DeviceWeights] = []

    def place(config: ModelConfig, sizes: WeightSizes) -> DeviceWeights:
        num_layers, unit = config.num_layers, sizes.layer_bytes
        numbers = StreamingNumbers(ResidencyOrder.spread(num_layers), unit, 12, 10, num_layers, 2)
        kv_bytes = bytes_per_block(config, resolve_dtype("auto"), 16)
        resident = sum(unit) - 10 * max(unit)
        arena = Arena(sizes.fixed_bytes + resident + 2 * max(unit) + NUM_KV_BLOCKS * kv_bytes + 1024)
        made.append(DeviceWeights(sizes, arena, link, numbers, kv_bytes))
        return made[0]

    plain = load_model(str(real_model_path), "auto", lambda _: None, library=native_library)
    streamed = load_model(str(real_model_path), "auto", lambda _: None, library=native_library, place=place)
    (weights,) = made
    layer_bytes = [layer.layout.num_bytes for layer in streamed.decoder.weights.layers]
    cache = KVCache(streamed.config, streamed.dtype, weights.max_kv_blocks, 16, weights.kv_memory)
    expected_steps = PagedDecoding(plain.decoder, NUM_KV_BLOCKS)
    steps = PagedDecoding(streamed.decoder, NUM_KV_BLOCKS, cache=cache.region)
    tokens = {index: list(prompt) for index, prompt in PROMPTS.items()}
    for k in (12, 12, 30, 30, 11, 10):
        weights.set_streamed(k)
        expected = expected_steps.logits(tokens)
        weights.begin_step()
        actual = steps.logits(tokens)
        moved = weights.end_step()
        weights.check()
        assert moved.num_bytes == weights.step_bytes >= 10 * min(layer_bytes)
        for index, logits in expected.items():
            assert torch.equal(actual[index], logits)
        tokens = {index: [int(logits[-1].argmax())] for index, logits in expected.items()}
    weights.drain()
    weights.begin_step()  # takes note of the copy that was on its way
    weights.end_step()
    assert weights.num_streamed < 30
    weights.drain()
