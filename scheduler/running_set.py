"""The requests that hold blocks, the most senior first."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from scheduler.request import OrderKey, Request


class RunningSet:
    """Sorted by `Request.seniority`: classes by rank, in a class the oldest first. The end yields first."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Over what runs now, also while requests leave."""
        return iter(tuple(self._requests))

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_seniority)

    def remove(self, request: Request) -> None:
        index = bisect.bisect_left(self._requests, request.seniority, key=_seniority)
        assert self._requests[index] is request, f"{request.request_id} does not run"
        del self._requests[index]

    def juniors(self, request: Request) -> Iterator[Request]:
        """Those that yield to a running request, the first to yield first. None of them outranks it."""
        first = bisect.bisect_right(self._requests, request.seniority, key=_seniority)
        return (self._requests[i] for i in range(len(self._requests) - 1, first - 1, -1))

    def below(self, rank: int) -> Iterator[Request]:
        """Those of strictly lower classes, the first to yield first."""
        for request in reversed(self._requests):
            if request.rank <= rank:
                return
            yield request

    def check(self, running: Iterable[Request]) -> None:
        """Assert that exactly `running` are here, in order."""
        assert self._requests == sorted(running, key=_seniority), "running requests are lost or out of order"


def _seniority(request: Request) -> OrderKey:
    return request.seniority
