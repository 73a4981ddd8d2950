"""`headrace plan` without its terminal: a plan for an accelerator of the table, or for this machine from its record."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

import torch

from engine.compute_share import offload_threads
from engine.config import EngineConfig
from engine.dtype import DTYPES, resolve_dtype
from engine.errors import EngineError
from engine.models.weight_formats import FormatChoice
from engine.offload_setup import workspace_bytes
from engine.plan_config import PlanConfig
from engine.plan_model import PlannedModel, built_in_model, model_in_files
from engine.plan_report import PlanReport, PlanSubject, hardware_text, make_report
from engine.record_cache import make_fingerprint
from engine.runner_factory import load_kernels
from offload.emulation import emulated_link_bytes_per_s
from offload.errors import OffloadError
from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.planner import plan
from offload.record import PerformanceRecord
from offload.record_file import OutdatedRecordError, read_record, record_path, records_directory
from offload.step_cost import StepCost
from offload.target import ClassTarget
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClass

USABLE_SHARE = 0.9
"""Of an accelerator's memory: the rest is its driver's, and fragments."""


class PlanError(EngineError):
    """There is nothing to plan with; names the way out."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where a model's sizes come from."""

    name: str
    path: Path | None
    """A GGUF file, or a directory with config.json; None: the built-in shape of that name."""
    asked: str | None = None
    """What a user named it by; None: nothing, it is the default model."""


def plan_for_gpu(
    config: PlanConfig, place: ModelPlace, engine: EngineConfig, scheduler: SchedulerConfig, classes: Iterable[SLOClass]
) -> PlanReport:
    """By the hardware table.

    Raises:
        PlanError: the accelerator or the model is not known, or the model's files cannot be read.
    """
    assert config.gpu is not None
    try:
        hardware = find_hardware(config.gpu)
        model = gpu_model(place, engine)
    except (OffloadError, EngineError, ValueError) as error:
        raise PlanError(str(error)) from error
    if config.link_gbps is not None:
        rate = config.link_gbps * 1e9
        link = dataclasses.replace(
            hardware.link, name="a link of", peak_bytes_per_s=rate, h2d_bytes_per_s=rate, d2h_bytes_per_s=rate
        )
        hardware = dataclasses.replace(hardware, link=link)
    cost = HardwareCost.effective(hardware, model.shape)
    request = dataclasses.replace(
        _request(config, model, engine, scheduler, int(hardware.memory_bytes * USABLE_SHARE)),
        restart_s=hardware.restart_s,
        assumed_cost=HardwareCost.peak(hardware, model.shape),
    )
    return report_plan(model, cost, hardware_text(hardware), request, classes)


def plan_for_this_machine(
    config: PlanConfig, place: ModelPlace, engine: EngineConfig, scheduler: SchedulerConfig, classes: Iterable[SLOClass]
) -> PlanReport:
    """By the record in the cache; nothing is measured.

    Raises:
        PlanError: there is no record of this model on this machine, or a file cannot be read.
    """
    model, record = recorded_model(place, engine)
    cost = record.capped(*_caps(config, model, record))
    all_resident = model.shape.weights_bytes + engine.kv_cache_memory_bytes
    request = _request(config, model, engine, scheduler, all_resident)
    if config.device_memory_bytes is None:
        request = dataclasses.replace(request, device_bytes=all_resident + request.workspace_bytes)
    request = dataclasses.replace(request, restart_s=record.restart_s)
    threads = record.fingerprint.num_threads
    machine = (
        f"this machine, by its record: {record.fingerprint.device}, {threads} {'thread' if threads == 1 else 'threads'}"
    )
    return report_plan(model, cost, machine, request, classes)


def report_plan(
    model: PlannedModel, cost: StepCost, machine: str, request: PlanRequest, classes: Iterable[SLOClass]
) -> PlanReport:
    """Plan with what is known of a machine, however it is known, and put it into words."""
    targets = tuple(
        ClassTarget(c.name, c.ttft_base_s, c.ttft_per_1k_tokens_s, c.tpot_s, c.when_infeasible) for c in classes
    )
    found = plan(model.shape, cost, targets, request)
    return make_report(PlanSubject(machine, model.shape, cost, targets, request), found)


