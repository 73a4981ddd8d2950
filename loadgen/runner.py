"""Sends a workload on schedule, or as fast as answers come, and gathers the traces."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from typing import Protocol

from loadgen.config import BenchConfig
from loadgen.trace import RequestTrace
from loadgen.workload import PlannedRequest

_LEAD_S = 0.05
"""Between the start of the loop and the time 0 of the schedule, so that the first request is not late."""


class Sender(Protocol):
    """Sends one request and returns its finished trace; cancelling it finishes the trace, not the call."""

    async def send(self, planned: PlannedRequest, intended_s: float) -> RequestTrace: ...


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """The traces of a run, in the order of the workload."""

    traces: tuple[RequestTrace, ...]
    started_s: float
    """Time 0 of the schedule, on the clock of the traces."""
    ended_s: float
    arrival_window_s: float | None
    """From time 0 until the last request was due; None: nothing was sent."""
    interrupted: bool


class Runner:
    """One run. `interrupt` ends it early from the same event loop: nothing more is sent, what is open is cut off."""

    def __init__(self, config: BenchConfig, sender: Sender, on_finish: Callable[[], None]) -> None:
        self._config = config
        self._sender = sender
        self._on_finish = on_finish
        self._traces: list[RequestTrace] = []
        self._open: set[asyncio.Task[None]] = set()
        self._feeder: asyncio.Task[None] | None = None
        self._bug: BaseException | None = None
        self._interrupted = False

    async def run(self, requests: Iterator[PlannedRequest]) -> RunResult:
        """Send all requests and wait for their ends."""
        loop = asyncio.get_running_loop()
        started_s = loop.time() + _LEAD_S
        feed = self._feed_open_loop if self._config.is_open_loop else self._feed_closed_loop
        self._feeder = asyncio.create_task(feed(requests, started_s))
        self._feeder.add_done_callback(self._note_end)
        await asyncio.wait({self._feeder})
        while self._open:
            await asyncio.wait(self._open)
        if self._bug is not None:
            raise self._bug
        return RunResult(
            tuple(sorted(self._traces, key=lambda trace: trace.planned.index)),
            started_s,
            loop.time(),
            self._arrival_window_s(started_s, loop.time()),
            self._interrupted,
        )

    def interrupt(self) -> None:
        """End the run now."""
        self._interrupted = True
        if self._feeder is not None:
            self._feeder.cancel()
        for task in self._open:
            task.cancel()

    async def _feed_open_loop(self, requests: Iterator[PlannedRequest], started_s: float) -> None:
        loop = asyncio.get_running_loop()
        for planned in requests:
            assert planned.offset_s is not None, "an open loop needs a schedule"
            intended_s = started_s + planned.offset_s
            await asyncio.sleep(max(intended_s - loop.time(), 0.0))
            self._start(self._send_one(planned, intended_s))

    async def _feed_closed_loop(self, requests: Iterator[PlannedRequest], started_s: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(started_s - loop.time(), 0.0))
        duration_s = self._config.duration_s
        end_s = None if duration_s is None else started_s + duration_s

        async def work_off() -> None:
            while not self._interrupted:
                intended_s = loop.time()
                planned = None if end_s is not None and intended_s >= end_s else next(requests, None)
                if planned is None:
                    return
                await self._send_one(planned, intended_s)

        for _ in range(self._config.concurrency or 1):
            self._start(work_off())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """What a sender raises is a bug of ours: a request that fails is a trace. It ends the run."""
        if not task.cancelled() and task.exception() is not None and self._bug is None:
            self._bug = task.exception()
            self.interrupt()

    async def _send_one(self, planned: PlannedRequest, intended_s: float) -> None:
        trace = await self._sender.send(planned, intended_s)
        self._traces.append(trace)
        self._on_finish()

    def _arrival_window_s(self, started_s: float, now_s: float) -> float | None:
        if not self._traces:
            return None
        if self._config.duration_s is not None and not self._interrupted:
            return self._config.duration_s
        if not self._config.is_open_loop:
            return now_s - started_s
        return max(trace.intended_s for trace in self._traces) - started_s
