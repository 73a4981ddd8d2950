"""From a memory cap and a performance record to a model whose weights are placed by a plan."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.errors import EngineStartError
from engine.kv_cache import KVCache, bytes_per_block, bytes_per_token
from engine.kv_tier_size import check_kv_sizes
from engine.model_config import ModelConfig
from engine.models.weights_placement import WeightSizes
from engine.weight_offload import WeightOffload
from offload.arena import Arena
from offload.config import OffloadConfig
from offload.device import Device
from offload.emulation import emulated_link_bytes_per_s
from offload.host_slabs import HostSlabs
from offload.host_tier import HostTier
from offload.link import Link
from offload.link_config import LinkConfig
from offload.live_cost import LiveCost
from offload.model_shape import ModelShape
from offload.plan import Infeasible, OffloadPlan
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.planner import plan
from offload.record import PerformanceRecord
from offload.replan import replan
from offload.residency import ResidencyOrder
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.target import ClassTarget
from offload.transfer import Direction
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses

logger = logging.getLogger(__name__)

WORKSPACE_OWNER = "workspace"
WEIGHTS_OWNER = "weights"
"""On the host."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedWeights:
    """What came of a placement."""

    weights: DeviceWeights
    arena: Arena
    host_tier: HostTier
    link: Link
    plan: OffloadPlan


