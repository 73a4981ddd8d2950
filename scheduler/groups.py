"""The choices of one HTTP request: they arrive and expire together."""

from __future__ import annotations

import bisect
import dataclasses

from scheduler.output import Expiry, RefusalReason
from scheduler.request import Request, RequestSpec


@dataclasses.dataclass(slots=True, eq=False)
class Group:
    """The live choices of one group."""

    group_id: str
    granted: str
    """Class it is served in."""
    arrival_s: float
    expiry_s: float
    """It is removed then, unless a choice has started."""
    members: dict[str, Request]
    has_started: bool = False

    def expire(self, now_s: float, retry_after_s: float) -> Expiry:
        """What its client is told."""
        waited_s, limit_s = now_s - self.arrival_s, self.expiry_s - self.arrival_s
        return Expiry(
            self.group_id,
            f"not started after {waited_s:.3g} s in class {self.granted!r}, the limit is {limit_s:.3g} s; "
            "retry later, allow more time or ask for another class",
            retry_after_s,
        )

    def refuse(self, why: str) -> Expiry:
        """What its client is told when its class closes before a choice has started."""
        return Expiry(self.group_id, why, None, RefusalReason.CLASS_CLOSED)


def check_group(group: tuple[RequestSpec, ...]) -> None:
    """Raises ValueError: the choices contradict each other."""
    if not group:
        raise ValueError("a group needs at least one choice")
    first = group[0]
    if len({s.request_id for s in group}) != len(group):
        raise ValueError(f"group {first.group_id!r} names a request twice")
    leaders: dict[str, RequestSpec] = {}
    for spec in group:
        if (spec.group_id, spec.slo, spec.arrival_s) != (first.group_id, first.slo, first.arrival_s):
            raise ValueError(f"request {spec.request_id!r} differs from its group in id, SLO or arrival")
        if spec.num_prompt_tokens < 1 or spec.max_tokens < 0:
            raise ValueError(
                f"request {spec.request_id!r} has {spec.num_prompt_tokens} prompt tokens and max_tokens "
                f"{spec.max_tokens}; at least 1 and 0"
            )
        if spec.leader_id is None:
            leaders[spec.request_id] = spec
            continue
        leader = leaders.get(spec.leader_id)
        if leader is None or leader.num_prompt_tokens != spec.num_prompt_tokens:
            raise ValueError(f"request {spec.request_id!r}: {spec.leader_id!r} is no earlier choice of its prompt")


class GroupTable:
    """Owns the live groups, and the order in which those that have not started expire."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._expiries: list[tuple[float, str]] = []

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def add(self, group: Group) -> None:
        assert group.group_id not in self._groups and group.members and not group.has_started
        self._groups[group.group_id] = group
        bisect.insort(self._expiries, (group.expiry_s, group.group_id))

    def start(self, group_id: str) -> None:
        """A choice of it runs: it no longer expires. Does nothing the second time."""
        group = self._groups[group_id]
        if not group.has_started:
            group.has_started = True
            self._drop_expiry(group)

    def remove(self, request: Request) -> None:
        """A choice is finished; the group ends with its last one."""
        group = self._groups[request.spec.group_id]
        del group.members[request.request_id]
        if not group.members:
            del self._groups[group.group_id]
            if not group.has_started:
                self._drop_expiry(group)

    def next_expiry_s(self) -> float | None:
        return self._expiries[0][0] if self._expiries else None

    def expired(self, now_s: float) -> list[Group]:
        """Groups whose time to start is over, earliest first."""
        num_expired = bisect.bisect_right(self._expiries, now_s, key=_expiry_s)
        return [self._groups[group_id] for _, group_id in self._expiries[:num_expired]]

    def not_started(self) -> list[Group]:
        """Groups of which no choice has started, the first to expire first."""
        return [self._groups[group_id] for _, group_id in self._expiries]

    def _drop_expiry(self, group: Group) -> None:
        del self._expiries[bisect.bisect_left(self._expiries, (group.expiry_s, group.group_id))]

    def check(self, requests: dict[str, Request]) -> None:
        """Assert that the groups hold exactly these live requests, and that those not started can expire."""
        members = {i: r for g in self._groups.values() for i, r in g.members.items()}
        assert members == requests, "groups and live requests disagree"
        not_started = sorted((g.expiry_s, g.group_id) for g in self._groups.values() if not g.has_started)
        assert self._expiries == not_started, "the order of expiry is wrong"
        for group in self._groups.values():
            started = any(r.admitted_s is not None for r in group.members.values())
            assert group.has_started or not started, f"{group.group_id}: started, and could still expire"


def _expiry_s(entry: tuple[float, str]) -> float:
    return entry[0]
