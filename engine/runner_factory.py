"""Load a model and make the runner that a process serves."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from engine.offload_manager import NoOffload, OffloadManager
from engine.process_config import ProcessConfig
from engine.processors import available_processors, fixed_threads
from engine.runner import Runner
from kernels.native_library import NativeLibrary, NativeLibraryError, load_native_library
from scheduler.kv_transfer import NO_TIERS, TierConfig
from scheduler.latency_coefficients import LatencyCoefficients

if TYPE_CHECKING:
    from engine.model_config import ModelConfig
    from engine.weights import LoadedModel

logger = logging.getLogger(__name__)

ReportProgress = Callable[[str, float], None]
"""Phase and fraction done, 0..1."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltRunner:
    """A runner and what the scheduler and the server must know of it."""

    runner: Runner
    num_blocks: int
    max_model_len: int
    """Prompt plus output tokens of one request, in force."""
    model_max_len: int
    """What the model itself allows."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    weights_bytes: int
    kv_cache_bytes: int
    threads: int
    weights_bytes_by_format: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Of the matrices, by the name of their format."""
    offload: OffloadManager = dataclasses.field(default_factory=NoOffload)
    """Of the runner's weights and blocks."""
    tiers: TierConfig = NO_TIERS
    """Where blocks may lie beside the device."""
    latency: LatencyCoefficients | None = None
    """What steps are predicted by; None: nothing is predicted."""
    step_s_by_threads: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """What the probe measured for each number of threads that it tried; empty: somebody else chose."""


RunnerFactory = Callable[[ProcessConfig, ReportProgress], BuiltRunner]


def max_model_len(
    wanted_tokens: int | None, model_max_len: int, kv_cache_tokens: int, memory_option: str = "--kv-cache-memory"
) -> int:
    """The longest request: the model's limit capped by the KV cache, or what was asked for.

    Args:
        memory_option: what gives the KV cache its memory, for the message.

    Raises:
        ValueError: more was asked for than the model or the KV cache allows.
    """
    limit = min(model_max_len, kv_cache_tokens)
    if wanted_tokens is None:
        return limit
    if wanted_tokens > model_max_len:
        raise ValueError(f"--max-model-len is {wanted_tokens}, the model allows {model_max_len} tokens; ask for less")
    if wanted_tokens > kv_cache_tokens:
        raise ValueError(
            f"--max-model-len is {wanted_tokens}, the KV cache holds {kv_cache_tokens} tokens; "
            f"raise {memory_option} or ask for less"
        )
    return wanted_tokens


def load_kernels(
    choice: Literal["auto", "native", "torch"], threads: int, environment: Mapping[str, str]
) -> NativeLibrary | None:
    """The native kernels, or None: PyTorch's operators compute.

    Raises:
        ValueError: native kernels were asked for and cannot be had.
    """
    if choice == "torch":
        return None
    try:
        library = load_native_library(threads, environment)
    except NativeLibraryError as error:
        if choice == "native":
            raise ValueError(f"kernels is native: {error}") from error
        logger.warning("computing with PyTorch's operators, which are several times slower: %s", error)
        return None
    logger.info("native kernels: %s, %d threads", library.isa, library.num_threads)
    return library


def settle_threads(
    model: LoadedModel, library: NativeLibrary
) -> tuple[LoadedModel, NativeLibrary, Mapping[int, float]]:
    """Measure how many of the library's threads are worth having.

    Returns:
        Model and library to serve with: those given, or others with fewer threads, and the library given is closed.
        And the time of a step by number of threads, empty where there is no choice.
    """
    from engine.models.native_decoder import NativeDecoder
    from engine.thread_probe import probe_threads

    decoder = model.decoder
    if library.num_threads == 1 or not isinstance(decoder, NativeDecoder):
        return model, library, {}
    choice = probe_threads(decoder, library)
    most = library.num_threads
    logger.info("%d of %d threads compute; a step of the probe took %s", choice.num_threads, most, choice)
    if choice.num_threads == most:
        return model, library, choice.step_s
    logger.info("more were no faster beside what else runs here and now; --threads %d takes them all the same", most)
    fewer = library.with_threads(choice.num_threads)
    library.close()
    return dataclasses.replace(model, decoder=decoder.with_library(fewer)), fewer, choice.step_s


