"""A response that is the whole exchange: it reads, waits, streams and ends in one piece, never left half done."""

from __future__ import annotations

from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.endpoint import Endpoint
from server.exchange import Exchange
from server.protocol.common import SamplingOptions
from server.service import Service

Body = TypeVar("Body", bound=SamplingOptions)


class GenerationResponse(Response):
    """Returned by a route at once; everything happens when it is sent."""

    def __init__(self, service: Service, endpoint: Endpoint[Body]) -> None:
        super().__init__()
        self._service = service
        self._endpoint: Endpoint[Any] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Exchange(self._service, self._endpoint, scope, receive, send).run()
