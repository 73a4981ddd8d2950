"""Performance records in the cache: what identifies one, and whether it is of use here."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from engine.config import EngineConfig
from kernels.native_library import NativeLibrary
from offload.errors import OffloadError
from offload.fingerprint import Fingerprint, digest_model, identify_processor
from offload.record import PerformanceRecord
from offload.record_file import read_record
from scheduler.config import SchedulerConfig


class RecordTooSmallError(OffloadError):
    """The scheduler may make larger steps than the record holds."""


def make_fingerprint(engine: EngineConfig, threads: int, library: NativeLibrary | None) -> Fingerprint:
    """Of what `engine` would compute with on this machine; nothing of the model is loaded.

    Args:
        threads: that compute, whoever chose their number.

    Raises:
        OSError: the model's files cannot be read.
    """
    import torch

    from engine.dtype import resolve_dtype

    processor = identify_processor()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    stored = "stored" if engine.dtype == "auto" else engine.dtype
    return Fingerprint(
        device=processor.name,
        processor_features=processor.features,
        driver=f"{platform.system()} {platform.machine()}",
        num_cores=affinity,
        num_threads=threads,
        model=digest_model(Path(engine.model_path)),
        dtype=str(resolve_dtype(engine.dtype)).removeprefix("torch."),
        weights=stored if engine.quantize is None else engine.quantize,
        kernels="torch" if library is None else f"native {library.isa} {library.path.stem.rpartition('-')[2]}",
        torch_version=str(torch.__version__),
        is_batch_invariant=engine.batch_invariant,
    )


def find_record(
    path: Path, fingerprint: Fingerprint, scheduler: SchedulerConfig, *, may_be_brief: bool = False
) -> PerformanceRecord:
    """A record of this fingerprint that holds steps as large as the scheduler's.

    Raises:
        FileNotFoundError: nothing lies there.
        RecordFileError, RecordMismatchError, ImplausibleRecordError: see `read_record`.
        RecordTooSmallError: see there.
    """
    record = read_record(path, fingerprint, may_be_brief=may_be_brief)
    measured = record.measurements
    sizes = (measured.max_num_sequences, measured.max_num_tokens)
    wanted = (scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    if sizes[0] < wanted[0] or sizes[1] < wanted[1]:
        raise RecordTooSmallError(
            f"{path} holds steps of up to {sizes[0]} sequences and {sizes[1]} tokens; {wanted[0]} and {wanted[1]} are "
            "allowed here"
        )
    return record
