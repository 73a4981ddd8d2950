"""The prompts of a step: who is next, who may start, and how many tokens of each fit."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.admission import AdmissionControl
from scheduler.chunk_tile import ChunkTile
from scheduler.class_lane import place_of
from scheduler.class_shares import ClassShares
from scheduler.config import SchedulerConfig
from scheduler.disk_fetch import DiskFetch
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.policy import Backlog, Policy
from scheduler.prefill_pace import PrefillPace
from scheduler.prefill_turns import PrefillTurns
from scheduler.request import Request, RequestStatus
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from scheduler.start_needs import StartPlanner
from scheduler.starter import Starter
from scheduler.step_budget import StepBudget
from scheduler.step_plan import StepPlan
from scheduler.waiting_queue import WaitingQueue

STEPS_PER_RESERVATION = 8
"""A class behind its share may cost protected deadlines once in so many steps, by one tile."""
MAX_MISFITS_PER_STEP = 4
MAX_RELEGATIONS_PER_STEP = 4


class PrefillPhase:
    """The last move of a step. Owns nothing but when a class was last given its share whatever the cost."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        policy: Policy,
        queue: WaitingQueue,
        running: RunningSet,
        starts: StartPlanner,
        starter: Starter,
        admission: AdmissionControl,
        shares: ClassShares | None,
        tile: ChunkTile,
        pace: PrefillPace,
        kv: KVCacheManager,
        fetch: DiskFetch,
    ) -> None:
        self._config = config
        self._classes = classes
        self._policy = policy
        self._queue = queue
        self._running = running
        self._starts = starts
        self._starter = starter
        self._admission = admission
        self._shares = shares
        self._tile = tile
        self._pace = pace
        self._tiers = kv.tiers
        self._fetch = fetch
        self._now_s = 0.0
        self._last_reservation_step = -STEPS_PER_RESERVATION

    def in_need(self, now_s: float) -> Request | None:
        """The first waiting request, if lower classes run that may have to yield to it; None: nobody has to."""
        self._now_s = now_s
        heads = self._heads()
        if not heads:
            return None
        head = self._policy.choose(heads, self._backlog(now_s, ()))
        if next(self._running.below(head.rank), None) is None or not self._may_take(head, now_s):
            return None
        if head.is_relegated or self._is_hopeless(head, now_s):  # it would be late all the same
            return None
        return None if self._starter.is_too_many(head) else head

    def run(self, prefills: Sequence[Request], plan: StepPlan, budget: StepBudget) -> None:
        """Spend the rest of the budgets in the policy's order, on what runs and what waits."""
        plan.prefilling = prefills
        turns = PrefillTurns(prefills, self._heads(), self._head_of, self._policy, self._backlog(plan.now_s, prefills))
        self._serve_owed_class(turns, plan, budget)
        self._take_turns(turns, plan, budget)
        self._join_loading(plan, budget)

    def _take_turns(self, turns: PrefillTurns, plan: StepPlan, budget: StepBudget) -> None:
        num_misfits = num_relegations = 0
        while (request := turns.next()) is not None and num_misfits < MAX_MISFITS_PER_STEP:
            if plan.num_tokens_left <= 0:
                plan.explain("no_tokens")
                plan.has_backlog = True
                return
            if num_relegations < MAX_RELEGATIONS_PER_STEP and self._is_hopeless(request, plan.now_s):
                self._queue.relegate(request)
                self._policy.note_overload(plan.now_s)
                turns.took(request)
                num_relegations += 1
            elif not self._schedule_prefill(request, turns, plan, budget):
                num_misfits += 1

    def _serve_owed_class(self, turns: PrefillTurns, plan: StepPlan, budget: StepBudget) -> None:
        """A class behind its share goes first; now and then it gets a tile whatever the others' deadlines."""
        if self._shares is None or plan.beneficiary is not None:  # others have yielded to that one in this step
            return
        owed = self._shares.owed()
        request = None if owed is None else turns.of_class(owed)
        if request is None or plan.num_tokens_left <= 0:
            return
        if plan.step_id - self._last_reservation_step >= STEPS_PER_RESERVATION:
            budget.reserve(self._tile.tokens)
            plan.is_reserved = True
        if self._schedule_prefill(request, turns, plan, budget):
            plan.explain("share")
            if plan.is_reserved:
                self._last_reservation_step = plan.step_id
        plan.is_reserved = False
        budget.reserve(0)  # what is reserved is no other class's

    def _schedule_prefill(self, request: Request, turns: PrefillTurns, plan: StepPlan, budget: StepBudget) -> bool:
        """Give a request's prompt what fits. False: nothing does, and it has had its turn."""
        if request.status is RequestStatus.WAITING:
            return self._start(request, turns, plan, budget)
        num_tokens = budget.fit(request, request.num_tokens_to_compute, plan.num_tokens_left)
        if num_tokens == 0:
            self._leave_for_later(request, turns, plan)
            return False
        self._starter.compute(request, num_tokens, plan, budget)
        turns.took(request)
        return True

    def _join_loading(self, plan: StepPlan, budget: StepBudget) -> None:
        """Compute requests whose blocks are on their way, where the waiting hides or nobody else is in the step."""
        for request in sorted(plan.loading, key=place_of):
            if request.status is not RequestStatus.RUNNING or request.num_scheduled_tokens:
                continue  # it yielded, or a step in flight waits for its load: how that ends is not known yet
            wait_s = self._tiers.wait_s(request.load_ids)
            first_s = wait_s / self._tiers.num_load_parts  # for the first part of the layers nothing can be computed
            num_tokens = budget.fit(request, request.num_tokens_to_compute, plan.num_tokens_left, first_s)
            if num_tokens and self._may_join(request, num_tokens, wait_s, plan, budget):
                self._starter.compute(request, num_tokens, plan, budget)
            else:
                plan.explain("loading")

    def _may_join(self, request: Request, num_tokens: int, wait_s: float, plan: StepPlan, budget: StepBudget) -> bool:
        num_parts = self._tiers.num_load_parts
        if plan.num_tokens == 0 and wait_s <= self._config.max_step_s:
            budget.wait_for(request, num_tokens, wait_s, num_parts)
            return True
        return budget.bears(request, num_tokens, wait_s, num_parts)

    def _start(self, request: Request, turns: PrefillTurns, plan: StepPlan, budget: StepBudget) -> bool:
        """Let a waiting request run and compute its first tokens. False: it lacks something, nothing changed."""
        start = self._starts.needs_of(request)
        lacks = self._starter.why_not(request, start, plan)
        if lacks is not None:
            plan.explain(lacks)
            if lacks == "preempted":  # the one that room was made for may come later: a victim can be due before it
                turns.drop(request)
            else:
                turns.block_starts(request.rank)
            return False
        if not plan.is_reserved and self._starter.is_too_many_in(plan, request):
            plan.explain("decode_load")
            turns.drop(request)
            return False
        is_first = request.admitted_s is None
        if start.is_loading:
            self._starter.start(request, start, plan)
            plan.loading.append(request)
        else:
            if request is plan.beneficiary:  # others yielded to it: it takes a block's tokens, whatever the time
                budget.reserve(self._config.block_size)
            num_tokens = self._starter.num_tokens_that_fit(request, start, plan, budget)
            if num_tokens == 0:
                self._leave_for_later(request, turns, plan)
                return False
            self._starter.start(request, start, plan)
            self._starter.compute(request, num_tokens, plan, budget)
        turns.took(request)
        if is_first:
            num_tokens = request.num_prompt_tokens - request.num_computed_tokens
            self._queue.charge(request.slo_class.name, request.spec.tenant, num_tokens, 0)
        self._admission.started(request, plan.now_s)
        return True

    def _leave_for_later(self, request: Request, turns: PrefillTurns, plan: StepPlan) -> None:
        plan.explain("no_time")
        plan.has_backlog = True
        turns.drop(request)

    def _may_take(self, head: Request, now_s: float) -> bool:
        """Whether others may have to yield to it now: where it would be late two steps from now, or nobody knows."""
        s_per_token = self._pace.s_per_token
        if not self._policy.rights.waits_to_preempt or s_per_token is None:
            return True
        start_by_s = head.deadlines.next_s - head.num_tokens_to_compute * s_per_token
        return start_by_s - now_s < 2 * self._config.max_step_s

    def _is_hopeless(self, request: Request, now_s: float) -> bool:
        """Whether a request that waits for its first token will be late even if nothing else is computed."""
        s_per_token = self._pace.s_per_token
        if not self._policy.rights.relegates or s_per_token is None or request.is_relegated:
            return False
        if request.status is not RequestStatus.WAITING or request.first_token_s is not None:
            return False
        return now_s + request.num_tokens_to_compute * s_per_token > request.deadlines.next_s

    def _heads(self) -> list[Request]:
        """The first waiting request of each class that has any."""
        firsts = [self._head_of(head.slo_class.name) for head in self._queue.heads()]
        return [request for request in firsts if request is not None]

    def _head_of(self, class_name: str) -> Request | None:
        """The first waiting request of a class, past those that wait for their leader's prompt or for the disk."""
        while (head := self._queue.head_of(class_name)) is not None and self._parks(head):
            pass
        return head

    def _parks(self, head: Request) -> bool:
        """Whether it has no turn yet; it is parked then."""
        leader = self._starts.leader_of(head)
        if leader is None:
            return self._fetch.begin(head, self._now_s)
        if leader.num_computed_tokens >= head.spec.num_prompt_tokens and not leader.load_ids:
            return False
        self._queue.remove(head)
        self._queue.park(head, leader.request_id)
        return True

    def _backlog(self, now_s: float, partials: Sequence[Request]) -> Backlog:
        def tokens_above(rank: int) -> int:
            waiting = self._queue.num_tokens_by_class
            above = sum(waiting[c.name] for c in self._classes if c.rank < rank)
            return above + sum(r.num_tokens_to_compute for r in partials if r.rank < rank)

        return Backlog(now_s, self._pace.s_per_token, tokens_above)
