"""How much service each tenant of one class had: the counters that make tenants equal."""

from __future__ import annotations

MAX_IDLE_TENANTS = 4096
"""Tenants without a waiting request whose counters are kept; beyond, the one that is idle for longest is forgotten."""


class TenantService:
    """Virtual token counters (VTC: Sheng et al., OSDI 2024), in weighted tokens; they only grow.

    A tenant that comes back is lifted to the least counter of those whose turn it is, so that idleness earns no
    credit; where there is none, to the counter of the one that was the last. A forgotten tenant comes back at that
    level as well: it gains at most what it had above it, and nothing is remembered of who never comes back.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._idle: dict[str, int] = {}
        """In the order of their last service or leaving, oldest first."""
        self._last = ""
        """The one that was the last whose turn it was."""
        self._floor = 0
        """Its counter then, or when it was forgotten."""

    def of(self, tenant: str) -> int:
        """The counter of a tenant that waits.

        Raises:
            KeyError: it does not.
        """
        return self._waiting[tenant]

    @property
    def last_level(self) -> int:
        """What the last one whose turn it was has by now."""
        counter = self._waiting.get(self._last)
        return max(self._floor, self._idle.get(self._last, 0) if counter is None else counter)

    def enter(self, tenant: str, level: int) -> None:
        """It begins to wait, or to have a turn.

        Args:
            level: the least it has from now on.
        """
        counter = self._waiting.get(tenant)
        if counter is None:
            counter = self._idle.pop(tenant, 0)
        self._waiting[tenant] = max(counter, level)

    def leave(self, tenant: str) -> None:
        """Nothing of it waits any more."""
        self._keep_idle(tenant, self._waiting.pop(tenant))

    def was_last(self, tenant: str) -> None:
        """It waits and was the only one with a turn, and has none any more."""
        self._last, self._floor = tenant, self._waiting[tenant]

    def charge(self, tenant: str, cost: int) -> None:
        """It had service, whether anything of it waits or not."""
        if tenant in self._waiting:
            self._waiting[tenant] += cost
        else:
            counter = self._idle.pop(tenant, None)
            self._keep_idle(tenant, (self._floor if counter is None else counter) + cost)

    def _keep_idle(self, tenant: str, counter: int) -> None:
        self._idle[tenant] = counter
        if len(self._idle) > MAX_IDLE_TENANTS:
            oldest = next(iter(self._idle))
            if oldest == self._last:
                self._floor = self.last_level
            del self._idle[oldest]

    def check(self, waiting: set[str]) -> None:
        """Assert that exactly `waiting` are counted as waiting, and the others are few."""
        assert self._waiting.keys() == waiting, "the tenants that wait are not those that are counted"
        assert not self._waiting.keys() & self._idle.keys(), "a tenant waits and is idle"
        assert len(self._idle) <= MAX_IDLE_TENANTS
        assert all(counter >= 0 for counter in (*self._waiting.values(), *self._idle.values()))
