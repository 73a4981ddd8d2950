"""A model whose layers are streamed over a fake link: steps of any composition, poison wherever a copy is not done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor

from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.dtype import resolve_dtype
from engine.kv_cache import KVCache, bytes_per_block
from engine.layers.layer_access import LayerAccess
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.layers.slab import Slab
from engine.model_config import ModelConfig
from engine.models.weights_placement import WeightSizes
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from offload.arena import Arena, aligned
from offload.residency import ResidencyOrder
from tests.fake_link import FakeLink
from tests.paged_decoding import PagedDecoding

WORKSPACE_BYTES = 5000


@dataclasses.dataclass(frozen=True)
class Streaming:
    """How a model is streamed. `num_parts`: of the end of a slab; None: all of it."""

    num_streamed: int
    num_slots: int = 2
    num_parts: int | None = None
    interval: int | None = None
    min_streamed: int = 0
    max_streamed: int | None = None
    bytes_per_s: float = 1e8
    layer_s: float = 1e-3
    """Time of the link that goes by while a layer is computed."""
    num_kv_blocks: int = 24
    """At `min_streamed`."""
    block_size: int = 16


class TimedAccess:
    """Lets the link work while a layer is computed."""

    def __init__(self, weights: DeviceWeights, link: FakeLink, layer_s: float) -> None:
        self._weights = weights
        self._link = link
        self.layer_s = layer_s

    @property
    def streamed_layers(self) -> tuple[int, ...]:
        return self._weights.streamed_layers

    def acquire(self, layer: int) -> Slab:
        return self._weights.acquire(layer)

    def release(self, layer: int) -> None:
        self._link.advance(self.layer_s)
        self._weights.release(layer)
        self._weights.check()


class StreamedModel:
    """Loaded and ready for steps. `weights`, `link` and `arena` are for tests to turn and to look at."""

    def __init__(
        self,
        path: Path,
        dtype: str,
        library: NativeLibrary | None,
        streaming: Streaming,
        *,
        batch_invariant: bool = False,
        link: FakeLink | None = None,
        quantize: Literal["int8", "int4"] | None = None,
    ) -> None:
        """`link`: None: one of the speed of `streaming`."""
        self._streaming = streaming
        self._dtype = dtype
        self.link = link or FakeLink(streaming.bytes_per_s)
        loaded = load_model(
            str(path), dtype, lambda _: None, library=library, place=self._place, batch_invariant=batch_invariant,
            quantize=quantize,
        )  # fmt: skip
        self.decoder = loaded.decoder
        self.cache = KVCache(
            loaded.config, loaded.dtype, self.weights.max_kv_blocks, streaming.block_size, self.weights.kv_memory
        )
        self.decoding = self.start(streaming.num_kv_blocks)
        self.masters = [slab.tail.clone() for slab in self.weights.slabs]

    def start(self, num_blocks: int) -> PagedDecoding:
        """Sequences anew, over blocks 0..num_blocks-1."""
        self.cache.set_border(self.weights.num_kv_blocks)
        self.decoding = PagedDecoding(self.decoder, num_blocks, self._streaming.block_size, cache=self.cache.region)
        return self.decoding

    def step(
        self, tokens: Mapping[int, Sequence[int]], deadline_s: float = float("inf"), gate: LayerGate = OPEN_GATE
    ) -> dict[int, Tensor]:
        """Hidden states of each sequence's new tokens."""
        self.weights.begin_step(deadline_s)
        self.cache.set_border(self.weights.num_kv_blocks)
        self.decoding.cache = self.cache.region
        try:
            return self.decoding.step(tokens, gate)
        finally:
            self.last_transfers = self.weights.end_step()
            self.check()

    def check(self) -> None:
        """Books, and that the host's copies are as they were."""
        self.weights.check()
        self.link.check()
        for slab, master in zip(self.weights.slabs, self.masters, strict=True):
            assert slab.tail.equal(master)

    def _place(self, config: ModelConfig, sizes: WeightSizes) -> StreamedModel:
        streaming, layer_bytes = self._streaming, sizes.layer_bytes
        num_layers = config.num_layers
        parts = sizes.layer_part_bytes
        num_parts = streaming.num_parts or len(parts[0])
        order = (
            ResidencyOrder.spread(num_layers)
            if streaming.interval is None
            else ResidencyOrder.of_interval(num_layers, streaming.interval)
        )
        numbers = StreamingNumbers(
            order=order,
            unit_bytes=tuple(sum(part[len(part) - num_parts :]) for part in parts),
            num_streamed=streaming.num_streamed,
            min_streamed=streaming.min_streamed,
            max_streamed=num_layers if streaming.max_streamed is None else streaming.max_streamed,
            num_slots=streaming.num_slots,
        )
        block_bytes = bytes_per_block(config, resolve_dtype(self._dtype), streaming.block_size)
        self.numbers, self.layer_bytes = numbers, layer_bytes
        resident = sum(layer_bytes) - sum(numbers.unit_bytes[layer] for layer in order.streamed(streaming.min_streamed))
        slots = streaming.num_slots * aligned(max(numbers.unit_bytes))
        kv = aligned(streaming.num_kv_blocks * block_bytes)
        self.arena = Arena(aligned(sizes.fixed_bytes) + resident + slots + kv + aligned(WORKSPACE_BYTES))
        self.arena.reserve("workspace", WORKSPACE_BYTES)
        self.weights = DeviceWeights(sizes, self.arena, self.link, numbers, block_bytes)
        self.fixed, self.slabs = self.weights.fixed, self.weights.slabs
        return self

    def loaded(self) -> LayerAccess:
        """See `engine.models.weights_placement.WeightsPlacement`."""
        self.weights.loaded()
        return TimedAccess(self.weights, self.link, self._streaming.layer_s)
