"""What is simulated: a model on an accelerator of the table, or on this machine by its record."""

from __future__ import annotations

import dataclasses

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.kv_cache import num_blocks_for
from engine.latency_fit import fit_latency
from engine.offload_setup import workspace_bytes
from engine.plan_model import PlannedModel
from engine.plan_run import USABLE_SHARE, ModelPlace, gpu_model, recorded_model
from engine.profile_grid import ProfileLimits
from engine.runner_factory import max_model_len
from engine.simulation.sampled_cost import fit_cost
from engine.simulation.simulation_error import SimulationError
from offload.errors import OffloadError
from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.model_shape import ModelShape
from offload.step_cost import Quantile, StepCost
from offload.transfer import Direction
from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot

_NUM_SLOTS = 2
"""Layers on the device that streamed ones pass through."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A device, what steps cost on it, and what its scheduler believes they cost."""

    name: str
    shape: ModelShape
    cost: StepCost
    num_blocks: int
    """KV blocks of the scheduler's `block_size`."""
    max_model_len: int
    """Tokens of a request at most."""
    latency: LatencyCoefficients
    """What steps are predicted by at first."""
    num_streamed_layers: int = 0
    """Copied to the device in every step; all others stay there."""

    @property
    def streamed_bytes(self) -> int:
        """Of one step."""
        return self.num_streamed_layers * round(self.shape.mean_layer_bytes)

    def link(self) -> LinkSnapshot:
        """What the scheduler sees of the link; it never changes."""
        if not self.num_streamed_layers:
            return NO_LINK
        p50, p5 = (self.cost.link_bytes_per_s(Direction.H2D, quantile) for quantile in (Quantile.P50, Quantile.P95))
        num_resident = self.shape.num_layers - self.num_streamed_layers
        return LinkSnapshot(
            h2d=LinkDirection(p50, p5), num_resident_layers=num_resident, num_streamed_layers=self.num_streamed_layers
        )


def simulated_gpu(
    gpu: str, place: ModelPlace, engine: EngineConfig, scheduler: SchedulerConfig, num_streamed_layers: int = 0
) -> SimulatedMachine:
    """An accelerator of the built-in table; KV takes what resident weights, slots and workspace leave of its memory.

    Raises:
        SimulationError: the accelerator or the model is not known, or the model does not fit.
    """
    try:
        hardware = find_hardware(gpu)
        model = gpu_model(place, engine)
    except (OffloadError, EngineError, ValueError) as error:
        raise SimulationError(str(error)) from error
    shape = model.shape
    _check_streamed(num_streamed_layers, shape)
    usable = int(hardware.memory_bytes * USABLE_SHARE)
    num_away = num_streamed_layers - _NUM_SLOTS if num_streamed_layers else 0
    weights_bytes = shape.weights_bytes - round(num_away * shape.mean_layer_bytes)
    kv_bytes = usable - weights_bytes - workspace_bytes(model.config, scheduler, model.dtype)
    if kv_bytes <= 0:
        raise SimulationError(
            f"the weights of {shape.name} take {weights_bytes / 1e9:.1f} GB, {hardware.name} has {usable / 1e9:.1f} GB "
            "for them, KV and workspace: simulate another --gpu, --quantize int4, or more --streamed-layers"
        )
    cost = HardwareCost.effective(hardware, shape)
    limits = _limits(model, kv_bytes, engine, scheduler)
    latency = fit_cost(cost, shape.num_layers, limits, round(shape.mean_layer_bytes))
    name = f"{hardware.name}, by the built-in table"
    return _machine(name, shape, cost, latency, limits, scheduler, num_streamed_layers)


def simulated_host(
    place: ModelPlace, engine: EngineConfig, scheduler: SchedulerConfig, num_streamed_layers: int = 0
) -> SimulatedMachine:
    """This machine, by its record; KV takes `kv_cache_memory_bytes`.

    Raises:
        SimulationError: not even one block fits, or `max_model_len` does not.
        PlanError: there is no record of this model on this machine, or a file cannot be read.
    """
    model, record = recorded_model(place, engine)
    _check_streamed(num_streamed_layers, model.shape)
    name = f"this machine, by its record: {record.fingerprint.device}, threads: {record.fingerprint.num_threads}"
    limits = _limits(model, engine.kv_cache_memory_bytes, engine, scheduler)
    latency = fit_latency(record, round(model.shape.mean_layer_bytes))
    return _machine(name, model.shape, record, latency, limits, scheduler, num_streamed_layers)


def _check_streamed(num_streamed_layers: int, shape: ModelShape) -> None:
    if num_streamed_layers > shape.num_layers:
        raise SimulationError(
            f"--streamed-layers is {num_streamed_layers}, {shape.name} has {shape.num_layers} layers: give no more"
        )


def _limits(model: PlannedModel, kv_bytes: int, engine: EngineConfig, scheduler: SchedulerConfig) -> ProfileLimits:
    """The largest step there can be."""
    try:
        num_blocks = num_blocks_for(model.config, model.dtype, scheduler.block_size, kv_bytes)
        kv_tokens = num_blocks * scheduler.block_size
        longest = max_model_len(engine.max_model_len_tokens, model.config.max_position_tokens, kv_tokens)
    except ValueError as error:
        raise SimulationError(str(error)) from error
    return ProfileLimits(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, longest, kv_tokens)


def _machine(
    name: str,
    shape: ModelShape,
    cost: StepCost,
    latency: LatencyCoefficients,
    limits: ProfileLimits,
    scheduler: SchedulerConfig,
    num_streamed_layers: int,
) -> SimulatedMachine:
    num_blocks, longest = limits.kv_tokens // scheduler.block_size, limits.max_context_tokens
    return SimulatedMachine(name, shape, cost, num_blocks, longest, latency, num_streamed_layers)
