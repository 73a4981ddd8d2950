"""Threads that read, write and sum up KV blocks, and what becomes of an operation whose disk does not answer."""

from __future__ import annotations

import functools
import heapq
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from offload.kv_request import MoveOutcome

TIMEOUT_S = 5.0
"""For one block: longer than a disk that is merely busy takes."""
CLOSE_S = 1.0
"""How long the disk is waited for at the end; a thread that hangs in the system ends with the process."""


class Lane(StrEnum):
    """One thread each."""

    READ = "headrace-kv-read"
    WRITE = "headrace-kv-write"
    SUM = "headrace-kv-sum"  # checksums of host slots: no disk, so that they go on when the disk hangs


DISK_LANES = (Lane.READ, Lane.WRITE)


class IoOperation:
    """A piece of work for a lane. It ends once: with what `run` returns, or FAILED when it took too long."""

    def __init__(
        self,
        run: Callable[[Callable[[], bool]], MoveOutcome],
        on_end: Callable[[MoveOutcome], None],
        urgency: tuple[float, ...] = (),
    ) -> None:
        """
        Args:
            run: on the lane's thread, raises nothing. It is given `claim`: called once, before it touches what belongs
                to others; False: it was given up, and they are told already. True: it will not be.
            on_end: from any thread.
            urgency: the least goes first; of equals the older.
        """
        self.run = run
        self.on_end = on_end
        self.urgency = urgency
        self.is_ended = False  # under the lock of the threads: who sets it tells the owner


class _LaneState:
    """Under the lock of the threads."""

    def __init__(self, lock: threading.Lock, timeout_s: float) -> None:
        self.queue: list[tuple[tuple[float, ...], int, IoOperation]] = []  # a heap
        self.work = threading.Condition(lock)
        self.timeout_s = timeout_s
        self.running: IoOperation | None = None
        self.give_up_s = float("inf")  # of the one that is running
        self.is_hung = False


class IoLanes(Protocol):
    """Who does operations."""

    def submit(self, lane: Lane, operation: IoOperation) -> None: ...
    def num_queued(self, lane: Lane) -> int: ...
    def close(self) -> None: ...
    def check(self) -> None: ...


