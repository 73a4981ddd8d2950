"""A tiny model behind a real step loop, in memory that holds few requests while few layers are streamed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.kv_cache import KVCache, bytes_per_block
from engine.model_config import ModelConfig
from engine.models.weights_placement import WeightSizes
from engine.weight_offload import WeightOffload
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from offload.arena import Arena, aligned
from offload.compute_watch import ComputeWatch
from offload.host_link import HostLink
from offload.link import LinkStatus
from offload.link_config import LinkConfig
from offload.plan import ClassPlan, OffloadPlan
from offload.residency import ResidencyOrder
from offload.step_load import StepLoad
from tests.in_process_engine import InProcessEngine

BLOCK_SIZE = 4
NUM_LAYERS = 6
NUM_SLOTS = 2
MIN_STREAMED, MAX_STREAMED = 1, 6
S_PER_STREAMED_LAYER = 0.01
"""What the plan says of a decode step."""
OPTIONS = {"block_size": BLOCK_SIZE, "max_num_batched_tokens": 24, "max_num_seqs": 6, "max_model_len": 96}


class GaugedLink(HostLink):
    """Says of its bandwidth what a test wants."""

    bytes_per_s = 1e9

    def snapshot(self) -> LinkStatus:
        status = super().snapshot()
        h2d = dataclasses.replace(status.h2d, p50_bytes_per_s=self.bytes_per_s, p5_bytes_per_s=self.bytes_per_s)
        return dataclasses.replace(status, h2d=h2d)


class Rig:
    """A tiny model whose memory leaves room for about two short requests while few layers are streamed."""

    def __init__(
        self,
        path: Path,
        library: NativeLibrary | None,
        interactive_limit: int = 3,
        *,
        min_streamed: int = MIN_STREAMED,
        link: Any = None,
    ) -> None:
        """
        Args:
            interactive_limit: the most layers that may be streamed while that class runs.
            link: None: a `GaugedLink`.
        """
        self._interactive_limit = interactive_limit
        self._min_streamed = min_streamed
        self.link = GaugedLink(LinkConfig(1e9, 1e9)) if link is None else link
        self.plan: OffloadPlan | None = None
        self.weights: DeviceWeights | None = None
        self.arena: Arena | None = None
        self.replanned_bytes_per_s: list[float] = []
        self.compute_factors: list[float] = []
        self.predicted_beside_copies = {False: False, True: False}
        """Whether any step was, of those that copy nothing and of those that do."""
        self.predicted_s = 1.0
        """What every step is predicted to compute."""
        self.num_watched_steps = 10**6
        """That make a fact about the speed of computing."""
        self.model = load_model(str(path), "float32", lambda _: None, library=library, place=self._place)

    def _place(self, config: ModelConfig, sizes: WeightSizes) -> DeviceWeights:
        unit = sizes.layer_bytes[0]
        block_bytes = bytes_per_block(config, torch.float32, BLOCK_SIZE)
        resident = (NUM_LAYERS - self._min_streamed) * aligned(unit)
        capacity = aligned(sizes.fixed_bytes) + resident + NUM_SLOTS * aligned(unit) + 26 * block_bytes
        least = self._min_streamed
        numbers = StreamingNumbers(
            ResidencyOrder.spread(NUM_LAYERS), sizes.layer_bytes, least, least, MAX_STREAMED, NUM_SLOTS
        )
        self.arena = Arena(capacity)
        self.weights = DeviceWeights(sizes, self.arena, self.link, numbers, block_bytes)
        blocks = tuple(self.weights.kv_blocks_at(k) for k in range(least, MAX_STREAMED + 1))
        self.plan = make_plan(numbers, blocks, block_bytes, self._interactive_limit)
        return self.weights

    def engine(self, **options: int) -> InProcessEngine:
        """`options` are those of the scheduler, `OPTIONS` where nothing is said."""
        assert self.weights is not None
        return InProcessEngine(
            self.model, num_blocks=self.weights.max_kv_blocks, kv_memory=self.weights.kv_memory,
            make_offload=self.manager, **(OPTIONS | options),
        )  # fmt: skip

    def manager(self, kv_cache: KVCache) -> WeightOffload:
        assert self.weights is not None
        assert self.arena is not None
        assert self.plan is not None
        self.offload = WeightOffload(
            self.weights, self.arena, self.link, self.plan, self.replan, self._predict, kv_cache.set_border,
            watch=ComputeWatch(self.num_watched_steps),
        )  # fmt: skip
        return self.offload

    def _predict(self, load: StepLoad, beside_copies: bool) -> float:
        assert self.weights is not None
        assert 1 <= load.num_sequences <= load.num_tokens
        copies = self.weights.num_streamed > NUM_SLOTS
        assert copies or not beside_copies, "predicted beside copies that are not made"
        self.predicted_beside_copies[copies] |= beside_copies
        return self.predicted_s

    def replan(self, bytes_per_s: float, compute_factor: float) -> OffloadPlan:
        """The classes stay as they are."""
        self.replanned_bytes_per_s.append(bytes_per_s)
        self.compute_factors.append(compute_factor)
        assert self.plan is not None
        return self.plan


def make_plan(
    numbers: StreamingNumbers, blocks: tuple[int, ...], block_bytes: int, interactive_limit: int
) -> OffloadPlan:
    classes = tuple(
        ClassPlan(name, limit is not None, False, limit, 0.1, 0.01, 0.1, 0.01, "")
        for name, limit in (("realtime", None), ("interactive", interactive_limit), ("standard", 6), ("batch", 6))
    )
    values = {f.name: 0 for f in dataclasses.fields(OffloadPlan)}
    ks = range(numbers.min_streamed, MAX_STREAMED + 1)
    return OffloadPlan(**values | {
        "strategy": "interval", "streamed_layers": numbers.num_streamed, "streamed_unit": "layer",
        "unit_bytes": numbers.unit_bytes, "layer_order": numbers.order.layers,
        "min_streamed_layers": numbers.min_streamed, "max_streamed_layers": MAX_STREAMED,
        "num_slots": numbers.num_slots, "predicted_step_s": 0.01,
        "classes": classes, "ledger": {}, "block_bytes": block_bytes, "kv_blocks_by_k": blocks,
        "tpot_s_by_k": tuple(S_PER_STREAMED_LAYER * k for k in ks),
    })  # type: ignore[arg-type]  # fmt: skip


@contextlib.contextmanager
def opened(path: Path, library: NativeLibrary | None, **options: Any) -> Iterator[Rig]:
    rig = Rig(path, library, **options)
    try:
        yield rig
    finally:
        rig.link.close()
