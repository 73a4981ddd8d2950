"""The requests that hold no blocks, in the order in which they will be served."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

from scheduler.request import OrderKey, Request, RequestSpec


def num_queued_tokens(spec: RequestSpec) -> int:
    """What a request counts against its class's cap: the prompt, once for all its choices; at least one token each.

    Not the output: nobody knows its length, and `max_tokens` is a whole context where a client leaves it open.
    """
    return spec.num_prompt_tokens if spec.leader_id is None else 1


class WaitingQueue:
    """Sorted by `Request.order`. A choice whose leader computes their prompt is parked: it waits out of the order.

    A sorted list: finding a place is O(log n), and moving the rest is one memmove (8 bytes a request).
    """

    def __init__(self, num_blocks_for: Callable[[int], int], class_names: Iterable[str]) -> None:
        self._num_blocks_for = num_blocks_for
        self._ready: list[tuple[OrderKey, Request]] = []
        self._parked: dict[str, list[Request]] = {}
        self.num_requests = 0
        self.num_blocks = 0
        """Blocks that all of them need to start, prefix hits not counted."""
        self.num_requests_by_class = dict.fromkeys(class_names, 0)
        self.num_tokens_by_class = dict.fromkeys(self.num_requests_by_class, 0)

    def push(self, request: Request) -> None:
        """Let it wait for its turn."""
        bisect.insort(self._ready, (request.order, request))
        self._account(request, 1)

    def park(self, request: Request) -> None:
        """Let it wait for its leader's prompt."""
        assert request.spec.leader_id is not None
        self._parked.setdefault(request.spec.leader_id, []).append(request)
        self._account(request, 1)

    def unpark(self, leader_id: str) -> None:
        """The leader's prompt is computed, or it left: its choices take their turn."""
        for request in self._parked.pop(leader_id, ()):
            bisect.insort(self._ready, (request.order, request))

    def parked(self) -> list[Request]:
        """Those that wait for their leader's prompt."""
        return [request for siblings in self._parked.values() for request in siblings]

    def head(self) -> Request | None:
        """The first whose turn it is; parked ones have none."""
        return self._ready[0][1] if self._ready else None

    def remove(self, request: Request) -> None:
        """Raises KeyError: it does not wait here."""
        index = bisect.bisect_left(self._ready, request.order, key=_order)
        if index < len(self._ready) and self._ready[index][1] is request:
            del self._ready[index]
        else:
            self._remove_parked(request)
        self._account(request, -1)

    def _remove_parked(self, request: Request) -> None:
        leader_id = request.spec.leader_id
        siblings = self._parked.get(leader_id, []) if leader_id is not None else []
        if leader_id is None or request not in siblings:
            raise KeyError(request.request_id)
        siblings.remove(request)
        if not siblings:
            del self._parked[leader_id]

    def _account(self, request: Request, sign: int) -> None:
        spec = request.spec
        self.num_requests += sign
        self.num_blocks += sign * self.num_blocks_to_start(request)
        self.num_requests_by_class[spec.slo.granted] += sign
        self.num_tokens_by_class[spec.slo.granted] += sign * num_queued_tokens(spec)

    def num_blocks_to_start(self, request: Request) -> int:
        """A choice with a leader takes over the prompt, all but one block."""
        if request.spec.leader_id is not None and request.num_preemptions == 0:
            return 1
        return self._num_blocks_for(request.num_tokens)

    def num_blocks_of_first(self, num_requests: int) -> int:
        """Blocks that the first of them need to start; parked ones come last and need one each."""
        ready = self._ready[:num_requests]
        num_parked = min(max(num_requests - len(ready), 0), self.num_requests - len(self._ready))
        return sum(self.num_blocks_to_start(request) for _, request in ready) + num_parked

    def check(self, waiting: Iterable[Request]) -> None:
        """Assert that exactly `waiting` are here, in order, and that the sums are theirs."""
        here = [r for _, r in self._ready] + self.parked()
        assert all(self._parked.values()), "a leader without parked choices is kept"
        expected = list(waiting)
        assert len(here) == len(expected) == self.num_requests and set(here) == set(expected)
        assert all(a[0] < b[0] for a, b in zip(self._ready, self._ready[1:], strict=False)), "out of order"
        assert self.num_blocks == sum(map(self.num_blocks_to_start, here))
        for name in self.num_requests_by_class:
            members = [r.spec for r in here if r.spec.slo.granted == name]
            assert self.num_requests_by_class[name] == len(members)
            assert self.num_tokens_by_class[name] == sum(map(num_queued_tokens, members))


def _order(entry: tuple[OrderKey, Request]) -> OrderKey:
    return entry[0]
