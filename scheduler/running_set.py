"""The requests that hold blocks, the most senior first."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from scheduler.request import OrderKey, Request

Promise = tuple[str, float | None]
"""The class that a request is served in, and its own target of the time per output token, if it has one."""


class RunningSet:
    """Sorted by `Request.seniority`: classes by rank, in a class the oldest first. The end yields first."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._promises: Counter[Promise] = Counter()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Over what runs now, also while requests leave."""
        return iter(tuple(self._requests))

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_seniority)
        self._promises[_promise(request)] += 1

    def remove(self, request: Request) -> None:
        index = bisect.bisect_left(self._requests, request.seniority, key=_seniority)
        assert self._requests[index] is request, f"{request.request_id} does not run"
        del self._requests[index]
        self._promises[_promise(request)] -= 1
        if not self._promises[_promise(request)]:
            del self._promises[_promise(request)]

    @property
    def promises(self) -> Collection[Promise]:
        """What those that run were promised, each once."""
        return self._promises.keys()

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
        assert self._promises == Counter(map(_promise, self._requests)), "promises of others than those that run"


def _seniority(request: Request) -> OrderKey:
    return request.seniority


def _promise(request: Request) -> Promise:
    slo = request.spec.slo
    return slo.granted, slo.tpot_s