def serving_limits(config: ProcessConfig, model: ModelConfig) -> tuple[int, int]:
    """Blocks of the KV cache, and tokens of the longest request.

    Raises:
        ValueError: not a block fits, or more is asked for than the model or the KV cache allows.
        EngineStartError: a tier beside the device holds no block.
    """
    from engine.dtype import resolve_dtype
    from engine.kv_cache import bytes_per_block, num_blocks_for
    from engine.kv_tier_size import check_kv_sizes

    engine, block_size = config.engine, config.scheduler.block_size
    dtype = resolve_dtype(engine.dtype)
    check_kv_sizes(config.offload, bytes_per_block(model, dtype, block_size), weights_stay=True)
    num_blocks = num_blocks_for(model, dtype, block_size, engine.kv_cache_memory_bytes)
    limit = max_model_len(engine.max_model_len_tokens, model.max_position_tokens, num_blocks * block_size)
    return num_blocks, limit


def build_model_runner(config: ProcessConfig, report: ReportProgress) -> BuiltRunner:
    """The real thing: weights, KV cache and the model's runner, on the CPU.

    With a cap of device memory, weights that do not fit are streamed; see `engine.offload_setup`.

    Raises:
        OSError, ValueError: the model cannot be read, is of an unknown kind, or does not fit.
        EngineStartError: no plan serves any class within the memory.
    """
    if config.offload.is_capped:
        from engine.offloaded_runner import build_offloaded_runner

        return build_offloaded_runner(config, report)
    # Here and not above: importing torch takes seconds, and a process with another runner has no need of it.
    import torch

    from engine.brief_profiler import ServingParts
    from engine.kv_tier_setup import check_kv_tier_options, open_kv_tiers, with_tiers
    from engine.layers.layer_gate import OPEN_GATE
    from engine.model_runner import ModelRunner
    from engine.serving_latency import find_or_measure_latency
    from engine.weights import load_model
    from kernels.native.row_sampling import NativeRowSampling

    engine, scheduler = config.engine, config.scheduler
    check_kv_tier_options(config)
    fixed = fixed_threads(engine.threads, os.environ)
    threads = available_processors().compute_threads if fixed is None else fixed
    report("loading kernels", 0.0)
    library = load_kernels(engine.kernels, threads, os.environ)
    torch.set_num_threads(threads if library is None else 1)  # two pools of threads would fight for the processors
    model = load_model(
        engine.model_path,
        engine.dtype,
        lambda fraction: report("loading weights", fraction),
        batch_invariant=engine.batch_invariant,
        library=library,
        quantize=engine.quantize,
        context_tokens=lambda model_config: serving_limits(config, model_config)[1],
    )
    step_s_by_threads: Mapping[int, float] = {}
    if library is not None and fixed is None:
        report("choosing compute threads", 0.0)
        model, library, step_s_by_threads = settle_threads(model, library)
    num_blocks, limit = serving_limits(config, model.config)
    report("making the KV cache", 0.0)
    region = tiers = None
    if config.offload.wants_kv_tiers:
        region, tiers = open_kv_tiers(config, model.config, model.dtype, num_blocks, limit, library)
    sampling = None if library is None else NativeRowSampling(library)
    runner = ModelRunner(
        model,
        num_blocks,
        scheduler.block_size,
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        limit,
        kv_memory=None if region is None else region.memory,
        sampling=sampling,
        gate=OPEN_GATE if tiers is None else tiers.gate,
    )
    num_threads = threads if library is None else library.num_threads
    latency = None
    if engine.predict_steps:
        parts = ServingParts(model, runner.kv_cache, sampling, scheduler, limit)
        latency = find_or_measure_latency(engine, parts, library, num_threads, report)
    built = describe_built(config, model, runner, num_blocks, limit, num_threads)
    return with_tiers(dataclasses.replace(built, latency=latency, step_s_by_threads=step_s_by_threads), tiers)


def describe_built(
    config: ProcessConfig,
    model: LoadedModel,
    runner: Runner,
    num_blocks: int,
    limit: int,
    threads: int,
) -> BuiltRunner:
    """What the scheduler and the server must know of a runner whose weights all stay.

    Args:
        num_blocks: the most KV blocks there can be.
        limit: tokens of one request, in force.
    """
    from engine.kv_cache import bytes_per_block

    return BuiltRunner(
        runner=runner,
        num_blocks=num_blocks,
        max_model_len=limit,
        model_max_len=model.config.max_position_tokens,
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        dtype=str(model.dtype).removeprefix("torch."),
        device="cpu",
        weights_bytes=model.weights_bytes,
        weights_bytes_by_format=model.bytes_by_format,
        kv_cache_bytes=num_blocks * bytes_per_block(model.config, model.dtype, config.scheduler.block_size),
        threads=threads,
    )
