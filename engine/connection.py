"""The server's end of one engine process's two sockets."""

from __future__ import annotations

import zmq
import zmq.asyncio

from engine.messages import ToEngine, ToServer, decode_to_server, encode


class EngineConnection:
    """Bound before the engine process starts, closed after its end; a later process gets a new one."""

    def __init__(self, context: zmq.asyncio.Context, inbox_endpoint: str, outbox_endpoint: str) -> None:
        """Raises zmq.ZMQError: an endpoint cannot be bound."""
        # A plain socket: sending never waits, so that a request can be aborted where nothing may be awaited.
        self._inbox: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
        self._outbox = context.socket(zmq.PULL)
        # No high-water mark: the server's own cap of concurrent requests bounds what waits for a busy engine.
        for socket in (self._inbox, self._outbox):
            socket.set_hwm(0)
        try:
            self._inbox.bind(inbox_endpoint)
            self._outbox.bind(outbox_endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, message: ToEngine) -> bool:
        """Queue a message; False: no engine is connected."""
        try:
            self._inbox.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    async def receive(self) -> ToServer:
        """The next message.

        Raises:
            msgspec.DecodeError: it is none of ours: the engine is of another version.
        """
        data = await self._outbox.recv()
        return decode_to_server(data)

    def close(self) -> None:
        """Drop what is queued."""
        self._inbox.close(linger=0)
        self._outbox.close(linger=0)