def _request(
    config: PlanConfig, model: PlannedModel, engine: EngineConfig, scheduler: SchedulerConfig, default_bytes: int
) -> PlanRequest:
    """Raises PlanError: the load is longer than the model reads."""
    context_tokens, prompt_tokens = (
        _within_model(model, option, asked, default)
        for option, asked, default in (
            ("--context", config.context_tokens, PlanConfig().context_tokens),
            ("--prompt", config.prompt_tokens, PlanConfig().prompt_tokens),
        )
    )
    load = ReferenceLoad(config.num_sequences, context_tokens, prompt_tokens, scheduler.max_num_batched_tokens)
    return PlanRequest(
        device_bytes=config.device_memory_bytes or default_bytes,
        host_bytes=config.host_memory_bytes,
        block_size=scheduler.block_size,
        workspace_bytes=workspace_bytes(model.config, scheduler, model.dtype),
        kv_need_tokens=load.num_sequences * load.context_tokens
        if config.kv_need_tokens is None
        else config.kv_need_tokens,
        max_model_len=engine.max_model_len_tokens,
        objective=config.offload_objective,
        strategy=config.offload_strategy,
        load=load,
    )


def _within_model(model: PlannedModel, option: str, asked: int, default: int) -> int:
    """What was asked for; where nothing was, no more than the model reads."""
    longest = model.config.max_position_tokens
    if asked > max(longest, default):
        raise PlanError(f"{option} is {asked:,}, {model.shape.name} reads at most {longest:,} tokens; ask for less")
    return min(asked, longest)


def gpu_model(place: ModelPlace, engine: EngineConfig) -> PlannedModel:
    """A model for an accelerator of the table.

    Raises:
        EngineError, OffloadError, ValueError: it is not known, or its files cannot be read.
    """
    if place.path is None:
        return built_in_model(place.name, engine.dtype, engine.quantize)
    # Not this machine's choice of "auto": every accelerator of the table multiplies 16 bits.
    dtype = torch.bfloat16 if engine.dtype == "auto" else DTYPES[engine.dtype]
    return model_in_files(place.path, _choice(dtype, engine, is_native=True), place.name)


def recorded_model(place: ModelPlace, engine: EngineConfig) -> tuple[PlannedModel, PerformanceRecord]:
    """A model in files, and this machine's record of it in the cache; nothing is measured.

    Raises:
        PlanError: there is no record of this model on this machine, or a file cannot be read.
    """
    if place.path is None:
        raise PlanError(
            f"{place.name} is a built-in shape and has no record on this machine: add --gpu ID, or give the path of "
            f"its files and run `headrace profile` on them"
        )
    engine = dataclasses.replace(engine, model_path=str(place.path))
    try:
        record, is_native = _find_record(engine, place)
        dtype = resolve_dtype(engine.dtype)
        model = model_in_files(place.path, _choice(dtype, engine, is_native), place.name)
    except (OffloadError, OSError, ValueError) as error:
        raise PlanError(str(error)) from error
    return model, record


def _choice(dtype: torch.dtype, engine: EngineConfig, is_native: bool) -> FormatChoice:
    return FormatChoice(dtype, is_native, None if engine.dtype == "auto" else dtype, engine.quantize)


def _find_record(engine: EngineConfig, place: ModelPlace) -> tuple[PerformanceRecord, bool]:
    """And whether native kernels compute.

    Raises:
        PlanError: there is none.
        OffloadError: it is damaged or of something else.
    """
    threads = offload_threads(engine.threads)
    library = load_kernels(engine.kernels, threads, os.environ)
    try:
        fingerprint = make_fingerprint(engine, threads, library)
    finally:
        if library is not None:
            library.close()
    path = record_path(records_directory(os.environ), fingerprint)
    try:
        return read_record(path, fingerprint), library is not None
    except (FileNotFoundError, OutdatedRecordError) as error:
        model = "" if place.asked is None else f" {shlex.quote(place.asked)}"
        old = "" if isinstance(error, FileNotFoundError) else " (only one that an older build measured)"
        raise PlanError(
            f"there is no record of {place.name} on this machine with these options{old}: run "
            f"`headrace profile{model}{_profile_options(engine)}` (about 25 s), or add --gpu ID for an accelerator of "
            "the built-in table"
        ) from None


def _profile_options(engine: EngineConfig) -> str:
    """Those that a record holds for, as far as they differ from the defaults."""
    default = EngineConfig(model_path="")
    named = [
        f" --{name} {getattr(engine, name)}"
        for name in ("dtype", "quantize", "threads", "kernels")
        if getattr(engine, name) != getattr(default, name)
    ]
    return "".join(named) + (" --batch-invariant" if engine.batch_invariant else "")


def _caps(config: PlanConfig, model: PlannedModel, record: PerformanceRecord) -> tuple[float | None, float | None]:
    if config.link_gbps is not None:
        return config.link_gbps * 1e9, config.link_gbps * 1e9
    if config.emulate is None:
        return None, None
    load = ReferenceLoad(config.num_sequences, config.context_tokens).decode()
    rate = emulated_link_bytes_per_s(config.emulate, model.shape, record, load)
    return rate, rate
