"""The waiting requests of one latency class, in the order in which they will be served."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from scheduler.request import OrderKey, Request
from scheduler.tenant_service import TenantService
from scheduler.tenant_turns import TenantTurns

WEIGHT_OF_OUTPUT = 2
"""What a token of output costs against one of the prompt; the prompt's are computed together (VTC)."""

Place = tuple[bool, OrderKey]
"""Whether it is relegated, then its order."""


class ClassLane:
    """Relegated requests come after all others; in both parts the tenant with the least service is next.

    A tenant that comes back is lifted to the least service of those in front, as it was after the last service: so
    arrivals between two services may come in any order. A relegated request does not hold that level back. Those that
    ran before and lost their blocks are apart: their tenants paid for them, so they go by the order alone, before
    whoever's turn it is once they are first in order.
    """

    def __init__(self, *, is_fair: bool) -> None:
        """
        Args:
            is_fair: False: all requests are one tenant's.
        """
        self._is_fair = is_fair
        self._service = TenantService()
        self._front = TenantTurns(self._service)
        self._relegated = TenantTurns(self._service)
        self._returned: list[tuple[Place, Request]] = []
        self._level: int | None = None
        """To which tenants are lifted; None: to be looked up again."""

    def __len__(self) -> int:
        return len(self._returned) + len(self._front) + len(self._relegated)

    def __iter__(self) -> Iterator[Request]:
        """About in the order in which they will be served."""
        for _, request in self._returned:
            yield request
        yield from self._front
        yield from self._relegated

    def first(self) -> Request | None:
        """Whose turn it is; None: nobody waits."""
        request = self._front.first()
        if request is None:
            request = self._relegated.first()
        if self._returned and (request is None or self._returned[0][0] < place_of(request)):
            return self._returned[0][1]
        return request

    def push(self, request: Request) -> None:
        """Let it wait for its turn, at its place in the order."""
        if request.num_lives:
            bisect.insort(self._returned, (place_of(request), request))
            return
        tenant, turns = self._tenant_of(request), self._turns_of(request)
        if tenant not in turns:
            self._service.enter(tenant, self._level_now())
        turns.push(request, tenant)

    def _level_now(self) -> int:
        if self._level is None:
            least = self._front.least_service()
            self._level = self._service.last_level if least is None else least
        return self._level

    def remove(self, request: Request) -> bool:
        """False: it has no turn here."""
        if request.num_lives:
            return self._remove_returned(request)
        tenant, turns = self._tenant_of(request), self._turns_of(request)
        if not turns.remove(request, tenant):
            return False
        self._level = None
        if turns is self._front and not len(turns):
            self._service.was_last(tenant)
        if tenant not in self._front and tenant not in self._relegated:
            self._service.leave(tenant)
        return True

    def _remove_returned(self, request: Request) -> bool:
        index = bisect.bisect_left(self._returned, place_of(request), key=_place_of_entry)
        if index == len(self._returned) or self._returned[index][1] is not request:
            return False
        del self._returned[index]
        return True

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A tenant had that much service."""
        if self._is_fair:
            self._level = None
            self._service.charge(tenant, num_prompt_tokens + WEIGHT_OF_OUTPUT * num_output_tokens)

    def _tenant_of(self, request: Request) -> str:
        return request.spec.tenant if self._is_fair else ""

    def _turns_of(self, request: Request) -> TenantTurns:
        return self._relegated if request.is_relegated else self._front

    def check(self) -> None:
        """Assert that all parts are in order, and that the counters are those of their tenants."""
        self._front.check()
        self._relegated.check()
        assert not any(request.is_relegated for request in self._front)
        assert all(request.is_relegated for request in self._relegated)
        for place, request in self._returned:
            assert request.num_lives and place == place_of(request), f"{request.request_id} never ran"
        assert all(a[0] < b[0] for a, b in itertools.pairwise(self._returned)), "out of order"
        with_turns = [*self._front, *self._relegated]
        assert not any(request.num_lives for request in with_turns), "what ran before waits for a turn"
        least = self._front.least_service()
        assert self._level is None or least is None or self._level <= least, "a tenant in front is below the level"
        self._service.check({self._tenant_of(request) for request in with_turns})


def place_of(request: Request) -> Place:
    """In its class, among those that wait and those whose prompts are computed in part."""
    return (request.is_relegated, request.order)


def _place_of_entry(entry: tuple[Place, Request]) -> Place:
    return entry[0]
