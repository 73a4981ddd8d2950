"""Order of requests: who is served first, and who yields when blocks are short."""

from __future__ import annotations

from typing import Literal, Protocol

from scheduler.request import OrderKey, Request, RequestSpec
from scheduler.slo import SLOClasses


class Policy(Protocol):
    """Both orders are total, fixed on arrival, and independent of the order in which requests are added."""

    def order(self, spec: RequestSpec, group_index: int) -> OrderKey:
        """Place among those that wait; the smallest is served first. A preempted request keeps it."""

    def seniority(self, spec: RequestSpec, group_index: int) -> OrderKey:
        """Place among those that run; the largest yields first: the lowest class, in it the newest."""


class FCFSPolicy:
    """By arrival alone: all classes have one rank, so that none preempts another."""

    def order(self, spec: RequestSpec, group_index: int) -> OrderKey:
        return (0, spec.arrival_s, spec.arrival_s, spec.group_id, group_index)

    def seniority(self, spec: RequestSpec, group_index: int) -> OrderKey:
        return self.order(spec, group_index)


class PriorityPolicy:
    """By rank of the class, then by the deadline of the first token: arrival + TTFT target of the whole prompt."""

    def __init__(self, classes: SLOClasses) -> None:
        self._classes = classes

    def order(self, spec: RequestSpec, group_index: int) -> OrderKey:
        slo_class = self._classes.get(spec.slo.granted)
        deadline_s = spec.arrival_s + spec.slo.ttft_target_s(slo_class, spec.num_prompt_tokens)
        return (slo_class.rank, deadline_s, spec.arrival_s, spec.group_id, group_index)

    def seniority(self, spec: RequestSpec, group_index: int) -> OrderKey:
        rank = self._classes.get(spec.slo.granted).rank
        return (rank, spec.arrival_s, spec.arrival_s, spec.group_id, group_index)


def make_policy(name: Literal["fcfs", "priority"], classes: SLOClasses) -> Policy:
    """The policy of that name in `SchedulerConfig.scheduler_policy`."""
    return FCFSPolicy() if name == "fcfs" else PriorityPolicy(classes)


def new_request(spec: RequestSpec, group_index: int, policy: Policy) -> Request:
    """A waiting request with its places in both orders."""
    return Request(
        spec=spec,
        order=policy.order(spec, group_index),
        seniority=policy.seniority(spec, group_index),
        block_hashes=list(spec.block_hashes),
    )
