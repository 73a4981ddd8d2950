"""API keys: `authorization: Bearer KEY`, and no other header.

Everything is guarded but an exact list of paths, so a path that merely looks different (`//v1/models`, `/v1/../x`) is
guarded too. Keys are compared by their hashes, all of them, in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from server.asgi import send_error
from server.errors import unauthorized

ALWAYS_OPEN = frozenset({"/health", "/livez", "/readyz"})
TENANT_KEY = "headrace.tenant"
"""In the scope: a short name of the key that was used; it tells nothing of the key."""


class ApiKeys:
    """The accepted keys, as SHA-256 digests."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant_of(self, authorization: list[bytes]) -> str | None:
        """Who the header belongs to; None: absent, repeated, not Bearer, or no key of ours."""
        if len(authorization) != 1:
            return None
        scheme, _, token = authorization[0].partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            return None
        digest = _digest(token.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # no early exit
        return digest.hex()[:12] if any(matches) else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Auth:
    """ASGI middleware: 401 for everything but `open_paths` unless a key is given."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: frozenset[str] = ALWAYS_OPEN) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._keys:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["path"] not in self._open_paths:
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            tenant = self._keys.tenant_of(given)
            if tenant is None:
                await send_error(unauthorized(_message(given)), send)
                return
            scope[TENANT_KEY] = tenant
        await self._app(scope, receive, send)


def _message(given: list[bytes]) -> str:
    if not given:
        return "You didn't provide an API key: send it as `authorization: Bearer KEY`"
    return "Incorrect API key provided: send exactly one `authorization: Bearer KEY` with a key of this server"
