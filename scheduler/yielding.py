"""Requests lose their blocks: to a higher class that waits, to one that decodes, or because a load of theirs failed."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.admission import AdmissionControl
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.preemption import Preemption
from scheduler.prefill_pace import PrefillPace
from scheduler.request import Request, RequestStatus
from scheduler.running_set import RunningSet
from scheduler.start_needs import StartPlanner
from scheduler.stats import SchedulerCounters
from scheduler.step_plan import StepPlan
from scheduler.steps_in_flight import StepsInFlight
from scheduler.swap_out import SwapOut
from scheduler.waiting_queue import WaitingQueue


class Yielding:
    """Moves requests from the running ones back to the queue; it owns neither."""

    def __init__(
        self,
        kv: KVCacheManager,
        queue: WaitingQueue,
        running: RunningSet,
        steps: StepsInFlight,
        starts: StartPlanner,
        preemption: Preemption,
        swap_out: SwapOut,
        admission: AdmissionControl,
        pace: PrefillPace,
        counters: SchedulerCounters,
        watermark_blocks: int,
    ) -> None:
        self._kv = kv
        self._queue = queue
        self._running = running
        self._steps = steps
        self._starts = starts
        self._preemption = preemption
        self._swap_out = swap_out
        self._admission = admission
        self._pace = pace
        self._counters = counters
        self._watermark_blocks = watermark_blocks

    def make_room_for(self, head: Request, plan: StepPlan) -> None:
        """Let strictly lower classes yield to a waiting request, if that is enough for it to start."""
        start = self._starts.needs_of(head, others_leave=True)
        num_coming = self._steps.num_blocks_coming(self._kv.tiers.leased_block_ids())
        num_missing = start.num_free_blocks - self._kv.pool.num_free_blocks - num_coming
        victims = self._preemption.victims_for_head(
            head, num_missing, start.shared_blocks, plan.num_victims_left, plan.now_s
        )
        if not victims:
            return
        plan.beneficiary = head
        if self._can_wait_for_stores(head, victims, plan.now_s):
            num_wanted = 0
        else:
            num_wanted = num_missing + self._watermark_blocks + len(self._running)  # of decodes: one each at most
        for victim in victims:
            num_wanted -= self.preempt(victim, plan, max(0, num_wanted))

    def preempt(self, request: Request, plan: StepPlan, num_wanted: int) -> int:
        """Take its blocks; it waits with its old place in the order.

        Args:
            num_wanted: blocks that others need in this step; the others may leave for the host first.

        Returns:
            Blocks that are free by it now.
        """
        num_free = self._kv.pool.num_free_blocks
        self._swap_out.begin(request, num_wanted)
        request.num_preemptions += 1
        self.restart(request)
        self._counters.num_preemptions += 1
        plan.preempted.append(request.request_id)
        plan.num_victims_left -= 1
        return self._kv.pool.num_free_blocks - num_free

    def restart(self, request: Request) -> None:
        """It runs no more, and waits for another start."""
        self._running.remove(request)
        self.give_back(request)
        request.forget_computed()
        request.move(RequestStatus.WAITING)
        self._queue.push(request)
        self._queue.unpark(request.request_id)
        self._admission.added(request)

    def give_back(self, request: Request) -> None:
        """Its blocks, at once or when the step in flight is done."""
        self._kv.note_use(request)
        block_ids = self._kv.detach(request)
        if not self._steps.hold(request, block_ids):
            self._kv.release(block_ids)

    def _can_wait_for_stores(self, head: Request, victims: Sequence[Request], now_s: float) -> bool:
        """Whether the blocks of victims may leave for the host before a waiting request starts."""
        num_blocks = sum(len(victim.block_ids) for victim in victims if self._swap_out.is_worth(victim))
        s_per_token = self._pace.s_per_token or 0.0
        ready_s = now_s + self._kv.tiers.quote.store_s(num_blocks) + head.num_tokens_to_compute * s_per_token
        return ready_s < head.deadlines.next_s