class IoThreads:
    """Three lanes, and a thread that gives up what takes longer than `timeout_s` on the disk.

    What was given up is reported FAILED although the thread is still in it; so is all that waits for the disk then, and
    all that comes before the thread has returned. Its late end changes nothing: it works on buffers of its own and asks
    before it touches others'.
    """

    def __init__(
        self, timeout_s: float = TIMEOUT_S, close_s: float = CLOSE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start them."""
        self._clock = clock
        self._close_s = close_s
        self._lock = threading.Lock()
        self._lanes = {lane: _LaneState(self._lock, timeout_s if lane in DISK_LANES else float("inf")) for lane in Lane}
        self._watched = threading.Condition(self._lock)
        self._is_watching = False  # the watch will wake by itself
        self._is_closed = False
        self._death: BaseException | None = None
        self._num_submitted = 0
        self._threads = [
            threading.Thread(target=self._run, args=(state,), name=lane.value, daemon=True)
            for lane, state in self._lanes.items()
        ]
        self._threads.append(threading.Thread(target=self._watch, name="headrace-kv-watch", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(self, lane: Lane, operation: IoOperation) -> None:
        """Queue it; one for a lane that hangs, or after the end, has failed when this returns."""
        state = self._lanes[lane]
        with self._lock:
            is_refused = self._is_closed or state.is_hung or (lane in DISK_LANES and self._is_disk_hung())
            if is_refused:
                operation.is_ended = True
            else:
                heapq.heappush(state.queue, (operation.urgency, self._num_submitted, operation))
                self._num_submitted += 1
                state.work.notify()
        if is_refused:
            operation.on_end(MoveOutcome.FAILED)

    def num_queued(self, lane: Lane) -> int:
        """Not begun."""
        with self._lock:
            return len(self._lanes[lane].queue)

    @property
    def is_disk_hung(self) -> bool:
        """Whether a thread has not returned from an operation that was given up."""
        with self._lock:
            return self._is_disk_hung()

    def close(self) -> None:
        """End the threads; idempotent. What waits fails; what the disk does not end within `close_s` is given up."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            given_up = [operation for state in self._lanes.values() for operation in _take_queue(state)]
            for state in self._lanes.values():
                state.work.notify_all()
            self._watched.notify_all()
        _fail(given_up)
        end_s = time.monotonic() + self._close_s
        for thread in self._threads:
            is_disk = thread.name in DISK_LANES
            thread.join(max(0.0, end_s - time.monotonic()) if is_disk else None)
        with self._lock:
            given_up = [operation for state in self._lanes.values() for operation in _give_up(state)]
        _fail(given_up)

    def check(self) -> None:
        """Assert that no thread has ended by an error of ours, and nothing waits for a lane that does nothing."""
        with self._lock:
            assert self._death is None, self._death
            for state in self._lanes.values():
                assert not (state.is_hung and state.queue), "what waits behind a hung operation has failed"
                assert not any(operation.is_ended for _, _, operation in state.queue)

    def _run(self, state: _LaneState) -> None:
        try:
            while (operation := self._next(state)) is not None:
                outcome = operation.run(functools.partial(self._claim, operation))
                if self._finish(state, operation):
                    operation.on_end(outcome)
        except BaseException as error:  # noqa: BLE001 - the outermost of a thread: who waits must not wait for ever
            with self._lock:
                self._death = error
                given_up = [*filter(None, [state.running]), *_take_queue(state)]
                state.running = None
                state.give_up_s = float("inf")
                state.is_hung = True
            _fail(given_up)

    def _finish(self, state: _LaneState, operation: IoOperation) -> bool:
        """Whether its end is news: it was not given up."""
        with self._lock:
            is_news = state.running is operation
            state.running = None
            state.give_up_s = float("inf")
            state.is_hung = False
            operation.is_ended = True
            return is_news

    def _next(self, state: _LaneState) -> IoOperation | None:
        with self._lock:
            while not state.queue:
                if self._is_closed:
                    return None
                state.work.wait()
            _, _, operation = heapq.heappop(state.queue)
            state.running = operation
            state.give_up_s = self._clock() + state.timeout_s
            if state.timeout_s < float("inf") and not self._is_watching:
                self._watched.notify()
            return operation

    def _is_disk_hung(self) -> bool:
        return any(self._lanes[lane].is_hung for lane in DISK_LANES)

    def _claim(self, operation: IoOperation) -> bool:
        with self._lock:
            if operation.is_ended:
                return False
            operation.is_ended = True
            return True

    def _watch(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                now_s = self._clock()
                hung = [state for state in self._lanes.values() if state.give_up_s <= now_s]
                given_up = [operation for state in hung for operation in _give_up(state)]
                if given_up:
                    given_up += [operation for lane in DISK_LANES for operation in _take_queue(self._lanes[lane])]
                else:
                    next_s = min(state.give_up_s for state in self._lanes.values())
                    self._is_watching = next_s < float("inf")
                    self._watched.wait(next_s - now_s if self._is_watching else None)
                    self._is_watching = False
            _fail(given_up)


def _take_queue(state: _LaneState) -> list[IoOperation]:
    waiting = [operation for _, _, operation in sorted(state.queue, key=lambda entry: entry[:2])]
    state.queue.clear()
    for operation in waiting:
        operation.is_ended = True
    return waiting


def _give_up(state: _LaneState) -> list[IoOperation]:
    """Under the lock: the one that is running, unless it is about to end, and those behind it."""
    operation = state.running
    state.give_up_s = float("inf")
    if operation is None or operation.is_ended:
        return []
    operation.is_ended = True
    state.running = None
    state.is_hung = True
    return [operation, *_take_queue(state)]


def _fail(operations: list[IoOperation]) -> None:
    for operation in operations:
        operation.on_end(MoveOutcome.FAILED)
