"""Which request computes how many tokens in a step, and with which blocks.

A step is a map from requests to numbers of tokens; prefill, chunk, decode and recomputation are values of that number.
`schedule` puts it together in four moves: (1) groups that waited too long expire; (2) if the head of the queue lacks a
seat or blocks, strictly lower classes may yield to it; (3) every running request that lacks one token gets it, and if
it lacks a block, the least senior running request yields; (4) what is left of the token budget goes to prefills, those
that run and those that wait alike, in the policy's order. A request starts only if all its known tokens find room, and
gets that room at once: only decodes can run short later.

One step may be in flight: `schedule` may come once more before `update`. References of requests that leave meanwhile
stay with the youngest step in flight that uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.admission import AdmissionControl
from scheduler.config import SchedulerConfig
from scheduler.groups import Group, GroupTable, check_group
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.memory_demand import memory_demand
from scheduler.output import (
    Admission,
    FinishedRequest,
    RequestResult,
    SchedulerOutput,
    StepResult,
    Verdict,
    VerdictKind,
)
from scheduler.policy import make_policy, new_request
from scheduler.preemption import Preemption
from scheduler.request import FinishReason, OrderKey, Request, RequestSpec, RequestStatus
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from scheduler.start_needs import StartNeeds, StartPlanner
from scheduler.stats import SchedulerCounters, SchedulerStats
from scheduler.step_plan import StepPlan
from scheduler.step_timing import StepTiming
from scheduler.steps_in_flight import StepEntry, StepsInFlight
from scheduler.waiting_queue import WaitingQueue

MAX_UNUPDATED_STEPS = 2
"""The one in flight, and the one scheduled beside it."""


class Scheduler:
    """Owns the requests and, through KVCacheManager, the device blocks. No clock, no randomness, no token ids."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        num_blocks: int,
        max_model_len: int,
        latency: LatencyModel | None = None,
    ) -> None:
        """
        Args:
            latency: predicts steps and learns from them; of this scheduler alone. None: nothing is predicted.
        """
        self._config = config
        self._classes = classes
        self._policy = make_policy(config.scheduler_policy, classes)
        self._kv = KVCacheManager(num_blocks, config.block_size, config.enable_prefix_caching)
        self._watermark_blocks = max(1, num_blocks // 100)
        self._requests: dict[str, Request] = {}
        self._starts = StartPlanner(self._requests, self._kv, config.max_preemptions)
        self._groups = GroupTable()
        self._queue = WaitingQueue(self._kv.num_blocks_for, classes.names)
        self._running = RunningSet()
        self._steps = StepsInFlight(MAX_UNUPDATED_STEPS, self._kv.pool)
        self._admission = AdmissionControl(config, classes, num_blocks, max_model_len, self._watermark_blocks)
        self._preemption = Preemption(config, self._running, self._kv, self._watermark_blocks)
        self._counters = SchedulerCounters()
        self._timing = StepTiming(latency)
        self._next_step_id = 0
        self._link = NO_LINK

    def observe(self, link: LinkSnapshot) -> None:
        """Take in the state of the link and the placement of weights: what `add` and `schedule` judge by from here.

        Blocks at or beyond the border go to nobody; requests that hold some keep them.
        """
        self._link = link
        self._kv.pool.set_limit(self._kv.pool.num_blocks if link.num_blocks is None else link.num_blocks)

    def add(self, group: tuple[RequestSpec, ...], now_s: float) -> Verdict:  # noqa: ARG002 - verdicts with a time come
        """Judge a group on arrival; unless refused, its choices are live from here.

        Raises:
            ValueError: the group contradicts itself, or an id is live already.
            KeyError: its class does not exist.
        """
        check_group(group)
        first = group[0]
        if first.group_id in self._groups or any(s.request_id in self._requests for s in group):
            raise ValueError(f"group {first.group_id!r} or one of its requests is live already")
        verdict = self._admission.judge(
            group, self._queue, len(self._running), self._kv.pool.num_free_blocks, self._link
        )
        if verdict.kind is VerdictKind.REFUSE:
            return verdict
        slo = dataclasses.replace(first.slo, granted=verdict.granted)
        members = {
            spec.request_id: new_request(dataclasses.replace(spec, slo=slo), index, self._policy)
            for index, spec in enumerate(group)
        }
        expiry_s = first.arrival_s + slo.start_limit_s(self._classes.get(slo.granted))
        self._groups.add(Group(first.group_id, slo.granted, first.arrival_s, expiry_s, dict(members)))
        self._requests.update(members)
        for request in members.values():
            if request.spec.leader_id is None:
                self._queue.push(request)
            else:
                self._queue.park(request)
        return verdict

    def abort(self, request_ids: Sequence[str], now_s: float) -> tuple[FinishedRequest, ...]:  # noqa: ARG002
        """End requests in whatever state they are; ids that are not live are ignored."""
        unique = dict.fromkeys(request_ids)
        return tuple(self._finish(self._requests[i], FinishReason.ABORT) for i in unique if i in self._requests)

    def schedule(self, now_s: float, link: LinkSnapshot) -> SchedulerOutput:
        """Decide the next step; `link` is observed first.

        Raises:
            RuntimeError: two steps are not updated.
        """
        self._steps.check_room()
        self.observe(link)
        plan = StepPlan(
            self._next_step_id, now_s, self._config.max_num_batched_tokens, self._config.max_victims_per_step
        )
        self._next_step_id += 1
        self._expire(plan)
        self._make_room_for_head(plan)
        prefills = self._schedule_decodes(plan)
        self._schedule_prefills(prefills, plan)
        is_alone = not len(self._steps) and not plan.has_copies
        prediction = self._timing.begin(plan.scheduled, link, is_alone=is_alone)
        num_seats = self._config.max_num_seqs - len(self._running)
        demand = memory_demand(self._running, self._queue, self._kv.pool, num_seats, self._classes.names)
        output, step = plan.seal(demand, prediction)
        self._steps.push(step)
        return output

    def update(self, output: SchedulerOutput, result: StepResult, now_s: float) -> tuple[FinishedRequest, ...]:
        """Take in what came of the oldest step that is not updated.

        Raises:
            ValueError: it is another step, or the results do not fit what was scheduled; nothing changed.
        """
        step, results = self._steps.pop(output, result)
        finished = []
        for entry in step.entries:
            reason = self._take_in(entry, results[entry.request.request_id], now_s)
            if reason is not None:
                finished.append(self._finish(entry.request, reason))
        self._kv.release(step.held_block_ids)
        self._timing.end(step.prediction, result, now_s - output.now_s)
        self._admission.observe(output.num_tokens, now_s - output.now_s)
        return tuple(finished)

    def has_work(self) -> bool:
        """Whether any request is live."""
        return bool(self._requests)

    def next_wakeup_s(self) -> float | None:
        """When the next waiting group expires, if nothing runs; None: there is nothing to wake up for."""
        return None if len(self._running) else self._groups.next_expiry_s()

    def stats(self) -> SchedulerStats:
        """Gauges of now and totals so far."""
        return self._counters.snapshot(len(self._running), self._queue, self._kv)

    def check(self) -> None:
        """Assert everything that must hold between two calls."""
        waiting = [r for r in self._requests.values() if r.status is RequestStatus.WAITING]
        running = [r for r in self._requests.values() if r.status is RequestStatus.RUNNING]
        assert len(waiting) + len(running) == len(self._requests), "a finished request is still live"
        assert len(running) <= self._config.max_num_seqs
        self._running.check(running)
        self._queue.check(waiting)
        self._groups.check(self._requests)
        self._kv.check(running, self._steps.held_block_ids())
        self._timing.check()
        for request in self._requests.values():
            request.check()
            self._steps.check(request)
            assert request.num_preemptions <= self._config.max_preemptions, f"{request.request_id}: preempted too often"
        for request in self._queue.parked():
            leader = self._requests[request.spec.leader_id or ""]
            assert leader.num_computed_tokens < request.spec.num_prompt_tokens, f"{request.request_id}: parked for long"
            assert leader.status is RequestStatus.RUNNING or leader.num_preemptions == 0

    # The moves of `schedule`.

    def _expire(self, plan: StepPlan) -> None:
        for group in self._groups.expired(plan.now_s):
            retry_after_s = self._admission.retry_after_s(self._classes.get(group.granted), self._queue)
            plan.expired.append(group.expire(plan.now_s, retry_after_s))
            self._counters.num_expired += len(group.members)
            for request in tuple(group.members.values()):
                self._finish(request, FinishReason.ABORT)

    def _make_room_for_head(self, plan: StepPlan) -> None:
        """Let strictly lower classes yield to the head of the queue, if that is enough for it to start."""
        head = self._head()
        if head is None or next(self._running.below(head.rank), None) is None:
            return
        start = self._starts.needs_of(head)
        num_missing = start.num_free_blocks - self._kv.pool.num_free_blocks - self._steps.num_blocks_coming()
        victims = self._preemption.victims_for_head(head, num_missing, start.computed_blocks, plan.num_victims_left)
        if victims:
            plan.beneficiary = head
        for victim in victims:
            self._preempt(victim, plan)

    def _schedule_decodes(self, plan: StepPlan) -> list[Request]:
        """Give one token to each running request that lacks one; return those that lack more, in policy order."""
        prefills = []
        for request in self._running:  # most senior first: whoever yields is not scheduled yet
            if request.status is not RequestStatus.RUNNING:
                continue
            num_tokens = request.num_tokens_to_compute
            if num_tokens > 1:
                prefills.append(request)
            elif num_tokens == 1 and self._make_room_for_token(request, plan):
                first_block = len(request.block_ids)
                added = self._kv.allocate_slots(request, request.position + 1)
                assert added is not None
                plan.add(request, 1, first_block, added)
        return sorted((r for r in prefills if r.status is RequestStatus.RUNNING), key=_order)

    def _make_room_for_token(self, request: Request, plan: StepPlan) -> bool:
        """Make sure that the next token has a slot. False: not in this step, or the request yielded itself."""
        num_missing = self._kv.num_blocks_to_take(request, request.position + 1) - self._kv.pool.num_free_blocks
        if num_missing <= 0:
            return True
        num_missing -= self._steps.num_blocks_coming()
        if num_missing > 0 and plan.num_victims_left > 0:
            victims = self._preemption.victims_for_block(request, num_missing, plan.num_victims_left)
            assert plan.beneficiary is None, "the room made for the head was to leave enough for this token"
            for victim in victims or [request]:
                self._preempt(victim, plan)
        if request.status is RequestStatus.RUNNING and self._kv.pool.num_free_blocks > 0:
            return True
        plan.explain("no_block_for_decode")
        return False

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        """Take its blocks; it waits with its old place in the order, and computes its tokens again."""
        self._running.remove(request)
        self._give_back(request)
        request.forget_computed()
        request.num_preemptions += 1
        request.move(RequestStatus.WAITING)
        self._queue.push(request)
        self._queue.unpark(request.request_id)
        self._counters.num_preemptions += 1
        plan.preempted.append(request.request_id)
        plan.num_victims_left -= 1

    def _schedule_prefills(self, prefills: Sequence[Request], plan: StepPlan) -> None:
        """Spend the rest of the budget in the policy's order, on what runs and what waits."""
        running = iter(prefills)
        partial = next(running, None)
        head = self._head()
        while plan.num_tokens_left > 0:
            if partial is not None and (head is None or partial.order < head.order):
                num_tokens = min(partial.num_tokens_to_compute, plan.num_tokens_left)
                plan.add(partial, num_tokens, len(partial.block_ids), ())
                partial = next(running, None)
            elif head is not None:
                head = self._head() if self._start(head, plan) else None  # nobody overtakes the head
            else:
                return
        if partial is not None or head is not None:
            plan.explain("no_tokens")

    def _head(self) -> Request | None:
        """The first waiting request, past those whose leader still computes their prompt."""
        while (head := self._queue.head()) is not None:
            leader = self._starts.leader_of(head)
            if leader is None or leader.num_computed_tokens >= head.spec.num_prompt_tokens:
                return head
            self._queue.remove(head)
            self._queue.park(head)
        return None

    def _start(self, request: Request, plan: StepPlan) -> bool:
        """Let a waiting request run and compute its first tokens. False: it lacks something, nothing changed."""
        if plan.preempted and request is not plan.beneficiary:
            plan.explain("preempted")
            return False
        if len(self._running) >= self._config.max_num_seqs:
            plan.explain("no_seat")
            return False
        start = self._starts.needs_of(request)
        watermark = self._watermark_blocks if len(self._running) else 0
        if start.num_free_blocks + watermark > self._kv.pool.num_free_blocks:
            plan.explain("no_blocks")
            return False
        self._run(request, start, plan)
        return True

    def _run(self, request: Request, start: StartNeeds, plan: StepPlan) -> None:
        if start.leader is not None:
            plan.copy(self._kv.fork(start.leader, request))
            request.num_computed_tokens = request.spec.num_prompt_tokens - 1
        else:
            added = self._kv.allocate_slots(request, start.num_slots, start.computed_blocks)
            assert added is not None
            request.num_computed_tokens = len(start.computed_blocks) * self._config.block_size
        self._queue.remove(request)
        request.move(RequestStatus.RUNNING)
        self._running.add(request)
        self._groups.start(request.spec.group_id)
        if request.admitted_s is None:
            self._admit(request, start.leader, plan)
        plan.add(request, min(request.num_tokens_to_compute, plan.num_tokens_left), 0, tuple(request.block_ids))

    def _admit(self, request: Request, leader: Request | None, plan: StepPlan) -> None:
        """Its first start: from here the promise counts."""
        request.admitted_s = plan.now_s
        if leader is None:
            request.num_cached_tokens = request.num_computed_tokens
        else:
            request.num_cached_tokens = leader.num_cached_tokens
            self._counters.prompt_tokens_shared += request.num_computed_tokens
        spec, slo_class = request.spec, self._classes.get(request.spec.slo.granted)
        floor = self._link.floor(spec.slo.granted)
        plan.admissions.append(
            Admission(
                spec.request_id,
                spec.group_id,
                request.num_cached_tokens,
                spec.slo.ttft_target_s(slo_class, spec.num_prompt_tokens - request.num_cached_tokens),
                spec.slo.tpot_target_s(slo_class),
                floor is not None and floor.is_late(spec.slo.tpot_s),
            )
        )

    # The parts of `update`.

    def _take_in(self, entry: StepEntry, result: RequestResult, now_s: float) -> FinishReason | None:
        """Commit one request's part; why it is finished, or None."""
        request = entry.request
        if request.status is RequestStatus.FINISHED:
            self._counters.discarded_tokens += result.num_sampled
            return None
        if result.finish_reason is FinishReason.ERROR:
            return FinishReason.ERROR
        request.block_hashes.extend(result.new_block_hashes)  # they name tokens: true even if the blocks are gone
        if request.num_preemptions != entry.num_preemptions:
            self._counters.discarded_tokens += result.num_sampled
            return None
        start, num_prompt_tokens = request.num_computed_tokens, request.spec.num_prompt_tokens
        request.commit(entry.num_tokens, entry.samples, now_s)
        end = request.num_computed_tokens
        self._counters.count_computed(start, end, request.num_lost_tokens, num_prompt_tokens)
        self._counters.generation_tokens += entry.samples
        self._kv.commit(request)
        if start < num_prompt_tokens <= end:
            self._queue.unpark(request.request_id)
        if result.finish_reason is not None:
            return result.finish_reason
        return FinishReason.LENGTH if request.has_reached_length else None

    def _finish(self, request: Request, reason: FinishReason) -> FinishedRequest:
        """The one way out: gives everything back, at once or when the step in flight is done."""
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
            self._give_back(request)
        else:
            self._queue.remove(request)
        request.move(RequestStatus.FINISHED)
        request.finish_reason = reason
        del self._requests[request.request_id]
        self._groups.remove(request)
        self._queue.unpark(request.request_id)
        return FinishedRequest(request.request_id, request.spec.group_id, reason)

    def _give_back(self, request: Request) -> None:
        block_ids = self._kv.detach(request)
        if not self._steps.hold(request, block_ids):
            self._kv.release(block_ids)


def _order(request: Request) -> OrderKey:
    return request.order
