"""The engine's two sockets: messages in, messages out."""

from __future__ import annotations

import math

import zmq

from engine.messages import ToEngine, ToServer, decode_to_engine, encode


class EngineSockets:
    """Connected to what the supervisor has bound. Sending never blocks: the engine does not wait for the server."""

    def __init__(self, inbox_endpoint: str, outbox_endpoint: str) -> None:
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        # No high-water mark: at most what the live requests may still generate piles up while the server is busy.
        for socket in (self._inbox, self._outbox):
            socket.set_hwm(0)
        self._inbox.connect(inbox_endpoint)
        self._outbox.connect(outbox_endpoint)

    def send(self, message: ToServer) -> None:
        self._outbox.send(encode(message), zmq.NOBLOCK)

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Every message that has come; waits up to `timeout_s` (None: for ever) for the first one.

        Raises:
            msgspec.DecodeError: a message is none of ours.
        """
        timeout_ms = None if timeout_s is None else math.ceil(timeout_s * 1000.0)
        if timeout_ms != 0 and not self._inbox.poll(timeout_ms):
            return []
        messages: list[ToEngine] = []
        while True:
            try:
                data = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append(decode_to_engine(data))

    def close(self, linger_s: float = 2.0) -> None:
        """Send what is queued, for at most `linger_s`, and close."""
        self._inbox.close(linger=0)
        self._outbox.close(linger=int(linger_s * 1000.0))
        self._context.term()
