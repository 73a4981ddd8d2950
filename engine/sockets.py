"""The engine's two sockets: messages in, messages out. And the bell that ends a wait for messages."""

from __future__ import annotations

import contextlib
import math
import socket

import zmq

from engine.messages import ToEngine, ToServer, decode_to_engine, encode


class EngineSockets:
    """Connected to what the supervisor has bound. Sending never blocks: the engine does not wait for the server."""

    def __init__(self, inbox_endpoint: str, outbox_endpoint: str) -> None:
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        # No high-water mark: at most what the live requests may still generate piles up while the server is busy.
        for each in (self._inbox, self._outbox):
            each.set_hwm(0)
        self._inbox.connect(inbox_endpoint)
        self._outbox.connect(outbox_endpoint)
        self._bell, self._ring = socket.socketpair()
        for end in (self._bell, self._ring):
            end.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._bell.fileno(), zmq.POLLIN)

    def send(self, message: ToServer) -> None:
        self._outbox.send(encode(message), zmq.NOBLOCK)

    def wake(self) -> None:
        """End the wait of `receive`, the present one or the next. From any thread, at any time; never blocks."""
        with contextlib.suppress(OSError):  # it rings already, or the sockets are closed
            self._ring.send(b"!")

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Every message that has come; waits up to `timeout_s` (None: for ever) for the first one, or for `wake`.

        Raises:
            msgspec.DecodeError: a message is none of ours.
        """
        timeout_ms = None if timeout_s is None else math.ceil(timeout_s * 1000.0)
        if timeout_ms != 0:
            self._wait(timeout_ms)
        messages: list[ToEngine] = []
        while True:
            try:
                data = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append(decode_to_engine(data))

    def _wait(self, timeout_ms: int | None) -> None:
        if self._bell.fileno() in dict(self._poller.poll(timeout_ms)):
            with contextlib.suppress(BlockingIOError):
                while self._bell.recv(4096):
                    pass

    def close(self, linger_s: float = 2.0) -> None:
        """Send what is queued, for at most `linger_s`, and close."""
        self._bell.close()
        self._ring.close()
        self._inbox.close(linger=0)
        self._outbox.close(linger=int(linger_s * 1000.0))
        self._context.term()
