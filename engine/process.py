"""An engine process from its configuration to its end."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from engine.alone import predict_alone
from engine.clock import MonotonicClock
from engine.core import EngineCore
from engine.errors import EngineError, EngineStartError, EventLogError
from engine.event_log import EventLog, Header
from engine.kv_bytes import KVBytes
from engine.loop import EngineLoop
from engine.messages import AddGroup, Fatal, Progress, Ready, SLORequest
from engine.parent_watch import ParentWatch
from engine.process_config import ProcessConfig
from engine.process_exit import EXIT_FATAL, EXIT_STOPPED
from engine.runner import Clock
from engine.runner_factory import BuiltRunner, RunnerFactory
from engine.sampling_params import SamplingParams
from engine.sockets import EngineSockets
from engine.stats import kv_tier_stats
from offload.available_memory import available_memory_bytes
from offload.errors import OffloadError
from scheduler.latency_model import LatencyModel
from scheduler.scheduler import Scheduler
from scheduler.stats import SchedulerStats

logger = logging.getLogger(__name__)

_WARM_UP_OUTPUT_TOKENS = 2
"""The first comes from a prefill, the second from a decode."""


def serve(config: ProcessConfig, make_runner: RunnerFactory) -> int:
    """Load, warm up, say `Ready`, serve until `Stop`; the exit status of the process."""
    _ignore_signals()
    parent = ParentWatch(config.parent_pid)
    sockets = EngineSockets(config.inbox_endpoint, config.outbox_endpoint)
    try:
        _serve(config, make_runner, sockets, parent)
    except Exception as error:  # the loop's outermost: whatever it is, the server is told before the process ends
        # An error of our own names its cause itself; the others are bugs, or come from a library.
        logger.error("the engine ends: %s", error, exc_info=None if isinstance(error, EngineError) else error)
        sockets.send(Fatal(message=_describe(error)))
        return EXIT_FATAL
    finally:
        sockets.close()
    return EXIT_STOPPED


def _serve(config: ProcessConfig, make_runner: RunnerFactory, sockets: EngineSockets, parent: ParentWatch) -> None:
    clock = MonotonicClock()
    started_s = clock.now_s()
    sockets.send(Progress(phase="starting", fraction=0.0))
    built = _build(config, make_runner, sockets)
    with closing(built.offload):
        _run(config, built, sockets, parent, clock, started_s)


def _run(
    config: ProcessConfig,
    built: BuiltRunner,
    sockets: EngineSockets,
    parent: ParentWatch,
    clock: Clock,
    started_s: float,
) -> None:
    """From a loaded model to `Stop`."""
    sockets.send(Progress(phase="warming up", fraction=0.0))
    warm_up(config, built, clock)
    prefill_s_per_token = warm_up(config, built, clock)
    try:
        built.offload.verify()
    except OffloadError as error:
        raise EngineStartError(str(error)) from error
    latency = None if built.latency is None else LatencyModel(built.latency)
    scheduler = Scheduler(
        config.scheduler, config.slo_classes, built.num_blocks, built.max_model_len, latency, built.tiers
    )
    with _event_log(config, built) as event_log:
        core = EngineCore(
            scheduler,
            built.runner,
            clock,
            block_size=config.scheduler.block_size,
            eos_token_ids=frozenset(built.eos_token_ids),
            event_log=event_log,
            offload=built.offload,
        )
        # What was loaded lives as long as the process: the collector need not walk through it in the midst of a step.
        gc.collect()
        gc.freeze()
        built.offload.call_on_results(sockets.wake)
        longest_step_s = prefill_s_per_token * config.scheduler.max_num_batched_tokens
        sockets.send(_ready(config, built, clock.now_s() - started_s, longest_step_s, scheduler.stats()))
        EngineLoop(core, sockets, clock, parent).run()


def _build(config: ProcessConfig, make_runner: RunnerFactory, sockets: EngineSockets) -> BuiltRunner:
    """Raises EngineError: the model, an option or the machine is at fault."""
    if not config.is_restart:  # where it did fit, files in the page cache may hide for a moment that it still does
        check_kv_cache_memory(config.engine.kv_cache_memory_bytes, available_memory_bytes())
    try:
        return make_runner(config, lambda phase, fraction: sockets.send(Progress(phase=phase, fraction=fraction)))
    except (OSError, ValueError, OffloadError) as error:
        raise EngineStartError(str(error)) from error
    except MemoryError as error:
        option, num_bytes = "--kv-cache-memory", config.engine.kv_cache_memory_bytes
        if config.offload.device_memory_bytes is not None:
            option, num_bytes = "--device-memory", config.offload.device_memory_bytes
        raise EngineStartError(
            f"memory for the model and the KV cache cannot be had ({error or 'the system refuses'}); "
            f"lower {option}, which is {num_bytes} bytes"
        ) from error


def check_kv_cache_memory(wanted_bytes: int, available_bytes: int | None) -> None:
    """Before anything is loaded: a region larger than the memory would end the process once it is filled.

    Raises:
        EngineStartError: more is wanted than is there.
    """
    if available_bytes is not None and wanted_bytes > available_bytes:
        raise EngineStartError(
            f"--kv-cache-memory is {_mib(wanted_bytes)}, {_mib(available_bytes)} of memory are available "
            f"(of the machine, or of this process's control group); ask for less, and leave room for the weights"
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:,.0f} MiB"


def warm_up(config: ProcessConfig, built: BuiltRunner, clock: Clock) -> float:
    """Make real tokens with a scheduler of its own, so that nothing of it is left in the one that serves.

    Returns:
        Seconds per token of the prefill step.

    Raises:
        EngineStartError: nothing fits this instance, or the runner makes no token.
    """
    scheduler = Scheduler(config.scheduler, config.slo_classes, built.num_blocks, built.max_model_len)
    core = EngineCore(
        scheduler,
        built.runner,
        clock,
        block_size=config.scheduler.block_size,
        eos_token_ids=frozenset(),
        offload=built.offload,
    )
    num_output = min(_WARM_UP_OUTPUT_TOKENS, built.max_model_len - 1)
    num_prompt = min(config.scheduler.block_size, built.max_model_len - num_output)
    group = AddGroup(
        group_id="warm-up",
        prompts=((0,) * num_prompt,),
        n=1,
        sampling=SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True),
        slo=SLORequest(requested=config.default_class, granted=config.default_class),
        arrival_s=clock.now_s(),
    )
    outputs = core.turn([group])
    if outputs.refused:
        raise EngineStartError(f"the warm-up was refused: {outputs.refused[0].message}")
    prefill_s = outputs.stats.step_s
    num_tokens = sum(len(delta.token_ids) for delta in outputs.deltas)
    while core.num_live_choices:
        outputs = core.turn([])
        num_tokens += sum(len(delta.token_ids) for delta in outputs.deltas)
        core.raise_if_failing()
    if num_tokens != num_output:
        raise EngineStartError(f"the warm-up made {num_tokens} tokens of {num_output}; see the log above")
    return prefill_s / num_prompt


@contextmanager
def _event_log(config: ProcessConfig, built: BuiltRunner) -> Iterator[EventLog | None]:
    if config.engine.event_log_path is None:
        yield None
        return
    header = Header(
        scheduler=config.scheduler,
        classes=config.classes,
        default_class=config.default_class,
        num_blocks=built.num_blocks,
        max_model_len=built.max_model_len,
        latency=built.latency,
        tiers=built.tiers,
    )
    event_log = _open_event_log(Path(config.engine.event_log_path), header, config.is_restart)
    try:
        yield event_log
    finally:
        if event_log is not None:
            event_log.close()


def _open_event_log(path: Path, header: Header, is_restart: bool) -> EventLog | None:
    """None: on a restart, without a recording rather than without service.

    Raises:
        EventLogError: it cannot be written at the first start.
    """
    try:
        return EventLog(path, header)
    except EventLogError as error:
        if not is_restart:
            raise
        logger.error("this engine process goes on without recording: %s", error)
        return None


def _ready(
    config: ProcessConfig, built: BuiltRunner, load_s: float, longest_step_s: float, stats: SchedulerStats
) -> Ready:
    offload, alone = built.offload.stats(), None
    kv_bytes = built.offload.kv_bytes() or KVBytes()
    if built.latency is not None and offload is None:
        alone = predict_alone(LatencyModel(built.latency), config.scheduler, built.max_model_len)
    return Ready(
        max_model_len=built.max_model_len,
        model_max_len=built.model_max_len,
        vocab_size=built.vocab_size,
        eos_token_ids=built.eos_token_ids,
        block_size=config.scheduler.block_size,
        num_blocks=built.num_blocks,
        dtype=built.dtype,
        device=built.device,
        weights_bytes=built.weights_bytes,
        weights_bytes_by_format=dict(built.weights_bytes_by_format),
        kv_cache_bytes=built.kv_cache_bytes,
        threads=built.threads,
        offload=offload,
        step_s_by_threads=dict(built.step_s_by_threads),
        load_s=load_s,
        longest_step_s=longest_step_s,
        promise_margin=stats.promises.margin,
        kv_tiers=None if stats.tiers is None else kv_tier_stats(stats.tiers, kv_bytes),
        alone=alone,
    )


def _ignore_signals() -> None:
    """Only the parent ends this process: by `Stop`, by SIGKILL, or by its own end.

    Ctrl-C and service managers signal the whole group; the server then drains, for which it needs the engine.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
