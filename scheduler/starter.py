"""Lets waiting requests run: with a seat, blocks for all their known tokens, and tokens of the step."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.config import SchedulerConfig
from scheduler.decode_load import DecodeLoad, RunningDecodes
from scheduler.groups import GroupTable
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.output import Admission
from scheduler.request import Request, RequestStatus
from scheduler.running_set import RunningSet
from scheduler.start_needs import StartNeeds, StartPlanner
from scheduler.stats import SchedulerCounters
from scheduler.step_budget import StepBudget
from scheduler.step_plan import StepPlan
from scheduler.waiting_queue import WaitingQueue


class Starter:
    """Moves requests from the queue to the running ones; it owns neither."""

    def __init__(
        self,
        config: SchedulerConfig,
        starts: StartPlanner,
        kv: KVCacheManager,
        queue: WaitingQueue,
        running: RunningSet,
        groups: GroupTable,
        counters: SchedulerCounters,
        watermark_blocks: int,
        decode_load: DecodeLoad | None,
        is_late: Callable[[Request], bool],
    ) -> None:
        """
        Args:
            decode_load: what the decodes of protected requests bear; None: everything.
            is_late: whether the floor in force makes a request late whatever the load.
        """
        self._config = config
        self._starts = starts
        self._kv = kv
        self._queue = queue
        self._running = running
        self._groups = groups
        self._counters = counters
        self._watermark_blocks = watermark_blocks
        self._decode_load = decode_load
        self._is_late = is_late

    def why_not(self, request: Request, start: StartNeeds, plan: StepPlan) -> str | None:
        """What a waiting request lacks beside time; None: nothing."""
        if plan.preempted and request is not plan.beneficiary:
            return "preempted"
        if len(self._running) >= self._config.max_num_seqs:
            return "no_seat"
        watermark = self._watermark_blocks if len(self._running) else 0
        if start.num_free_blocks + watermark > self._kv.pool.num_free_blocks:
            return "no_blocks"
        return None

    def is_too_many(self, request: Request) -> bool:
        """Whether one more decode is more than the protected ones bear."""
        return self._decode_load is not None and not self._decode_load.allows(self._running, request)

    def is_too_many_in(self, plan: StepPlan, request: Request) -> bool:
        """The same, once nobody yields any more in a step."""
        if self._decode_load is None:
            return False
        if plan.decodes is None:
            plan.decodes = RunningDecodes(self._decode_load, self._running)
        return not plan.decodes.allows(request)

    def num_tokens_that_fit(self, request: Request, start: StartNeeds, plan: StepPlan, budget: StepBudget) -> int:
        """Of its first tokens, in this step; 0: none."""
        position = self._first_position(request, start)
        num_tokens = min(request.num_known_tokens, request.spec.num_kv_tokens) - position
        return budget.fit(request, num_tokens, plan.num_tokens_left)

    def start(self, request: Request, start: StartNeeds, plan: StepPlan) -> None:
        """It runs from here, with all its blocks; those that the host has are on their way."""
        if start.leader is not None:
            plan.copy(self._kv.fork(start.leader, request))
        else:
            added = self._kv.allocate_slots(request, start.num_slots, start.computed_blocks)
            assert added is not None
            self._fetch(request, start)
        request.num_computed_tokens = self._first_position(request, start)
        self._queue.remove(request)
        request.move(RequestStatus.RUNNING)
        request.started_s = plan.now_s
        self._running.add(request)
        if plan.decodes is not None:
            plan.decodes.add((request,))
        self._groups.start(request.spec.group_id)
        if request.admitted_s is None:
            self._admit(request, start.leader, plan)

    def compute(self, request: Request, num_tokens: int, plan: StepPlan, budget: StepBudget) -> None:
        """Its next tokens become part of the step; with its first ones, the runner learns of its blocks."""
        first_block, new_block_ids = (
            (len(request.block_ids), ()) if request.is_placed else (0, tuple(request.block_ids))
        )
        budget.add(request, num_tokens)
        plan.add(request, num_tokens, first_block, new_block_ids)

    def _fetch(self, request: Request, start: StartNeeds) -> None:
        """Load what the host has of its prefix, and share the loads that bring other parts of it."""
        tiers, num_computed = self._kv.tiers, len(start.computed_blocks)
        if not tiers.is_on:
            return
        hashes = request.block_hashes[:num_computed]
        tiers.used(hashes, request.spec.retention)
        tiers.use.num_recompute_choices += start.is_trimmed
        request.load_ids = frozenset(tiers.load_ids(hashes))
        if None in start.computed_blocks:
            lacking = [index for index, block_id in enumerate(start.computed_blocks) if block_id is None]
            load_id = tiers.load(
                [hashes[index] for index in lacking],
                [request.block_ids[index] for index in lacking],
                request.deadlines.next_s,
            )
            request.load_ids |= {load_id}

    def _first_position(self, request: Request, start: StartNeeds) -> int:
        if start.leader is not None:
            return request.spec.num_prompt_tokens - 1
        return len(start.computed_blocks) * self._config.block_size

    def _admit(self, request: Request, leader: Request | None, plan: StepPlan) -> None:
        """Its first start: from here the promise counts."""
        request.admitted_s = plan.now_s
        if leader is None:
            request.num_cached_tokens = request.num_computed_tokens
        else:
            request.num_cached_tokens = leader.num_cached_tokens
            request.num_host_cached_tokens = leader.num_host_cached_tokens
            request.num_disk_cached_tokens = leader.num_disk_cached_tokens
            self._counters.prompt_tokens_shared += request.num_computed_tokens
        spec, slo_class = request.spec, request.slo_class
        num_uncached = spec.num_prompt_tokens - request.num_cached_tokens
        request.deadlines.start(spec.arrival_s + spec.slo.first_token_limit_s(slo_class, num_uncached))
        plan.admissions.append(
            Admission(
                spec.request_id,
                spec.group_id,
                request.num_cached_tokens,
                spec.slo.ttft_target_s(slo_class, num_uncached),
                spec.slo.tpot_target_s(slo_class),
                self._is_late(request) or request.deadlines.next_s <= plan.now_s,
                request.num_host_cached_tokens,
                request.num_disk_cached_tokens,
            )
        )
