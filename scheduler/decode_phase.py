"""The decodes of a step: a token for each running request that lacks one, as far as time and blocks go."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler.class_lane import place_of
from scheduler.config import SchedulerConfig
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.policy import Policy
from scheduler.preemption import Preemption
from scheduler.request import Request, RequestStatus
from scheduler.running_set import RunningSet
from scheduler.step_budget import StepBudget
from scheduler.step_features import StepFeatures
from scheduler.step_plan import StepPlan
from scheduler.steps_in_flight import StepsInFlight


class DecodePhase:
    """The third move of a step. Owns nothing."""

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        running: RunningSet,
        kv: KVCacheManager,
        steps: StepsInFlight,
        preemption: Preemption,
        preempt: Callable[[Request, StepPlan, int], int],
    ) -> None:
        """
        Args:
            preempt: takes a request's blocks, and lets it wait again; so many are wanted now, and so many it gives.
        """
        self._config = config
        self._policy = policy
        self._running = running
        self._kv = kv
        self._steps = steps
        self._preemption = preemption
        self._preempt = preempt

    def run(self, plan: StepPlan, budget: StepBudget) -> list[Request]:
        """Give one token to each running request that lacks one; return those that lack more, in policy order.

        Those whose blocks are still on their way go to `plan.loading`.
        """
        decodes, prefills = [], []
        for request in self._running:  # most senior first: whoever yields is not scheduled yet
            num_tokens = request.num_tokens_to_compute
            if num_tokens == 1 and request.is_placed and not request.load_ids:
                decodes.append(request)
            elif request.load_ids:
                plan.loading.append(request)
            elif num_tokens:
                prefills.append(request)
        left_out = budget.choose_decodes(decodes, may_skip=self._policy.rights.skips_decodes)
        chosen = decodes if not left_out else [request for request in decodes if request not in left_out]
        self._schedule_tokens(chosen, plan)
        if len(plan.scheduled) < len(chosen):
            for request in decodes:
                if request in left_out and not plan.scheduled:  # all of those that are due lack blocks
                    self._schedule_tokens((request,), plan)
            budget.recount(StepFeatures.of(plan.scheduled))
        return sorted((r for r in prefills if r.status is RequestStatus.RUNNING), key=place_of)

    def _schedule_tokens(self, decodes: Iterable[Request], plan: StepPlan) -> None:
        """Give each its token; whoever gets no block for it gets none."""
        rest = iter(decodes)
        while (request := plan.add_decodes(rest, self._config.block_size)) is not None:
            if request.status is RequestStatus.RUNNING and self._make_room_for_token(request, plan):
                first_block = len(request.block_ids)
                added = self._kv.allocate_slots(request, request.position + 1)
                assert added is not None
                plan.add(request, 1, first_block, added)

    def _make_room_for_token(self, request: Request, plan: StepPlan) -> bool:
        """Make sure that the next token has a slot. False: not in this step, or the request yielded itself."""
        num_missing = self._kv.num_blocks_to_take(request, request.position + 1) - self._kv.pool.num_free_blocks
        if num_missing <= 0:
            return True
        num_missing -= self._steps.num_blocks_coming(self._kv.tiers.leased_block_ids())
        if num_missing > 0 and plan.num_victims_left > 0:
            victims = self._preemption.victims_for_block(request, num_missing, plan.num_victims_left, plan.now_s)
            assert plan.beneficiary is None, "the room made for the head was to leave enough for this token"
            for victim in victims or [request]:
                num_missing -= self._preempt(victim, plan, num_missing)
        if request.status is RequestStatus.RUNNING and self._kv.pool.num_free_blocks > 0:
            return True
        plan.explain("no_block_for_decode")
        return False
