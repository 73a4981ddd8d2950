"""What is simulated: a model on an accelerator of the table, or on this machine by its record."""

from __future__ import annotations

import dataclasses

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.kv_cache import num_blocks_for
from engine.offload_setup import workspace_bytes
from engine.plan_model import PlannedModel
from engine.plan_run import USABLE_SHARE, ModelPlace, gpu_model, recorded_model
from engine.runner_factory import max_model_len
from engine.simulation.simulation_error import SimulationError
from offload.errors import OffloadError
from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.model_shape import ModelShape
from offload.step_cost import StepCost
from scheduler.config import SchedulerConfig


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A device that holds all weights, and what steps cost on it."""

    name: str
    shape: ModelShape
    cost: StepCost
    num_blocks: int
    """KV blocks of the scheduler's `block_size`."""
    max_model_len: int
    """Tokens of a request at most."""


def simulated_gpu(gpu: str, place: ModelPlace, engine: EngineConfig, scheduler: SchedulerConfig) -> SimulatedMachine:
    """An accelerator of the built-in table; KV takes what weights and workspace leave of its memory.

    Raises:
        SimulationError: the accelerator or the model is not known, or the model does not fit.
    """
    try:
        hardware = find_hardware(gpu)
        model = gpu_model(place, engine)
    except (OffloadError, EngineError, ValueError) as error:
        raise SimulationError(str(error)) from error
    usable = int(hardware.memory_bytes * USABLE_SHARE)
    kv_bytes = usable - model.shape.weights_bytes - workspace_bytes(model.config, scheduler, model.dtype)
    if kv_bytes <= 0:
        raise SimulationError(
            f"the weights of {model.shape.name} take {model.shape.weights_bytes / 1e9:.1f} GB, {hardware.name} has "
            f"{usable / 1e9:.1f} GB for them, KV and workspace: simulate another --gpu, or --quantize int4 (streamed "
            "weights are not simulated)"
        )
    cost = HardwareCost.effective(hardware, model.shape)
    return _machine(f"{hardware.name}, by the built-in table", model, cost, kv_bytes, engine, scheduler)


def simulated_host(place: ModelPlace, engine: EngineConfig, scheduler: SchedulerConfig) -> SimulatedMachine:
    """This machine, by its record; KV takes `kv_cache_memory_bytes`.

    Raises:
        SimulationError: not even one block fits, or `max_model_len` does not.
        PlanError: there is no record of this model on this machine, or a file cannot be read.
    """
    model, record = recorded_model(place, engine)
    name = f"this machine, by its record: {record.fingerprint.device}, threads: {record.fingerprint.num_threads}"
    return _machine(name, model, record, engine.kv_cache_memory_bytes, engine, scheduler)


def _machine(
    name: str, model: PlannedModel, cost: StepCost, kv_bytes: int, engine: EngineConfig, scheduler: SchedulerConfig
) -> SimulatedMachine:
    try:
        num_blocks = num_blocks_for(model.config, model.dtype, scheduler.block_size, kv_bytes)
        kv_tokens = num_blocks * scheduler.block_size
        longest = max_model_len(engine.max_model_len_tokens, model.config.max_position_tokens, kv_tokens)
    except ValueError as error:
        raise SimulationError(str(error)) from error
    return SimulatedMachine(name, model.shape, cost, num_blocks, longest)
