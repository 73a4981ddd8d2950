"""Policies: who is served first, who yields, and what bounds a step.

A policy is a fixed order and a few rights. The order places every request once, on arrival; `choose` picks among the
first requests of the classes. Only `deadline` looks at more than the order there.

- `fcfs`: by arrival; steps are bounded by tokens alone, and nobody yields to a higher class.
- `priority`: by the rank of the class, in it by the deadline of the first token; steps end before the tightest
  protected deadline.
- `edf`: by the deadline of the first token over all classes; steps as above.
- `deadline`: earliest deadline first where that is safe for the higher classes, by rank where it is not; what cannot
  be in time any more goes last; tokens that are not due wait; classes get their shares.

Source: Liu and Layland, JACM 20 (1973), for EDF; Buttazzo and Stankovic, RED (1993), for giving up in overload what
counts least.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from scheduler.config import PolicyName
from scheduler.request import OrderKey, Request, RequestSpec
from scheduler.slo import SLOClasses
from scheduler.token_deadlines import TokenDeadlines

HEADROOM, OVERLOAD_HEADROOM = 1.0, 4.0
"""A lower class goes first only if the higher ones could wait that many times as long: more of them may arrive."""
LENGTH_BIAS = 3.0
"""In the order of `deadline` under overload, a prompt's length counts so many times more than in its target: where not
all can be in time, more of the short ones are."""
OVERLOAD_S = 10.0
"""So long after a first token was given up, more is taken to come than can be served."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyRights:
    """What a policy does beside ordering."""

    has_ranks: bool = True
    """Higher classes take seats and blocks from lower ones."""
    has_time_budget: bool = True
    """A step ends before the tightest protected deadline, as predicted."""
    is_fair: bool = True
    """Tenants of a class get equal service."""
    skips_decodes: bool = False
    """Tokens that are not due yet are left out of a step that would be too long."""
    relegates: bool = False
    """A request whose first token cannot be in time any more goes behind those that can."""
    gates_starts: bool = False
    """No start that the decodes of protected requests cannot bear."""
    has_shares: bool = False
    """A class behind its share of step time goes first."""
    waits_to_preempt: bool = False
    """Lower classes yield only to a request that would be late otherwise."""


_RIGHTS: dict[PolicyName, PolicyRights] = {
    "fcfs": PolicyRights(has_ranks=False, has_time_budget=False, is_fair=False),
    "priority": PolicyRights(),
    "edf": PolicyRights(),
    "deadline": PolicyRights(
        skips_decodes=True, relegates=True, gates_starts=True, has_shares=True, waits_to_preempt=True
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Backlog:
    """What waits, and how fast it is worked off: what `choose` may look at beside the requests."""

    now_s: float
    s_per_token: float | None
    """Of prefill, while there is more of it than fits; None: nothing is known."""
    tokens_of: Callable[[int], int]
    """Prompt tokens that wait or are computed in part in classes above a rank."""


class Policy:
    """A total order, fixed on arrival, and its rights. Owns whether there is an overload.

    Until that changes, the order does not depend on the order in which requests are added.
    """

    def __init__(self, name: PolicyName, classes: SLOClasses) -> None:
        self.name = name
        self.rights = _RIGHTS[name]
        self.classes = classes
        self._overload_until_s = -math.inf

    def note_overload(self, now_s: float) -> None:
        """A first token was given up."""
        self._overload_until_s = now_s + OVERLOAD_S

    def _is_overloaded(self, now_s: float) -> bool:
        return now_s < self._overload_until_s

    def order(self, spec: RequestSpec, group_index: int) -> OrderKey:
        """Place among those that wait; the smallest is served first. A preempted request keeps it."""
        if self.name == "fcfs":
            return (0, spec.arrival_s, spec.arrival_s, spec.group_id, group_index)
        slo_class = self.classes.get(spec.slo.granted)
        deadline_s = spec.arrival_s + spec.slo.first_token_limit_s(slo_class, spec.num_prompt_tokens)
        if self.name == "deadline" and self._is_overloaded(spec.arrival_s):
            deadline_s += LENGTH_BIAS * slo_class.ttft_per_1k_tokens_s * spec.num_prompt_tokens / 1000.0
        rank = 0 if self.name == "edf" else slo_class.rank
        return (rank, deadline_s, spec.arrival_s, spec.group_id, group_index)

    def seniority(self, spec: RequestSpec, group_index: int) -> OrderKey:
        """Place among those that run; the largest yields first: the lowest class, in it the newest."""
        return (self.rank(spec), spec.arrival_s, spec.arrival_s, spec.group_id, group_index)

    def rank(self, spec: RequestSpec) -> int:
        """Who may take another's seat or blocks: 0 is the highest."""
        return self.classes.get(spec.slo.granted).rank if self.rights.has_ranks else 0

    def choose(self, candidates: Sequence[Request], backlog: Backlog) -> Request:
        """Whose turn it is.

        Args:
            candidates: at least one; the first of each class.
        """
        if self.name != "deadline":
            return min(candidates, key=_order)
        headroom = OVERLOAD_HEADROOM if self._is_overloaded(backlog.now_s) else HEADROOM
        return _choose_safely(candidates, backlog, headroom)


def _choose_safely(candidates: Sequence[Request], backlog: Backlog, headroom: float) -> Request:
    """The earliest deadline among those that no higher class is late for; by rank where nothing is known.

    All that waits in the higher classes is taken to be due at the earliest of their first ones' deadlines: if it fits
    before that even after a request, the request may go first.
    """
    best_tier = min(map(_tier, candidates))
    by_rank = sorted((c for c in candidates if _tier(c) == best_tier), key=_rank)
    best = by_rank[0]
    if best_tier > 0 or backlog.s_per_token is None:
        return best
    first_due_s = best.deadlines.next_s
    for request in by_rank[1:]:
        due_s = request.deadlines.next_s
        if due_s < best.deadlines.next_s:
            num_tokens = backlog.tokens_of(request.rank) + request.num_tokens_to_compute
            if backlog.now_s + headroom * num_tokens * backlog.s_per_token <= first_due_s:
                best = request
        first_due_s = min(first_due_s, due_s)
    return best


def _tier(request: Request) -> int:
    """0: protected and can be in time, 1: protected and cannot, 2: not protected."""
    if not request.is_protected:
        return 2
    return 1 if request.is_relegated else 0


def _order(request: Request) -> OrderKey:
    return request.order


def _rank(request: Request) -> int:
    return request.rank


def new_request(spec: RequestSpec, group_index: int, policy: Policy, egress_s: float = 0.0) -> Request:
    """A waiting request with its places in both orders and its deadlines.

    Args:
        egress_s: between the end of a step and the socket.
    """
    slo, slo_class = spec.slo, policy.classes.get(spec.slo.granted)
    tpot_s = slo.tpot_target_s(slo_class)
    first_s = spec.arrival_s + slo.first_token_limit_s(slo_class, spec.num_prompt_tokens)
    max_stall_s = None if slo_class.max_stall_s is None else max(slo_class.max_stall_s, tpot_s)
    return Request(
        spec=spec,
        order=policy.order(spec, group_index),
        seniority=policy.seniority(spec, group_index),
        rank=policy.rank(spec),
        slo_class=slo_class,
        is_protected=slo_class.protected,
        deadlines=TokenDeadlines(first_s, tpot_s, max_stall_s, egress_s),
        block_hashes=list(spec.block_hashes),
    )
