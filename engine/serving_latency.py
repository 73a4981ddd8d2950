"""What steps are predicted by where all weights stay: the cached record, or a brief one of what was just loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from engine.brief_profiler import ServingParts, measure_brief
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.latency_fit import fit_latency
from engine.record_cache import RecordTooSmallError, find_record, make_fingerprint
from engine.run_delay import run_delay_s
from kernels.native_library import NativeLibrary
from offload.errors import OffloadError
from offload.fingerprint import Fingerprint
from offload.record import PerformanceRecord
from offload.record_check import ImplausibleRecordError
from offload.record_file import OutdatedRecordError, RecordFileError, record_path, records_directory, write_record
from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients

logger = logging.getLogger(__name__)

ReportProgress = Callable[[str, float], None]
"""Phase and fraction done, 0..1."""
MAX_DELAY_SHARE = 0.1
"""Of the time of measuring, waited for a processor over all threads: a record with more is not kept."""
_WITHOUT = "steps are not predicted (%s); --no-predict-steps goes without from the start"


def find_or_measure_latency(
    engine: EngineConfig,
    parts: ServingParts,
    library: NativeLibrary | None,
    threads: int,
    report: ReportProgress,
) -> LatencyCoefficients | None:
    """Of a record of exactly these threads, which the start has chosen: full, else brief, else measured now and kept.

    Args:
        parts: with nothing to do yet; measuring overwrites some of the KV cache.
        library: that computes; None: PyTorch does.
        threads: that compute.

    Returns:
        None: there is no record and none can be made, for a reason that the log tells. It is no reason not to serve.
    """
    try:
        fingerprint = make_fingerprint(engine, threads, library)
        record = _known_record(fingerprint, parts.scheduler) or _measured_record(fingerprint, parts, report)
        return fit_latency(record)
    except ImplausibleRecordError as error:
        logger.warning(_WITHOUT, f"something else was computing while they were measured: {error.problem}")
        return None
    # What files, memory, measurements and PyTorch may do; a fault of our own is not among them.
    except (EngineError, OffloadError, OSError, ValueError, MemoryError, RuntimeError) as error:
        logger.warning(_WITHOUT, error)
        return None


def _known_record(fingerprint: Fingerprint, scheduler: SchedulerConfig) -> PerformanceRecord | None:
    """None: there is none, or none of use, which the log says."""
    directory, problems = records_directory(os.environ), list[str]()
    for is_brief in (False, True):
        path = record_path(directory, fingerprint, is_brief=is_brief)
        try:
            record = find_record(path, fingerprint, scheduler, may_be_brief=is_brief)
        except FileNotFoundError:
            continue
        except OutdatedRecordError as error:
            logger.info("%s", error)
        except RecordTooSmallError as error:
            logger.info("a performance record is not used: %s", error)
        except OffloadError as error:
            problems.append(str(error))
        else:
            logger.info("steps are predicted by the performance record %s", path)
            break
    else:
        record = None
    if problems:
        logger.warning("performance records are not used: %s", "; ".join(problems))
    return record


def _measured_record(fingerprint: Fingerprint, parts: ServingParts, report: ReportProgress) -> PerformanceRecord:
    """Measure, and keep it for the next start; if it cannot be kept, it holds for this one.

    Raises:
        TooSlowError: see there.
        ImplausibleRecordError: something else was computing all the time.
    """
    logger.info("no performance record of this model and these options: measuring a brief one, about 2 s")
    before_s = run_delay_s()
    record = PerformanceRecord(fingerprint, measure_brief(parts, lambda fraction: report("measuring steps", fraction)))
    delay_s, wall_s = run_delay_s(), record.measurements.wall_s
    if before_s is not None and delay_s is not None and delay_s - before_s > MAX_DELAY_SHARE * wall_s:
        logger.warning(
            "other processes held the processors for %.1f of the %.1f s in which steps were measured: the record holds "
            "for this start, and the next one measures again", delay_s - before_s, wall_s,
        )  # fmt: skip
        return record
    path = record_path(records_directory(os.environ), fingerprint, is_brief=True)
    try:
        write_record(path, record)
        logger.info("steps are predicted by a brief record, measured in %.1f s: %s", record.measurements.wall_s, path)
    except RecordFileError as error:
        logger.warning("the next start measures again: %s", error)
    return record