class OffloadSetup:
    """Plans once the sizes of the weights are known, and gives their memory: the `place` of `load_model`."""

    def __init__(
        self,
        config: OffloadConfig,
        engine: EngineConfig,
        scheduler: SchedulerConfig,
        classes: SLOClasses,
        record: PerformanceRecord,
        dtype: torch.dtype,
        device: Device,
    ) -> None:
        assert config.device_memory_bytes is not None
        self._config = config
        self._engine = engine
        self._scheduler = scheduler
        self._record = record
        self._dtype = dtype
        self._device = device
        self._targets = tuple(
            ClassTarget(c.name, c.ttft_base_s, c.ttft_per_1k_tokens_s, c.tpot_s, c.when_infeasible) for c in classes
        )
        self._shape: ModelShape | None = None
        self._request: PlanRequest | None = None
        self.placed: PlacedWeights | None = None

    def place(self, model: ModelConfig, sizes: WeightSizes) -> DeviceWeights:
        """Plan, take the memory and open the link.

        Raises:
            EngineStartError: no plan serves any class, with the arithmetic and the ways out; or there is no memory, or
                a tier beside it holds no KV block.
            HostMemoryError: there is none on the host.
        """
        shape = dataclasses.replace(
            model_shape(model, sizes, self._dtype), name=Path(self._engine.model_path).stem or model.architecture
        )
        block_bytes = bytes_per_block(model, self._dtype, self._scheduler.block_size)
        check_kv_sizes(self._config, block_bytes, weights_stay=False)
        arena, host_tier = self._open_memory()
        request = self._plan_request(model, host_tier.free_bytes)
        emulated = self._record.capped(*self._caps(shape))
        found, held, cost = self._plan_and_take(shape, emulated, request, host_tier)
        log_plan(found)
        log_host_memory(host_tier, held)
        link = self._open_link(cost, emulated)
        arena.reserve(WORKSPACE_OWNER, request.workspace_bytes)
        weights = DeviceWeights(
            sizes, arena, link, streaming_numbers(found), block_bytes,
            masters=held.slabs, record_event=self._device.record_event,
        )  # fmt: skip
        self._shape, self._request = shape, request
        self.placed = PlacedWeights(weights, arena, host_tier, link, found)
        return weights

    def manager(self, kv_cache: KVCache) -> WeightOffload:
        """Of the placed weights, once the model is loaded."""
        assert self.placed is not None
        placed = self.placed
        return WeightOffload(
            placed.weights, placed.arena, placed.link, placed.plan, self._replan, self._predict, kv_cache.set_border,
            placed.host_tier,
        )  # fmt: skip

    def _open_memory(self) -> tuple[Arena, HostTier]:
        """The device's first, so that the host's knows what is left where both are main memory."""
        config = self._config
        assert config.device_memory_bytes is not None
        try:
            arena = Arena(config.device_memory_bytes, self._device.allocate)
        except MemoryError as error:
            raise EngineStartError(f"{error}") from error
        path = config.host_memory_directory_path
        return arena, self._device.open_host_tier(config.host_memory_bytes, None if path is None else Path(path))

    def _plan_and_take(
        self, shape: ModelShape, cost: PerformanceRecord, request: PlanRequest, host_tier: HostTier
    ) -> tuple[OffloadPlan, HostSlabs, PerformanceRecord]:
        """Plan, and take the host's memory; where copies from that are slow, plan again with what they reach."""
        found = self._plan(shape, cost, request)
        held = host_tier.take(WEIGHTS_OWNER, _unit_sizes(found))
        share = self._device.link_share(held.kind)
        if share == 1.0 or not held.slabs:
            return found, held, cost
        slow = cost.capped(*(share * cost.link_bytes_per_s(direction, Quantile.P50) for direction in Direction))
        again = self._plan(shape, slow, request)
        logger.warning(
            "copies from %s host memory reach about %.0f %% of the link's bandwidth: planned again with %.3f GB/s, "
            "%d layers streamed instead of %d",
            held.kind, 100 * share, slow.link_bytes_per_s(Direction.H2D, Quantile.P50) / 1e9, again.streamed_layers,
            found.streamed_layers,
        )  # fmt: skip
        if _unit_sizes(again) != _unit_sizes(found):
            host_tier.give_back(WEIGHTS_OWNER)
            held = host_tier.take(WEIGHTS_OWNER, _unit_sizes(again))
        return again, held, slow

    def _plan(self, shape: ModelShape, cost: PerformanceRecord, request: PlanRequest) -> OffloadPlan:
        found = plan(shape, cost, self._targets, request)
        if isinstance(found, Infeasible):
            raise EngineStartError(f"{found.reason} Ways out: {'; '.join(found.options)}")
        return found

    def _predict(self, load: StepLoad, beside_copies: bool) -> float:
        record = self._record
        layer_s = record.layer_s if beside_copies else record.quiet_layer_s
        assert self._shape is not None
        return self._shape.num_layers * layer_s(load, Quantile.P50) + record.head_s(load.num_sequences, Quantile.P50)

    def _replan(self, h2d_bytes_per_s: float, compute_factor: float) -> OffloadPlan:
        assert self._shape is not None and self._request is not None and self.placed is not None
        cost = LiveCost(self._record, h2d_bytes_per_s, compute_factor)
        return replan(self.placed.plan, self._shape, cost, self._targets, self._request)

    def _plan_request(self, model: ModelConfig, host_bytes: int | None) -> PlanRequest:
        config, scheduler = self._config, self._scheduler
        assert config.device_memory_bytes is not None
        return PlanRequest(
            device_bytes=config.device_memory_bytes,
            host_bytes=host_bytes,
            block_size=scheduler.block_size,
            workspace_bytes=workspace_bytes(model, scheduler, self._dtype),
            max_model_len=self._engine.max_model_len_tokens,
            objective=config.offload_objective,
            strategy=config.offload_strategy,
            load=self._reference_load(),
            restart_s=self._record.restart_s,
        )

    def _reference_load(self) -> ReferenceLoad:
        return ReferenceLoad(chunk_tokens=self._scheduler.max_num_batched_tokens)

    def _caps(self, shape: ModelShape) -> tuple[float | None, float | None]:
        config = self._config
        if config.link_gbps is not None:
            return config.link_gbps * 1e9, config.link_gbps * 1e9
        if config.emulate is None:
            return None, None
        load = self._reference_load().decode()
        bytes_per_s = emulated_link_bytes_per_s(config.emulate, shape, self._record, load)
        logger.info("emulating %s: the link is held to %.3f GB/s", config.emulate, bytes_per_s / 1e9)
        return bytes_per_s, bytes_per_s

    def _open_link(self, cost: PerformanceRecord, emulated: PerformanceRecord) -> Link:
        expected = {direction: cost.link_bytes_per_s(direction, Quantile.P50) for direction in Direction}
        config = LinkConfig(expected[Direction.H2D], expected[Direction.D2H], cost.coupling(Direction.H2D))
        return self._device.open_link(config, emulated.caps_bytes_per_s)


