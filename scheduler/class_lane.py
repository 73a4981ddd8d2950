"""The waiting requests of one latency class, in the order in which they will be served."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.request import Request
from scheduler.tenant_service import TenantService
from scheduler.tenant_turns import TenantTurns

WEIGHT_OF_OUTPUT = 2
"""What a token of output costs against one of the prompt; the prompt's are computed together (VTC)."""


class ClassLane:
    """Relegated requests come after all others; in both parts the tenant with the least service is next.

    A relegated request earns its tenant nothing: only those in front set the level to which others are lifted.
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

    def __len__(self) -> int:
        return len(self._front) + len(self._relegated)

    def __iter__(self) -> Iterator[Request]:
        """About in the order in which they will be served."""
        yield from self._front
        yield from self._relegated

    def first(self) -> Request | None:
        """Whose turn it is; None: nobody waits."""
        request = self._front.first()
        return self._relegated.first() if request is None else request

    def push(self, request: Request) -> None:
        """Let it wait for its turn, at its place in the order."""
        tenant = self._tenant_of(request)
        turns = self._relegated if request.is_relegated else self._front
        if tenant not in turns:
            self._service.enter(tenant, self._front.least_service())
        turns.push(request, tenant)

    def remove(self, request: Request) -> bool:
        """False: it has no turn here."""
        tenant = self._tenant_of(request)
        turns = self._relegated if request.is_relegated else self._front
        if not turns.remove(request, tenant):
            return False
        if turns is self._front and not len(turns):
            self._service.was_last(tenant)
        if tenant not in self._front and tenant not in self._relegated:
            self._service.leave(tenant)
        return True

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A tenant had that much service."""
        if self._is_fair:
            self._service.charge(tenant, num_prompt_tokens + WEIGHT_OF_OUTPUT * num_output_tokens)

    def _tenant_of(self, request: Request) -> str:
        return request.spec.tenant if self._is_fair else ""

    def check(self) -> None:
        """Assert that both parts are in order, and that the counters are those of their tenants."""
        self._front.check()
        self._relegated.check()
        assert not any(request.is_relegated for request in self._front)
        assert all(request.is_relegated for request in self._relegated)
        self._service.check({self._tenant_of(request) for request in self})
