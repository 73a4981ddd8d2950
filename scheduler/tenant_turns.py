"""Waiting requests of one class, by tenant: whose turn it is."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from scheduler.request import OrderKey, Request
from scheduler.tenant_service import TenantService

Turn = tuple[int, OrderKey, str]
"""Service of a tenant when its turn was placed, its first request's order, its name."""


class TenantTurns:
    """The tenant with the least service is next, at equal service the one with the first request; in it by order.

    Two kinds of sorted lists: the requests of each tenant, and one turn a tenant. Finding a place is O(log n), moving
    the rest is one memmove. Counters only grow, so a charge moves nothing: a turn whose counter is out of date stands
    too far in front and is placed anew when it gets there.
    """

    def __init__(self, service: TenantService) -> None:
        self._service = service
        self._requests: dict[str, list[tuple[OrderKey, Request]]] = {}
        self._turns: list[Turn] = []
        self._turn_of: dict[str, Turn] = {}
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._requests

    def __iter__(self) -> Iterator[Request]:
        """The first of each tenant, about in the order of their turns, then the others."""
        for _, _, tenant in self._turns:
            yield self._requests[tenant][0][1]
        for _, _, tenant in self._turns:
            for _, request in itertools.islice(self._requests[tenant], 1, None):
                yield request

    def first(self) -> Request | None:
        """Whose turn it is; None: nobody waits."""
        while self._turns:
            served, _, tenant = self._turns[0]
            entry = self._requests[tenant][0]
            if served == self._service.of(tenant):
                return entry[1]
            self._place(tenant, entry[0])
        return None

    def least_service(self) -> int | None:
        """The counter of the tenant whose turn it is; None: nobody waits."""
        return None if self.first() is None else self._turns[0][0]

    def push(self, request: Request, tenant: str) -> None:
        """Add a request; the service of its tenant is known."""
        entry = (request.order, request)
        entries = self._requests.setdefault(tenant, [])
        bisect.insort(entries, entry)
        if entries[0] is entry:
            self._place(tenant, request.order)
        self._num_requests += 1

    def remove(self, request: Request, tenant: str) -> bool:
        """False: it is not here."""
        entries = self._requests.get(tenant)
        if entries is None:
            return False
        index = bisect.bisect_left(entries, request.order, key=_order)
        if index == len(entries) or entries[index][1] is not request:
            return False
        del entries[index]
        self._num_requests -= 1
        if not entries:
            del self._requests[tenant]
            self._displace(tenant)
        elif index == 0:
            self._place(tenant, entries[0][0])
        return True

    def _place(self, tenant: str, order: OrderKey) -> None:
        """Give the tenant the turn that is due to it now."""
        if tenant in self._turn_of:
            self._displace(tenant)
        turn = (self._service.of(tenant), order, tenant)
        bisect.insort(self._turns, turn)
        self._turn_of[tenant] = turn

    def _displace(self, tenant: str) -> None:
        del self._turns[bisect.bisect_left(self._turns, self._turn_of.pop(tenant))]

    def check(self) -> None:
        """Assert that the lists are in order and fit each other."""
        assert self._requests.keys() == self._turn_of.keys()
        assert self._turns == sorted(self._turn_of.values()), "a turn is lost or out of order"
        assert self._num_requests == sum(map(len, self._requests.values()))
        for tenant, entries in self._requests.items():
            assert entries, "a tenant without a request is kept"
            assert all(a[0] < b[0] for a, b in itertools.pairwise(entries)), "out of order"
            served, order, name = self._turn_of[tenant]
            assert order == entries[0][0] and name == tenant, f"the turn of {tenant!r} is not its first request's"
            assert served <= self._service.of(tenant), f"the turn of {tenant!r} stands too far behind"


def _order(entry: tuple[OrderKey, Request]) -> OrderKey:
    return entry[0]