def model_shape(model: ModelConfig, sizes: WeightSizes, dtype: torch.dtype) -> ModelShape:
    """What the planner must know of a decoder whose formats are chosen."""
    hidden, intermediate = model.hidden_size, model.intermediate_size
    parameters = hidden * (2 * model.query_size + 2 * model.kv_size) + 3 * hidden * intermediate
    bytes_per_parameter = sum(sizes.layer_bytes) / len(sizes.layer_bytes) / parameters
    num_head_matrices = 1 if model.tie_word_embeddings else 2
    return ModelShape(
        name=model.architecture,
        layer_bytes=sizes.layer_bytes,
        fixed_bytes=sizes.fixed_bytes,
        kv_bytes_per_token=bytes_per_token(model, dtype),
        max_position_tokens=model.max_position_tokens,
        layer_parameters=parameters,
        hidden_size=hidden,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        bytes_per_parameter=bytes_per_parameter,
        layer_part_bytes=sizes.layer_part_bytes,
        head_bytes_per_parameter=sizes.fixed_bytes / (num_head_matrices * model.vocab_size * hidden),
    )


def workspace_bytes(model: ModelConfig, scheduler: SchedulerConfig, dtype: torch.dtype) -> int:
    """Room for the activations of the largest step and for its logits.

    A bound by hand, checked against what the kernels have taken after a step of that size: float32 residual stream and
    rows of the widest products, input and output at a time, twice over for what lies between operations.
    """
    rows = scheduler.max_num_batched_tokens
    widest = max(model.query_size + 2 * model.kv_size, 2 * model.intermediate_size, model.hidden_size)
    activations = rows * (4 * model.hidden_size + 2 * (4 + dtype.itemsize) * widest)
    logits = min(scheduler.max_num_seqs, rows) * model.vocab_size * 4
    return activations + logits + 2**20


def _unit_sizes(found: OffloadPlan) -> list[int]:
    """Bytes of the units that may be streamed, in that order."""
    return [found.unit_bytes[layer] for layer in streaming_numbers(found).candidates]


def streaming_numbers(found: OffloadPlan) -> StreamingNumbers:
    """What of a plan concerns the weights' memory."""
    return StreamingNumbers(
        order=ResidencyOrder(found.layer_order),
        unit_bytes=found.unit_bytes,
        num_streamed=found.streamed_layers,
        min_streamed=found.min_streamed_layers,
        max_streamed=found.max_streamed_layers,
        num_slots=found.num_slots,
    )


def log_plan(found: OffloadPlan) -> None:
    """The start log's account of memory, streaming and classes."""
    num_layers = len(found.unit_bytes)
    unit = "whole layers" if found.streamed_unit == "layer" else f"{found.streamed_unit:.0%} of each"
    logger.info(
        "plan: %d of %d layers streamed (%d to %d while serving), %s, %d slots: %.1f MiB a step over the link, "
        "%.1f MiB of device memory freed, room for %d tokens of KV, %.1f MiB on the host",
        found.streamed_layers, num_layers, found.min_streamed_layers, found.max_streamed_layers, unit,
        found.num_slots, found.streamed_bytes / 2**20, found.net_freed_bytes / 2**20, found.kv_tokens,
        found.host_bytes / 2**20,
    )  # fmt: skip
    ledger = ", ".join(f"{owner} {num_bytes / 2**20:.1f}" for owner, num_bytes in found.ledger.items())
    logger.info("device memory in MiB: %s", ledger)
    for one in found.classes:
        state = "best_effort" if one.is_best_effort else "open" if one.is_open else "closed"
        log = logger.info if state == "open" else logger.warning
        log("class %s: %s. %s", one.name, state, one.explanation)


def log_host_memory(host_tier: HostTier, held: HostSlabs) -> None:
    """The start log's account of the host."""
    ledger = ", ".join(f"{owner} {num_bytes / 2**20:.1f}" for owner, num_bytes in host_tier.ledger().items())
    logger.info("host memory in MiB (%s): %s", held.kind, ledger)
    for remark in held.remarks:
        logger.warning("host memory: %s", remark)
