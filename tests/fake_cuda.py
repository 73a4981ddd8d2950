"""The part of `torch.cuda` that a link uses, on a CPU: streams that do their work when they are let."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


class FakeStream:
    """Work in order. Nothing is done until the device runs it: `copy` is as asynchronous as can be."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.work: deque[Callable[[], None]] = deque()
        self.waited_for: list[FakeEvent] = []
        self.error: BaseException | None = None

    def wait_event(self, event: FakeEvent) -> None:
        self.waited_for.append(event)


class FakeEvent:
    """Done once its stream has come to it, or at once if it was never recorded, as a CUDA event."""

    def __init__(self, cuda: FakeCuda, enable_timing: bool, blocking: bool) -> None:
        assert blocking, "the copier would spin, and take a core from whoever computes"
        self._cuda = cuda
        self.enable_timing = enable_timing
        self.done_s: float | None = None
        self.error: BaseException | None = None
        self.is_recorded = False

    def record(self, stream: FakeStream) -> None:
        self.is_recorded = True
        with self._cuda.changed:
            stream.work.append(lambda: self._finish(stream))
            self._cuda.changed.notify_all()

    def query(self) -> bool:
        if self.done_s is not None and self.error is not None:
            raise self.error
        return not self.is_recorded or self.done_s is not None

    def synchronize(self) -> None:
        """On a device that runs by itself, its work is done meanwhile; else a test lets it."""
        assert self.is_recorded
        with self._cuda.changed:
            while self.done_s is None:
                if not self._cuda.is_held:
                    self._cuda.run_all()
                else:
                    self._cuda.changed.wait(0.1)
        if self.error is not None:
            raise self.error

    def wait(self, stream: Any = None) -> None:
        stream.wait_event(self)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.enable_timing and end.enable_timing and self.done_s is not None and end.done_s is not None
        return (end.done_s - self.done_s) * 1e3

    def _finish(self, stream: FakeStream) -> None:
        self.error, stream.error = stream.error, None
        self.done_s = self._cuda.device_s


class FakeCuda:
    """A device of `bytes_per_s` with a clock of its own, and the module through which a link speaks to it.

    While `is_held`, streams do nothing until `let_run`; otherwise whoever waits for an event lets them. `next_error` is
    met by the next copy, and raised by whoever looks at the event behind it.
    """

    def __init__(self, bytes_per_s: float = 1e9) -> None:
        self.bytes_per_s = bytes_per_s
        self.changed = threading.Condition(threading.RLock())
        self.is_held = False
        self.device_s = 0.0
        self.next_error: BaseException | None = None
        self.streams: list[FakeStream] = []
        self.devices_set: list[Any] = []
        self._current = threading.local()

    def Stream(self, device: Any) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    def Event(self, enable_timing: bool = False, blocking: bool = False) -> FakeEvent:
        return FakeEvent(self, enable_timing, blocking)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self._current.stream = stream
        yield
        self._current.stream = None

    def set_device(self, device: Any) -> None:
        self.devices_set.append((threading.current_thread().name, device))

    def copy(self, target: Tensor, source: Tensor) -> None:
        """What `copy_` without waiting does: the bytes are read and written when the stream comes to it."""

        stream = self._current.stream

        def work() -> None:
            self.device_s += source.numel() / self.bytes_per_s
            stream.error, self.next_error = self.next_error, None
            if stream.error is None:
                target.copy_(source)

        with self.changed:
            stream.work.append(work)
            self.changed.notify_all()

    def run_all(self) -> None:
        """Let the device do all that it was given, the streams taking turns."""
        with self.changed:
            while any(stream.work for stream in self.streams):
                for stream in self.streams:
                    if stream.work:
                        stream.work.popleft()()
            self.changed.notify_all()

    def let_run(self) -> None:
        """End a hold."""
        with self.changed:
            self.is_held = False
            self.run_all()
