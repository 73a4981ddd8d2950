"""From a model's path to its performance record: the one in the cache, or a fresh one."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.compute_share import offload_threads
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.model_error import ModelError
from engine.profile_grid import ProfileLimits
from engine.record_cache import find_record, make_fingerprint
from engine.runner_factory import load_kernels
from kernels.native_library import NativeLibrary
from offload.errors import OffloadError
from offload.fingerprint import Fingerprint
from offload.record_check import ImplausibleRecordError, check_measurements
from offload.record_file import OutdatedRecordError, make_directory, record_path, records_directory, write_record
from scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from engine.profiler import ProfileTools
    from engine.weights import LoadedModel
    from offload.record import PerformanceRecord

logger = logging.getLogger(__name__)

ReportProgress = Callable[[str, float], None]
"""Phase and fraction done, 0..1."""
_EXPECTED_BYTES_PER_S = 5e9
"""What a link between two regions of main memory starts from; it measures its own slices from then on."""


class ProfileError(EngineError):
    """The record can neither be found nor made."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileResult:
    """A record, and where it lies."""

    record: PerformanceRecord
    path: Path
    is_fresh: bool
    """It was measured now."""


def obtain_record(
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    report: ReportProgress,
    *,
    is_forced: bool = False,
    tools: ProfileTools | None = None,
) -> ProfileResult:
    """The record of this model, machine and build; measured and stored unless the cache has it.

    Args:
        is_forced: measure in any case.
        tools: of the profiler; None: those of a CPU.

    Raises:
        ProfileError: the model cannot be read, the link failed, there is no memory, or the record cannot be written.
    """
    try:
        return _obtain(engine, scheduler, report, is_forced, tools)
    except (OSError, ValueError, ModelError, OffloadError) as error:
        raise ProfileError(str(error)) from error
    except MemoryError as error:
        raise ProfileError(
            f"memory for the model, the KV cache and the copies cannot be had ({error or 'the system refuses'}); "
            f"lower --kv-cache-memory, which is {engine.kv_cache_memory_bytes:,} bytes"
        ) from error


def _obtain(
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    report: ReportProgress,
    is_forced: bool,
    tools: ProfileTools | None,
) -> ProfileResult:
    threads = offload_threads(engine.threads)
    library = load_kernels(engine.kernels, threads, os.environ)
    try:
        fingerprint = make_fingerprint(engine, threads, library)
        directory = records_directory(os.environ)
        path = record_path(directory, fingerprint)
        known = None if is_forced else _known_record(path, fingerprint, scheduler)
        if known is not None:
            return ProfileResult(known, path, is_fresh=False)
        make_directory(path)  # before the time is spent
        logger.info("no performance record for this model and these options: measuring this machine, about 25 s")
        record = _measure(engine, scheduler, fingerprint, threads, library, report, tools)
        if (problem := _problem(record)) is not None:
            logger.warning("measuring once more: %s", problem)
            record = _measure(engine, scheduler, fingerprint, threads, library, report, tools)
        _check(record)
        write_record(path, record)
        record_path(directory, fingerprint, is_brief=True).unlink(missing_ok=True)  # this one says more
        return ProfileResult(record, path, is_fresh=True)
    finally:
        if library is not None:
            library.close()


def _known_record(path: Path, fingerprint: Fingerprint, scheduler: SchedulerConfig) -> PerformanceRecord | None:
    """None: there is none, or none of use, which the log says."""
    try:
        return find_record(path, fingerprint, scheduler)
    except FileNotFoundError:
        return None
    except OutdatedRecordError as error:
        logger.info("%s", error)
        return None
    except OffloadError as error:
        logger.warning("measuring anew: %s", error)
        return None


def _problem(record: PerformanceRecord) -> str | None:
    """Where what was measured contradicts itself; None: it does not."""
    try:
        check_measurements(record.measurements)
    except ImplausibleRecordError as error:
        return error.problem
    return None


def _check(record: PerformanceRecord) -> None:
    """Raises ProfileError: what was measured contradicts itself."""
    if (problem := _problem(record)) is not None:
        raise ProfileError(
            f"the measurements are of no use ({problem}): something else was computing all the time; "
            "stop it, or wait, and measure again with `headrace profile`"
        )


def _measure(
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    fingerprint: Fingerprint,
    threads: int,
    library: NativeLibrary | None,
    report: ReportProgress,
    tools: ProfileTools | None,
) -> PerformanceRecord:
    # Here and not above: importing torch takes seconds, and whoever finds a record has no need of it.
    import torch

    from engine.profiler import measure
    from engine.weights import load_model
    from kernels.native.row_sampling import NativeRowSampling
    from offload.record import PerformanceRecord

    torch.set_num_threads(threads if library is None else 1)
    model = load_model(
        engine.model_path,
        engine.dtype,
        lambda fraction: report("loading weights", fraction),
        batch_invariant=engine.batch_invariant,
        library=library,
        quantize=engine.quantize,
    )
    sampling = None if library is None else NativeRowSampling(library)
    measurements = measure(
        model,
        scheduler,
        profile_limits(model, engine, scheduler),
        dataclasses.replace(tools or cpu_tools(), sampling=sampling),
        lambda fraction: report("measuring", fraction),
    )
    return PerformanceRecord(fingerprint, measurements)


def profile_limits(model: LoadedModel, engine: EngineConfig, scheduler: SchedulerConfig) -> ProfileLimits:
    """The largest step that `engine` and `scheduler` allow."""
    from engine.kv_cache import num_blocks_for

    num_blocks = num_blocks_for(model.config, model.dtype, scheduler.block_size, engine.kv_cache_memory_bytes)
    kv_tokens = num_blocks * scheduler.block_size
    wanted = engine.max_model_len_tokens or model.config.max_position_tokens
    return ProfileLimits(
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        min(wanted, model.config.max_position_tokens, kv_tokens),
        kv_tokens,
    )


def cpu_tools() -> ProfileTools:
    """A link between two regions of main memory."""
    from engine.profiler import ProfileTools
    from offload.cpu_device import CpuDevice
    from offload.link import Link
    from offload.link_config import LinkConfig
    from offload.transfer import Direction

    device = CpuDevice()

    def make_link(bytes_per_s: float | None) -> Link:
        expected = bytes_per_s or _EXPECTED_BYTES_PER_S
        caps = {} if bytes_per_s is None else {Direction.H2D: bytes_per_s}
        return device.open_link(LinkConfig(expected, expected), caps)

    return ProfileTools(make_link, device.allocate)
