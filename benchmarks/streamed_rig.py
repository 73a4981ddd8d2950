"""A model in one process, placed again and again: streamed over an emulated link by any layout, beside itself resident.

The ratios of Select-N's motivation (a layer's copy takes 13.8 times its computation when decoding, 3.5 times when
reading prompts, on an A10) are reached by the link's cap alone, found from the layer's time as measured in the run.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.paired_steps import Burst, StepSample
from engine.compute_share import offload_threads
from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.kv_cache import bytes_per_block
from engine.layers.layer_access import LayerAccess
from engine.layers.slab import Slab
from engine.model_config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.models.weights_placement import HostPlacement, WeightSizes
from engine.offload_setup import model_shape
from engine.profile_grid import StepShape
from engine.runner_factory import load_kernels
from engine.step_probe import StepProbe
from engine.weights import LoadedModel, load_model
from offload.arena import Arena, aligned
from offload.host_link import HostLink
from offload.link_config import LinkConfig
from offload.placement import Placement
from offload.transfer import Direction
from server.model_source import resolve_model

BLOCK_SIZE = 16
WARM_STEPS = 2
"""Not counted: the slots were filled while the link had nothing else to do."""
PATIENCE_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """A step that is repeated, and how many times its layers' computation the copy of one takes."""

    name: str
    shape: StepShape
    ratio: float


DECODE = Phase("decode", StepShape(num_sequences=8, tokens_each=1, context_each=128), ratio=13.8)
PREFILL = Phase("prefill", StepShape(num_sequences=1, tokens_each=128, context_each=128), ratio=3.5)
PHASES = {phase.name: phase for phase in (DECODE, PREFILL)}


def cap_for_ratio(layer_bytes: float, layer_s: float, ratio: float) -> float:
    """Bytes a second at which copying a layer takes `ratio` times `layer_s`."""
    return layer_bytes / (ratio * layer_s)


def open_link(bytes_per_s: float) -> HostLink:
    """Held to that pace in both directions."""
    return HostLink(LinkConfig(bytes_per_s, bytes_per_s), dict.fromkeys(Direction, bytes_per_s))


class BaseModel:
    """The model with all weights in place: the latency without offload, and where placements get their bytes."""

    def __init__(self, name: str | None, dtype: str) -> None:
        """
        Raises:
            OSError, ValueError: it cannot be read.
        """
        threads = offload_threads(None)
        self.library = load_kernels("auto", threads, os.environ)
        torch.set_num_threads(threads if self.library is None else 1)
        path = resolve_model(name).path if name else resolve_model().path
        self._sizes: WeightSizes | None = None
        self.model: LoadedModel = load_model(
            str(path), dtype, lambda _: None, library=self.library, place=self._place, batch_invariant=True
        )
        self.threads = threads
        self.shape = model_shape(self.model.config, self.sizes, self.model.dtype)
        self.block_bytes = bytes_per_block(self.model.config, self.model.dtype, BLOCK_SIZE)

    def _place(self, _: ModelConfig, sizes: WeightSizes) -> HostPlacement:
        self._sizes = sizes
        return HostPlacement(sizes)

    @property
    def sizes(self) -> WeightSizes:
        assert self._sizes is not None
        return self._sizes

    @property
    def num_layers(self) -> int:
        return self.model.config.num_layers

    def decoder_over(self, access: LayerAccess) -> Decoder | NativeDecoder:
        """Another decoder of the same weights, which reads its layers through `access`."""
        config, weights, dtype = self.model.config, self.model.decoder.weights, self.model.dtype
        if self.library is None:
            return Decoder(config, weights, dtype, batch_invariant=True, access=access)
        return NativeDecoder(config, weights, dtype, self.library, access)

    def slab(self, layer: int) -> Slab:
        return self.model.decoder.weights.layers[layer].slab

    def close(self) -> None:
        if self.library is not None:
            self.library.close()


