"""Starts the engine process, watches it, and starts it again when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import zmq
import zmq.asyncio

from engine.client import DEFAULT_MAX_PENDING_TOKENS, AsyncEngine, EngineState
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.connection import EngineConnection
from engine.errors import EngineDied, EngineStartError
from engine.messages import Ready, StepOutputs, Stop
from engine.process_config import ProcessConfig, endpoints
from engine.process_exit import EXIT_FATAL
from engine.runner import Clock
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.backoff import Backoff
from server.engine_child import ENGINE_COMMAND, EngineChild
from server.ipc_directory import IpcDirectory, sweep_dead_directories

logger = logging.getLogger(__name__)

LAST_MESSAGES_S = 0.1
"""How long after the end of a process its last messages may still be on their way."""
FATAL_MESSAGE_S = 2.0
"""The same for the message of a process whose exit status says that it sent one."""
PREDICTION_FACTOR = 10.0
"""A step may take that many times its prediction before its silence is a stall."""
ESTIMATE_FACTOR = 2.0
"""The same for the estimate of the longest step, where there is no prediction of this one."""


class Supervisor:
    """Owns the engine process and the `AsyncEngine`, which stays the same object across restarts.

    Death is noticed through the wait for the process. A stall is silence while work is outstanding: past the first
    threshold the engine counts as stalled, past a second of the same length the process is killed and started again.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        scheduler_config: SchedulerConfig,
        classes: SLOClasses,
        *,
        offload_config: OffloadConfig | None = None,
        stall_timeout_s: float = 10.0,
        stop_timeout_s: float = 5.0,
        max_pending_tokens: int = DEFAULT_MAX_PENDING_TOKENS,
        log_level: str = "INFO",
        command: tuple[str, ...] = ENGINE_COMMAND,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine_config = engine_config
        self._scheduler_config = scheduler_config
        self._offload_config = offload_config or OffloadConfig()
        self._classes = classes
        self._stall_timeout_s = stall_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._log_level = log_level.upper()
        self._command = command
        self._backoff = backoff or Backoff()
        self._clock = clock or MonotonicClock()
        self.engine = AsyncEngine(self._clock, max_pending_tokens=max_pending_tokens)
        self._directory: IpcDirectory | None = None
        self._context: zmq.asyncio.Context | None = None
        self._task: asyncio.Task[None] | None = None
        self._child: EngineChild | None = None
        self._connection: EngineConnection | None = None
        self._ready_s: float | None = None
        """When the present process became ready."""
        self._is_decided = asyncio.Event()
        """The first process is ready, or has ended before."""
        self._start_error: EngineStartError | None = None
        self._stopping = asyncio.Event()

    @property
    def on_step(self) -> list[Callable[[StepOutputs], None]]:
        """Called with every step's message, in the event loop; append to it."""
        return self.engine.on_step

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None: there is none at the moment."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the engine and wait until it is ready.

        Raises:
            EngineStartError: the first process ended before it was ready; everything is cleaned up.
        """
        self.launch()
        try:
            await self.wait_ready()
        except BaseException:
            await self.stop()
            raise

    def launch(self) -> None:
        """Start the engine without waiting, so that HTTP can answer 503 with the progress meanwhile.

        Raises:
            EngineStartError: no place for the sockets.
        """
        sweep_dead_directories()
        self._directory = IpcDirectory()
        self._context = zmq.asyncio.Context()
        self._task = asyncio.create_task(self._supervise(self._context, self._directory))

    async def wait_ready(self) -> None:
        """Wait until the first process is ready.

        Raises:
            EngineStartError: it ended before; it is not started again.
        """
        await self._is_decided.wait()
        if self._start_error is not None:
            raise self._start_error
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """End the engine after its step in flight and remove the sockets; streams still open raise EngineDied."""
        self._stopping.set()
        if self._task is not None:
            self._ask_to_stop()
            done, _ = await asyncio.wait({self._task}, timeout=self._stop_timeout_s)
            if not done and self._child is not None:
                logger.warning("the engine did not stop within %g s, killing it", self._stop_timeout_s)
                self._child.kill()
            await self._task
            self._task = None
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def _ask_to_stop(self) -> None:
        """A process that is not ready, or stalled, does not read its inbox: it is killed."""
        if self.engine.state is EngineState.READY and self._connection is not None:
            self._connection.send(Stop())
        elif self._child is not None:
            self._child.kill()

    async def _supervise(self, context: zmq.asyncio.Context, directory: IpcDirectory) -> None:
        """One engine process after the other, until `stop` or a failure of the first one."""
        generation = 0
        try:
            while not self._stopping.is_set():
                self._ready_s = None
                reason = await self._run_process(context, self._process_config(directory, generation))
                directory.unlink_sockets(generation)
                if self._stopping.is_set():
                    break
                if not self._is_decided.is_set():
                    self._start_error = EngineStartError(reason)
                    break
                ran_s = 0.0 if self._ready_s is None else self._clock.now_s() - self._ready_s
                delay_s = self._backoff.next_s(ran_s)
                logger.error("%s; starting it again in %g s", reason, delay_s)
                await self._sleep_unless_stopping(delay_s)
                generation += 1
        finally:
            self._is_decided.set()

    def _process_config(self, directory: IpcDirectory, generation: int) -> ProcessConfig:
        inbox_endpoint, outbox_endpoint = endpoints(directory.path, generation)
        return ProcessConfig(
            engine=self._engine_config,
            scheduler=self._scheduler_config,
            inbox_endpoint=inbox_endpoint,
            outbox_endpoint=outbox_endpoint,
            parent_pid=os.getpid(),
            offload=self._offload_config,
            classes=tuple(self._classes),
            default_class=self._classes.default.name,
            log_level=self._log_level,
            is_restart=generation > 0,
        )

    async def _run_process(self, context: zmq.asyncio.Context, config: ProcessConfig) -> str:
        """From start to end of one engine process; why it ended."""
        reason = "the server is stopping"
        try:
            self._connection = EngineConnection(context, config.inbox_endpoint, config.outbox_endpoint)
            self.engine.connect(self._connection)
            self._child = await EngineChild.spawn(self._command, config)
            if self._stopping.is_set():
                self._child.kill()
            reason = await self._watch(self._child, self._connection)
        except (OSError, zmq.ZMQError) as error:
            reason = f"the engine process cannot be started: {error}"
        finally:
            self.engine.disconnect(EngineDied(reason))
            if self._child is not None:
                self._child.kill()
                self._child = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        return reason

    async def _watch(self, child: EngineChild, connection: EngineConnection) -> str:
        """Take the messages of a process until it ends; why it ended."""
        reader = asyncio.create_task(self._read(connection))
        stall_watch = asyncio.create_task(self._watch_for_stall(child))
        exit_wait = asyncio.create_task(child.wait())
        try:
            await asyncio.wait({exit_wait, reader}, return_when=asyncio.FIRST_COMPLETED)
            if self.engine.fatal is not None:
                await asyncio.wait({exit_wait}, timeout=self._stop_timeout_s)
            child.kill()
            status = await exit_wait
            await asyncio.wait({reader}, timeout=FATAL_MESSAGE_S if status == EXIT_FATAL else LAST_MESSAGES_S)
            await child.drain_output()
            return self._reason(child, status, reader, stall_watch)
        finally:
            for task in (reader, stall_watch, exit_wait):
                task.cancel()
            await asyncio.gather(reader, stall_watch, exit_wait, return_exceptions=True)

    async def _read(self, connection: EngineConnection) -> None:
        """Hand the messages to the engine until the last one, `Fatal`.

        Raises:
            msgspec.DecodeError: a message is none of ours.
        """
        while self.engine.fatal is None:
            message = await connection.receive()
            self.engine.dispatch(message)
            if isinstance(message, Ready):
                self._ready_s = self._clock.now_s()
                self._is_decided.set()
                _log_ready(message, self._scheduler_config.scheduler_policy)
            await asyncio.sleep(0)  # a burst of messages must not hold up the loop

    def _reason(
        self, child: EngineChild, status: int, reader: asyncio.Task[None], stall_watch: asyncio.Task[str]
    ) -> str:
        if self._stopping.is_set():
            return "the server is stopping"
        if stall_watch.done():
            return stall_watch.result()
        if self.engine.fatal is not None:
            return (
                self.engine.fatal.message if self._ready_s is None else f"the engine ended: {self.engine.fatal.message}"
            )
        if reader.done():
            error = reader.exception()
            logger.error("a message of the engine could not be handled", exc_info=error)
            return f"the engine process {child.pid} was killed: the server failed on a message of it: {error!r}"
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"the engine process {child.pid} ended {how}" + (f"\n{child.log_tail}" if self._ready_s is None else "")

    async def _watch_for_stall(self, child: EngineChild) -> str:
        """Mark the engine stalled, then kill its process; why."""
        while True:
            limit_s = self._silence_limit_s()
            silent_s = self.engine.silent_s
            if self._ready_s is not None and silent_s >= limit_s:
                self.engine.mark_stalled()
                logger.error("the engine is stalled: no message for %.1f s with work to do", silent_s)
                await asyncio.sleep(limit_s)
                if self.engine.is_stalled:
                    child.kill()
                    return (
                        f"the engine process {child.pid} was killed: no message for {silent_s + limit_s:.1f} s with "
                        f"work to do; the limit is twice {limit_s:g} s (--stall-timeout-s)"
                    )
                logger.info("the engine goes on")
            await asyncio.sleep(max(limit_s - silent_s, limit_s / 4.0) / 2.0)

    def _silence_limit_s(self) -> float:
        """How long silence may be a step at work."""
        stats, ready = self.engine.stats, self.engine.ready
        predicted_s = 0.0 if stats is None or stats.predicted_s is None else stats.predicted_s
        # The prediction is that of the step before: the one at work may be the longest there is.
        estimated_s = 0.0 if ready is None else ready.longest_step_s
        return max(self._stall_timeout_s, PREDICTION_FACTOR * predicted_s, ESTIMATE_FACTOR * estimated_s)

    async def _sleep_unless_stopping(self, delay_s: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        except TimeoutError:
            return


def _log_ready(ready: Ready, policy: str) -> None:
    logger.info(
        "engine ready after %.1f s: %s on %s, %d threads, %d KV blocks of %d tokens, requests of up to %d tokens, "
        "policy %s, admission %s",
        ready.load_s,
        ready.dtype,
        ready.device,
        ready.threads,
        ready.num_blocks,
        ready.block_size,
        ready.max_model_len,
        policy,
        ready.admission,
    )
