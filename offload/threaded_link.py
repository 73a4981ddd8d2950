"""What the links of a CPU and of an accelerator have in common: a thread, and what others see of it."""

from __future__ import annotations

import abc
import sys
import threading
import time
from collections.abc import Callable, Iterable

from offload.link import LinkError, LinkStatus, TransferHandle
from offload.link_book import LinkBook
from offload.link_config import LinkConfig
from offload.transfer import LinkTransfer

SWITCH_INTERVAL_S = 1e-4
"""While a link is open: at Python's default of 5 ms, a copier beside a busy thread reached 0.08 of 1 GB/s."""
ALIVE_S = 0.5
"""How often a waiting thread looks whether the copier still lives."""
COPY_ERRORS = (RuntimeError, ValueError, TypeError, OSError, MemoryError, BufferError, IndexError)
"""What a copy may raise: its transfer fails and the link lives on. Anything else ends the link."""


class ThreadedLink(abc.ABC):
    """A copier thread, `headrace-link`, that takes turns until the link is closed and nothing is under way.

    The lock guards the book; it is never held while bytes move. Deadlines are on `clock`, by default `time.monotonic`,
    the engine's. `on_done` of a transfer runs on the thread; one that raises ends the link, as any error of ours does:
    every transfer fails, and whoever submits, waits or drains hears of it.
    """

    def __init__(
        self, config: LinkConfig, clock: Callable[[], float], begin: Callable[[], None] = lambda: None
    ) -> None:
        """The switch interval of the interpreter is lowered until `close`; a subclass starts the thread last.

        `begin` is called on the thread, once, before its first turn.
        """
        self.now_s = clock
        self._begin = begin
        self._config = config
        self._book = LinkBook(config)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the copier: something to start, or the end
        self._idle = threading.Condition(self._lock)  # for drain: nothing is open, or the end
        self._is_closed = False
        self._death: BaseException | None = None
        self._old_switch_interval_s = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._run, name="headrace-link", daemon=True)

    def submit(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        self._check_transfer(transfer)
        handle = self._make_handle(transfer, on_done)
        with self._lock:
            self._notice_death()
            if self._is_closed:
                raise LinkError("the link is closed; open another one")
            self._enqueue(handle)
        if handle.is_done:
            handle.notify()
        return handle

    def snapshot(self) -> LinkStatus:
        with self._lock:
            return self._book.status(self.now_s())

    def forget_bandwidth(self) -> None:
        with self._lock:
            self._book.forget_bandwidth()

    def drain(self) -> None:
        with self._lock:
            while self._num_open():
                self._notice_death()
                self._idle.wait(ALIVE_S)
            self._notice_death()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ended = self._fail_queued(LinkError("the link was closed before the copy was made"))
            self._work.notify_all()
            self._idle.notify_all()
        self._notify(ended)
        self._thread.join()
        if sys.getswitchinterval() < self._old_switch_interval_s:
            sys.setswitchinterval(self._old_switch_interval_s)

    def check(self) -> None:
        with self._lock:
            self._book.check()
            self._check_flights()

    @abc.abstractmethod
    def _check_transfer(self, transfer: LinkTransfer) -> None:
        """Raises: ValueError: this link cannot carry it."""

    @abc.abstractmethod
    def _make_handle(
        self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None
    ) -> TransferHandle: ...

    @abc.abstractmethod
    def _enqueue(self, handle: TransferHandle) -> None:
        """Under the lock: put it where the copier finds it, and wake the copier if that sleeps."""

    @abc.abstractmethod
    def _turn(self) -> bool:
        """On the copier's thread: start what can start, wait for an arrival; False when the link is over."""

    @abc.abstractmethod
    def _check_flights(self) -> None:
        """Under the lock: assert that slices under way and book agree."""

    def _num_open(self) -> int:
        """Under the lock: transfers that have not ended."""
        return self._book.num_open

    def _fail_queued(self, error: BaseException) -> list[TransferHandle]:
        """Under the lock: end what has not started; the handles."""
        return self._book.fail_queued(error, self.now_s())

    def _fail_all(self, error: BaseException) -> list[TransferHandle]:
        """Under the lock: end everything at once; the handles."""
        return self._book.fail_all(error, self.now_s())

    def _start(self) -> None:
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._old_switch_interval_s))
        self._thread.start()

    def _notify(self, ended: Iterable[TransferHandle]) -> None:
        for handle in ended:
            handle.notify()

    def _notice_death(self) -> None:
        """Raises: LinkError: the thread has ended without being asked to (or is not in this process, after a fork)."""
        if self._death is not None or (not self._is_closed and not self._thread.is_alive()):
            raise LinkError(f"the copier of the link died: {self._death!r}; start the engine anew") from self._death

    def _await_done(self, handle: TransferHandle, timeout_s: float | None) -> None:
        """For handles: block until it is done, the link is dead or the time is over."""
        give_up_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not handle.wait_event(min(ALIVE_S, max(0.0, give_up_s - time.monotonic()))):
            with self._lock:
                if not handle.is_done:
                    self._notice_death()
            if time.monotonic() >= give_up_s and not handle.is_done:
                transfer = handle.transfer
                raise LinkError(
                    f"the {transfer.direction} copy of {transfer.num_bytes:,} bytes of {transfer.transfer_class} was "
                    f"not done within {timeout_s} s"
                )

    def _run(self) -> None:
        try:
            self._begin()
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 - the outermost of a thread: who waits must not wait for ever
            self._die(error)

    def _die(self, error: BaseException) -> None:
        with self._lock:
            self._death = error
            ended = self._fail_all(error)
            self._idle.notify_all()
        for handle in ended:
            handle.notify()
