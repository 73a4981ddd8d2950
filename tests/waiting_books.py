"""What must be first among waiting requests, recomputed from nothing but the calls; used by property tests."""

from __future__ import annotations

from collections.abc import Collection

from scheduler.request import OrderKey, Request


class LaneBooks:
    """One class: all its requests in no order, all its tenants in a table that forgets nobody."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.served: dict[str, int] = {}
        self._level = 0
        self._last = ""

    def push(self, request: Request) -> None:
        if not request.num_lives and not self._has_turn(request.spec.tenant, request.is_relegated):
            self._lift(request.spec.tenant)
        self.waiting.append(request)

    def _has_turn(self, tenant: str, is_relegated: bool) -> bool:
        return any(r.spec.tenant == tenant for r in self._with_turns(is_relegated))

    def _with_turns(self, is_relegated: bool) -> list[Request]:
        return [r for r in self.waiting if not r.num_lives and r.is_relegated == is_relegated]

    def _lift(self, tenant: str) -> None:
        self.served[tenant] = max(self.served.get(tenant, 0), self._level)

    def remove(self, request: Request) -> None:
        self.waiting.remove(request)
        if not request.num_lives:
            if not request.is_relegated:
                self._last = request.spec.tenant
            self._set_level()

    def charge(self, tenant: str, cost: int) -> None:
        self.served[tenant] = self.served.get(tenant, 0) + cost
        self._set_level()

    def _set_level(self) -> None:
        """After every service: the least of those in front, or of the last that was."""
        in_front = {r.spec.tenant for r in self._with_turns(False)}
        self._level = min(self.served[t] for t in in_front) if in_front else self.served.get(self._last, 0)

    def first(self) -> Request | None:
        """By definition: look at all."""
        turns = self._with_turns(False) or self._with_turns(True)
        chosen = min(turns, key=lambda r: self._turn(r, turns), default=None)
        returned = [r for r in self.waiting if r.num_lives]
        return min([*returned, *([] if chosen is None else [chosen])], key=_place, default=None)

    def _turn(self, request: Request, turns: Collection[Request]) -> tuple[int, OrderKey, OrderKey]:
        tenant = request.spec.tenant
        first_order = min(r.order for r in turns if r.spec.tenant == tenant)
        return (self.served[tenant], first_order, request.order)


def _place(request: Request) -> tuple[bool, OrderKey]:
    return (request.is_relegated, request.order)
