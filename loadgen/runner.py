"""Sends a workload on schedule, or as fast as answers come, and gathers the traces."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
from collections.abc import Coroutine, Iterator
from typing import Protocol

from loadgen.config import BenchConfig
from loadgen.conversation import Conversation, conversations, due_s, goes_on, with_history
from loadgen.trace import RequestTrace
from loadgen.workload import PlannedRequest

_LEAD_S = 0.05
"""Between the start of the loop and the time 0 of the schedule, so that the first request is not late."""
_YOUNG_ONLY = (2_000, 5, 1_000_000)
"""The collector's thresholds: the oldest generation, which holds the traces, is not walked."""


class Sender(Protocol):
    """Sends one request and returns its finished trace; cancelling it finishes the trace, not the call."""

    async def send(self, planned: PlannedRequest, intended_s: float) -> RequestTrace: ...


class RunObserver(Protocol):
    """Is told of a run as it goes. Whatever it does delays what is due meanwhile."""

    def started(self, started_s: float) -> None:
        """The time 0 of the schedule, on the clock of the traces."""

    def sent(self, planned: PlannedRequest, lag_s: float) -> None:
        """A request leaves now, `lag_s` after it should have."""

    def finished(self, trace: RequestTrace) -> None:
        """A request is over."""


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
    num_unsent_turns: int = 0
    """Turns whose conversation broke off before them: the answer they wait for was refused, failed or timed out."""
    num_turns_after_end: int = 0
    """Turns that were due after the run's duration: with long conversations fewer are sent than the rate asks for."""


class Runner:
    """One run. `interrupt` ends it early from the same event loop: nothing more is sent, what is open is cut off."""

    def __init__(self, config: BenchConfig, sender: Sender, observer: RunObserver) -> None:
        self._config = config
        self._sender = sender
        self._observer = observer
        self._traces: list[RequestTrace] = []
        self._open: set[asyncio.Task[None]] = set()
        self._feeder: asyncio.Task[None] | None = None
        self._bug: BaseException | None = None
        self._interrupted = False
        self._started_s = 0.0
        self._num_unsent_turns = 0
        self._num_turns_after_end = 0

    async def run(self, requests: Iterator[PlannedRequest]) -> RunResult:
        """Send all requests and wait for their ends."""
        loop = asyncio.get_running_loop()
        feed = self._feed_open_loop if self._config.is_open_loop else self._feed_closed_loop
        with _young_garbage_only():
            started_s = self._started_s = loop.time() + _LEAD_S
            self._observer.started(started_s)
            self._feeder = asyncio.create_task(feed(conversations(requests)))
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
            self._arrival_window_s(loop.time()),
            self._interrupted,
            self._num_unsent_turns,
            self._num_turns_after_end,
        )

    def interrupt(self) -> None:
        """End the run now."""
        self._interrupted = True
        if self._feeder is not None:
            self._feeder.cancel()
        for task in self._open:
            task.cancel()

    async def _feed_open_loop(self, load: Iterator[Conversation]) -> None:
        for conversation in load:
            offset_s = conversation.first.offset_s
            assert offset_s is not None, "an open loop needs a schedule"
            intended_s = self._started_s + offset_s
            await self._sleep_until(intended_s)
            self._start(self._converse(conversation, conversation.first, intended_s))
            await asyncio.sleep(0)  # it leaves before the next one is made up

    async def _feed_closed_loop(self, load: Iterator[Conversation]) -> None:
        await self._sleep_until(self._started_s)

        async def work_off() -> None:
            while not self._interrupted:
                intended_s = asyncio.get_running_loop().time()
                conversation = next(load, None) if self._is_in_time(intended_s) else None
                if conversation is None:
                    return
                await self._work_through(conversation, conversation.first, intended_s)

        for _ in range(self._config.concurrency or 1):
            self._start(work_off())

    async def _converse(self, conversation: Conversation, planned: PlannedRequest, intended_s: float) -> None:
        """Send a request; each turn that waits for its answer then runs by itself."""
        trace = await self._send_one(planned, intended_s)
        for turn in self._turns_after(conversation, trace):
            self._start(self._converse_later(conversation, turn, due_s(turn, _end_s(trace), self._started_s)))
        _forget_text(trace)

    async def _converse_later(self, conversation: Conversation, planned: PlannedRequest, intended_s: float) -> None:
        if self._is_in_time(intended_s):
            await self._sleep_until(intended_s)
            await self._converse(conversation, planned, intended_s)
        else:
            self._num_turns_after_end += 1 + conversation.num_after(planned)

    async def _work_through(self, conversation: Conversation, planned: PlannedRequest, intended_s: float) -> None:
        """Send a request, and then, one by one, the turns that wait for its answer: a client has one open."""
        waiting = [(planned, intended_s)]
        while waiting:  # depth first, without recursion: a recorded conversation may have thousands of turns
            turn, at_least_s = waiting.pop()
            turn_due_s = max(at_least_s, asyncio.get_running_loop().time()) if turn is not planned else intended_s
            if not self._is_in_time(turn_due_s):
                self._num_turns_after_end += (turn is not planned) + conversation.num_after(turn)
                continue
            await self._sleep_until(turn_due_s)
            trace = await self._send_one(turn, turn_due_s)
            later = self._turns_after(conversation, trace)
            waiting += [(each, due_s(each, _end_s(trace), self._started_s)) for each in reversed(later)]
            _forget_text(trace)

    def _turns_after(self, conversation: Conversation, trace: RequestTrace) -> tuple[PlannedRequest, ...]:
        turns = conversation.after(trace.planned)
        if not turns or self._interrupted:
            return ()
        if not goes_on(trace):
            self._num_unsent_turns += conversation.num_after(trace.planned)
            return ()
        return tuple(with_history(turn, trace) for turn in turns)

    def _is_in_time(self, intended_s: float) -> bool:
        """Whether a request that is due then belongs to the run."""
        duration_s = self._config.duration_s
        return duration_s is None or intended_s < self._started_s + duration_s

    async def _sleep_until(self, time_s: float) -> None:
        await asyncio.sleep(max(time_s - asyncio.get_running_loop().time(), 0.0))

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

    async def _send_one(self, planned: PlannedRequest, intended_s: float) -> RequestTrace:
        self._observer.sent(planned, max(asyncio.get_running_loop().time() - intended_s, 0.0))
        trace = await self._sender.send(planned, intended_s)
        self._traces.append(trace)
        self._observer.finished(trace)
        return trace

    def _arrival_window_s(self, now_s: float) -> float | None:
        if not self._traces:
            return None
        if self._config.duration_s is not None and not self._interrupted:
            return self._config.duration_s
        if not self._config.is_open_loop:
            return now_s - self._started_s
        return max(trace.intended_s for trace in self._traces) - self._started_s


def _end_s(trace: RequestTrace) -> float:
    assert trace.finished_s is not None, f"request {trace.planned.index} is not over"
    return trace.finished_s


def _forget_text(trace: RequestTrace) -> None:
    """A long run's prompts would fill the memory."""
    trace.planned = dataclasses.replace(trace.planned, prompt="", history=())
    trace.answer = ""


@contextlib.contextmanager
def _young_garbage_only() -> Iterator[None]:
    """Collect only what was made lately: a walk over all timestamps so far would hold up what is due, ever longer."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*_YOUNG_ONLY)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