class Steps:
    """Steps of one shape on one decoder, forward pass and logits of every sequence."""

    def __init__(self, decoder: Decoder | NativeDecoder, shape: StepShape) -> None:
        blocks = shape.num_sequences * -(-shape.context_each // BLOCK_SIZE)
        probe = StepProbe(decoder, blocks, BLOCK_SIZE)
        self.forward: Callable[[], None] = probe.step(shape)
        self.head: Callable[[], None] = probe.head(shape.num_sequences)

    def run(self) -> None:
        self.forward()
        self.head()


def resident_burst(base: BaseModel, shape: StepShape) -> Burst:
    """Bursts of the model with all weights in place."""
    steps = Steps(base.model.decoder, shape)

    def burst(num_steps: int) -> Sequence[StepSample]:
        samples = []
        for index in range(WARM_STEPS + num_steps):
            started_s = time.perf_counter()
            steps.run()
            if index >= WARM_STEPS:
                samples.append(StepSample(time.perf_counter() - started_s))
        return samples

    return burst


class PlacedModel:
    """The model streamed by one placement. Steps through `burst`; `weights` and `decoder` for whoever needs more."""

    def __init__(
        self,
        base: BaseModel,
        link: HostLink,
        placement: Placement,
        *,
        num_streamed: int,
        min_streamed: int = 0,
        max_streamed: int | None = None,
        device_bytes: int | None = None,
    ) -> None:
        """
        Args:
            device_bytes: of the arena; None: as much as `min_streamed` needs, and a little KV.

        Raises:
            ArenaFull: it does not fit.
        """
        shape = base.shape
        most = shape.num_layers if max_streamed is None else max_streamed
        if device_bytes is None:
            device_bytes = roomy_bytes(base, placement, min_streamed)
        self.arena = Arena(device_bytes)
        self.weights = DeviceWeights(
            base.sizes,
            self.arena,
            link,
            StreamingNumbers(
                placement.order, placement.unit_bytes, num_streamed, min_streamed, most, placement.num_slots
            ),
            base.block_bytes,
            patience_s=PATIENCE_S,
        )
        for layer, slab in enumerate(self.weights.slabs):
            source, cut = base.slab(layer).head, len(slab.head)
            slab.head.copy_(source[:cut])
            slab.tail.copy_(source[cut:])
        self.decoder = base.decoder_over(self.weights.loaded())
        self._steps: dict[StepShape, Steps] = {}

    def settle(self, num_streamed: int) -> None:
        """Stream exactly that many layers, all copies done."""
        self.weights.set_streamed(num_streamed)
        while self.weights.is_moving:
            self.weights.drain()
            self.weights.set_streamed(num_streamed)
        self.weights.drain()

    def step(self, shape: StepShape, deadline_s: float = math.inf) -> StepSample:
        """One step, as it comes."""
        steps = self._steps.get(shape)
        if steps is None:
            steps = self._steps[shape] = Steps(self.decoder, shape)
        started_s = time.perf_counter()
        self.weights.begin_step(deadline_s)
        steps.run()
        transfers = self.weights.end_step()
        return StepSample(time.perf_counter() - started_s, transfers)

    def burst(self, shape: StepShape, num_streamed: int) -> Burst:
        """Bursts with that many layers streamed."""

        def run(num_steps: int) -> Sequence[StepSample]:
            self.settle(num_streamed)
            samples = [self.step(shape) for _ in range(WARM_STEPS + num_steps)]
            self.weights.drain()
            return samples[WARM_STEPS:]

        return run


def roomy_bytes(base: BaseModel, placement: Placement, min_streamed: int) -> int:
    """Device memory for all that may be resident, slots and 16 KV blocks; alignment of every piece included."""
    pieces = base.num_layers * 2 + placement.num_slots + 2
    return aligned(placement.device_bytes(min_streamed) + 16 * base.block_bytes) + pieces * 256
