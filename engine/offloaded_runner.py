"""Load a model into less device memory than it takes, and make the runner that streams the rest."""

from __future__ import annotations

import dataclasses
import logging
import os

import torch

from engine.compute_share import offload_threads
from engine.device_choice import choose_device
from engine.dtype import resolve_dtype
from engine.kv_tier_setup import KVRegion, check_kv_tier_options, open_kv_tiers_beside, with_tiers
from engine.latency_fit import fit_latency, streamed_layer_bytes
from engine.layers.layer_gate import OPEN_GATE
from engine.model_runner import ModelRunner
from engine.offload_setup import OffloadSetup
from engine.process_config import ProcessConfig
from engine.profile_run import obtain_record
from engine.runner_factory import BuiltRunner, ReportProgress, describe_built, load_kernels, max_model_len
from engine.weights import load_model
from kernels.native.row_sampling import NativeRowSampling

logger = logging.getLogger(__name__)


def build_offloaded_runner(config: ProcessConfig, report: ReportProgress) -> BuiltRunner:
    """Measure this machine unless that was done before, plan, load, and open the link.

    Raises:
        OSError, ValueError: the model cannot be read or is of an unknown kind.
        EngineStartError: no plan serves any class within the memory.
        OffloadError: the link or the record failed.
    """
    engine, scheduler = config.engine, config.scheduler
    check_kv_tier_options(config)
    result = obtain_record(engine, scheduler, report)
    logger.info("performance record: %s%s", result.path, "" if result.is_fresh else " (measured before)")
    threads = offload_threads(engine.threads)
    report("loading kernels", 0.0)
    library = load_kernels(engine.kernels, threads, os.environ)
    torch.set_num_threads(threads if library is None else 1)
    dtype = resolve_dtype(engine.dtype)
    device = choose_device(config.is_restart, library)
    setup = OffloadSetup(config.offload, engine, scheduler, config.slo_classes, result.record, dtype, device)
    model = load_model(
        engine.model_path,
        engine.dtype,
        lambda fraction: report("loading weights", fraction),
        batch_invariant=engine.batch_invariant,
        library=library,
        quantize=engine.quantize,
        place=setup.place,
        # Before the plan is known: rotations that depend on the longest sequence follow what was asked for.
        context_tokens=lambda model_config: min(
            engine.max_model_len_tokens or model_config.max_position_tokens, model_config.max_position_tokens
        ),
    )
    placed = setup.placed
    assert placed is not None
    num_blocks = placed.weights.max_kv_blocks
    limit = max_model_len(
        engine.max_model_len_tokens, model.config.max_position_tokens, placed.plan.max_model_len, "--device-memory"
    )
    report("making the KV cache", 0.0)
    region = KVRegion(model.config, model.dtype, num_blocks, scheduler.block_size, placed.weights.kv_memory)
    tiers = open_kv_tiers_beside(config, region, limit, library, device, placed)
    runner = ModelRunner(
        model, num_blocks, scheduler.block_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens, limit,
        region.memory, None if library is None else NativeRowSampling(library),
        OPEN_GATE if tiers is None else tiers.gate,
    )  # fmt: skip
    built = describe_built(config, model, runner, num_blocks, limit, threads)
    latency = fit_latency(result.record, streamed_layer_bytes(placed.plan)) if engine.predict_steps else None
    return with_tiers(dataclasses.replace(built, offload=setup.manager(runner.kv_cache), latency=latency), tiers)
