"""The engine's sockets: a wait for messages ends by a message, by the bell, or by its time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine.messages import Stop, encode
from engine.sockets import EngineSockets

LONG_S = 60.0
"""Far longer than any test may take: a wait that is not ended fails."""


class Rig:
    """The engine's sockets and the server's end of the inbox."""

    def __init__(self, directory: Path) -> None:
        self._context = zmq.Context()
        self._server = self._context.socket(zmq.PUSH)
        self._outbox = self._context.socket(zmq.PULL)
        inbox, outbox = f"ipc://{directory}/in", f"ipc://{directory}/out"
        self._server.bind(inbox)
        self._outbox.bind(outbox)
        self.sockets = EngineSockets(inbox, outbox)

    def send(self) -> None:
        self._server.send(encode(Stop()))

    def close(self) -> None:
        self.sockets.close(linger_s=0.0)
        self._context.destroy(linger=0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.mark.timeout(20)
def test_the_bell_ends_a_wait_from_another_thread(rig: Rig) -> None:
    thread = threading.Thread(target=rig.sockets.wake)
    thread.start()
    assert rig.sockets.receive(LONG_S) == []
    thread.join()


@pytest.mark.timeout(20)
def test_a_bell_that_rang_before_ends_the_next_wait_and_that_alone(rig: Rig) -> None:
    for _ in range(3):
        rig.sockets.wake()
    assert rig.sockets.receive(None) == []
    rig.send()
    assert rig.sockets.receive(None) == [Stop()], "rung three times, heard once"


@pytest.mark.timeout(20)
def test_a_bell_that_nobody_hears_never_blocks(rig: Rig) -> None:
    """More than a buffer of the system holds."""
    for _ in range(100_000):
        rig.sockets.wake()
    assert rig.sockets.receive(LONG_S) == []
    assert rig.sockets.receive(0.001) == []


@pytest.mark.timeout(20)
def test_a_bell_after_the_end_is_heard_by_nobody(rig: Rig) -> None:
    rig.sockets.close(linger_s=0.0)
    rig.sockets.wake()
