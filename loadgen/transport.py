"""The way to the server, as the client needs it: one request out, its answer as it comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

CLIENT_LIMIT = "client_limit"
"""Code of a request that this machine could not send: the server has no part in it."""


class TransportError(Exception):
    """There is no whole answer. `code`: of what went wrong."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Receiver(Protocol):
    """Takes an answer, from within the event loop, at the moment it is there. What it raises ends the exchange."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Names are lower-case; of repeated ones the last counts."""

    def body(self, data: bytes) -> None:
        """The next bytes."""


class Transport(Protocol):
    """One server."""

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, receiver: Receiver) -> None:
        """Send a request once, and return when its answer is over. To cancel it is to leave.

        Raises:
            TransportError: the server is out of reach, or the answer broke off or is no HTTP.
            Exception: what the receiver raised.
        """
