"""Which request computes how many tokens in a step, and with which blocks.

A step is a map from requests to numbers of tokens; prefill, chunk, decode and recomputation are values of that number.
`schedule` puts it together in four moves: (1) groups that waited too long expire; (2) if the first waiting request
lacks a seat or blocks, strictly lower classes may yield to it; (3) every running request that lacks one token gets it,
unless the step would be too long and its token is not due; if it lacks a block, the least senior running request
yields; (4) what is left of the time and token budgets goes to prefills, those that run and those that wait alike, in
the policy's order. A request starts only if all its known tokens find room, and gets that room at once: only decodes
can run short later.

One step may be in flight: `schedule` may come once more before `update`. References of requests that leave meanwhile
stay with the youngest step in flight that uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.admission import AdmissionControl
from scheduler.chunk_tile import ChunkTile
from scheduler.class_shares import ClassShares
from scheduler.config import SchedulerConfig
from scheduler.decode_load import DecodeLoad
from scheduler.decode_phase import DecodePhase
from scheduler.disk_fetch import DiskFetch
from scheduler.groups import Group, GroupTable, check_group
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.kv_transfer import NO_TIERS, TierConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.memory_demand import memory_demand
from scheduler.output import FinishedRequest, RequestResult, SchedulerOutput, StepResult, Verdict, VerdictKind
from scheduler.policy import Policy, new_request
from scheduler.preemption import Preemption
from scheduler.prefill_pace import PrefillPace
from scheduler.prefill_phase import PrefillPhase
from scheduler.request import FinishReason, Request, RequestSpec, RequestStatus
from scheduler.restore_price import RestorePrices
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from scheduler.start_needs import StartPlanner
from scheduler.starter import Starter
from scheduler.stats import SchedulerCounters, SchedulerStats
from scheduler.step_account import StepAccount
from scheduler.step_budget import BudgetLimits, StepBudget
from scheduler.step_plan import StepPlan
from scheduler.step_timing import StepTiming
from scheduler.steps_in_flight import StepEntry, StepsInFlight
from scheduler.swap_out import SwapOut
from scheduler.tier_stats import tier_stats
from scheduler.transfer_intake import TransferIntake
from scheduler.waiting_queue import WaitingQueue
from scheduler.yielding import Yielding

MAX_UNUPDATED_STEPS = 2
"""The one in flight, and the one scheduled beside it."""
CHARGED_OUTPUT_TOKENS = 8
"""Output is charged to its tenant in portions, not at every step."""


class Scheduler:
    """Owns the requests and, through KVCacheManager, the device blocks. No clock, no randomness, no token ids."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        num_blocks: int,
        max_model_len: int,
        latency: LatencyModel | None = None,
        tiers: TierConfig = NO_TIERS,
    ) -> None:
        """
        Args:
            latency: predicts steps and learns from them; of this scheduler alone. None: nothing is predicted.
            tiers: beside the device.
        """
        self._config = config
        self._classes = classes
        self._policy = Policy(config.scheduler_policy, classes)
        rights = self._policy.rights
        self._kv = KVCacheManager(num_blocks, config.block_size, config.enable_prefix_caching, tiers)
        self._watermark_blocks = max(1, num_blocks // 100)
        self._requests: dict[str, Request] = {}
        self._prices = RestorePrices(self._kv.tiers, latency, config.block_size, config.max_num_batched_tokens)
        self._starts = StartPlanner(self._requests, self._kv, config.max_preemptions, self._prices)
        self._groups = GroupTable()
        self._queue = WaitingQueue(self._kv.num_blocks_for, classes.names, is_fair=rights.is_fair)
        self._running = RunningSet()
        self._steps = StepsInFlight(MAX_UNUPDATED_STEPS, self._kv.pool)
        self._decode_load = None if latency is None else DecodeLoad(latency, skips=rights.skips_decodes)
        self._shares = ClassShares.of(classes) if rights.has_shares else None
        self._admission = AdmissionControl(
            config,
            self._policy,
            max_model_len,
            self._watermark_blocks,
            self._queue,
            self._running,
            self._kv.pool,
            latency,
            self._shares,
        )
        self._fetch = DiskFetch(self._kv, self._prices, self._queue)
        self._counters = SchedulerCounters()
        self._timing = StepTiming(latency)
        self._budget_model = latency if rights.has_time_budget else None
        self._limits = BudgetLimits(max_s=config.max_step_s, long_prompt_tokens=config.long_prompt_tokens)
        self._tile = ChunkTile(self._budget_model, config.block_size, config.max_num_batched_tokens)
        self._pace = PrefillPace(self._tile.s_per_token)
        preemption = Preemption(
            config, self._running, self._kv, self._watermark_blocks, None if latency is None else self._prices
        )
        self._yielding = Yielding(
            self._kv,
            self._queue,
            self._running,
            self._steps,
            self._starts,
            preemption,
            SwapOut(self._kv, self._prices, config.preemption_mode),
            self._admission,
            self._pace,
            self._counters,
            self._watermark_blocks,
        )
        self._transfers = TransferIntake(self._kv.tiers, self._fetch, self._queue, self._running, self._yielding)
        self._steps_done = StepAccount(self._queue, self._admission, self._pace, self._shares)
        self._decodes = DecodePhase(
            config, self._policy, self._running, self._kv, self._steps, preemption, self._yielding.preempt
        )
        starter = Starter(
            config,
            self._starts,
            self._kv,
            self._queue,
            self._running,
            self._groups,
            self._counters,
            self._watermark_blocks,
            self._decode_load if rights.gates_starts else None,
            self._is_late,
        )
        self._prefills = PrefillPhase(
            config,
            classes,
            self._policy,
            self._queue,
            self._running,
            self._starts,
            starter,
            self._admission,
            self._shares,
            self._tile,
            self._pace,
            self._kv,
            self._fetch,
        )
        self._next_step_id = 0
        self._end_s = 0.0
        """Predicted end of the youngest step in flight."""
        self._link = NO_LINK

    def observe(self, link: LinkSnapshot) -> None:
        """Take in the state of the link and the placement of weights: what `add` and `schedule` judge by from here.

        Blocks at or beyond the border go to nobody; requests that hold some keep them.
        """
        self._link = link
        self._kv.pool.set_limit(self._kv.pool.num_blocks if link.num_blocks is None else link.num_blocks)
        self._admission.observe_link(link)
        if self._decode_load is not None:
            self._decode_load.observe_link(link)

    def add(self, group: tuple[RequestSpec, ...], now_s: float) -> Verdict:
        """Judge a group on arrival; unless refused, its choices are live from here.

        Raises:
            ValueError: the group contradicts itself, or an id is live already.
            KeyError: its class does not exist.
        """
        check_group(group)
        first = group[0]
        if first.group_id in self._groups or any(s.request_id in self._requests for s in group):
            raise ValueError(f"group {first.group_id!r} or one of its requests is live already")
        verdict = self._admission.judge(group, now_s)
        if verdict.kind is VerdictKind.REFUSE:
            return verdict
        slo = dataclasses.replace(first.slo, granted=verdict.granted)
        if verdict.kind is VerdictKind.DEGRADE:  # targets of its own were those it could not have
            slo = dataclasses.replace(slo, ttft_s=None, tpot_s=None)
        members = {
            spec.request_id: new_request(dataclasses.replace(spec, slo=slo), index, self._policy, self._config.egress_s)
            for index, spec in enumerate(group)
        }
        expiry_s = first.arrival_s + slo.start_limit_s(self._classes.get(slo.granted))
        self._groups.add(Group(first.group_id, slo.granted, first.arrival_s, expiry_s, dict(members)))
        self._requests.update(members)
        for request in members.values():
            if request.spec.leader_id is None:
                self._queue.push(request)
                self._fetch.arrived(request)
            else:
                self._queue.park(request, request.spec.leader_id)
            self._admission.added(request)
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
        if self._decode_load is not None:
            self._decode_load.wanted_s = self._admission.wanted_tpot_s(now_s)
        self._kv.tiers.observe(link, now_s)
        # Who restarts competes with what waits; where nothing does, the machine is its own.
        self._prices.observe(link, self._pace.seen_s_per_token if self._queue.num_requests else None)
        self._expire(plan)
        self._refuse_closed(plan)
        self._fetch.run(now_s)
        if (head := self._prefills.in_need(now_s)) is not None:
            self._yielding.make_room_for(head, plan)
        start_s = max(now_s, self._end_s) if len(self._steps) else now_s
        budget = StepBudget(self._budget_model, link, start_s, self._limits, self._tile)
        prefills = self._decodes.run(plan, budget)
        self._prefills.run(prefills, plan, budget)
        self._kv.tiers.copy_in_background(is_idle=plan.num_tokens == 0)
        for reason in budget.reasons:
            plan.explain(reason)
        is_alone = not len(self._steps) and not plan.has_copies
        features = budget.features_of(plan.num_tokens, plan.num_samples)
        prediction = self._timing.begin(plan.scheduled, link, is_alone=is_alone, features=features)
        if prediction is not None:
            prediction = prediction.after(budget.stall_s)
            self._end_s = start_s + prediction.mean_s
        num_seats = self._config.max_num_seqs - len(self._running)
        demand = memory_demand(
            self._running, self._queue, self._kv.pool, num_seats, self._classes, link, self._timing.decode_pace(link)
        )
        output, step = plan.seal(demand, prediction, budget.budget_s, self._kv.tiers.take_outgoing())
        self._steps.push(step)
        return output

    def update(self, output: SchedulerOutput, result: StepResult, now_s: float) -> tuple[FinishedRequest, ...]:
        """Take in what came of the oldest step that is not updated.

        Raises:
            ValueError: it is another step, or the results do not fit what was scheduled; nothing changed.
        """
        self._transfers.require(result.transfers)
        step, results = self._steps.pop(output, result)
        self._transfers.take_in(result.transfers)
        finished = []
        for entry, one in zip(step.entries, results, strict=True):
            reason = self._take_in(entry, one, now_s)
            if reason is not None:
                finished.append(self._finish(entry.request, reason))
        self._kv.release(step.held_block_ids)
        duration_s = now_s - output.now_s
        self._timing.end(step.prediction, result, duration_s)
        self._steps_done.add(step, output.num_tokens, duration_s)
        return tuple(finished)

    def has_work(self) -> bool:
        """Whether any request is live."""
        return bool(self._requests)

    def has_background_work(self) -> bool:
        """Whether `schedule` may start copies that nobody waits for."""
        return self._kv.tiers.has_background_work()

    def next_wakeup_s(self) -> float | None:
        """When the next waiting group expires or stops waiting for the disk, if nothing runs; None: there is nothing to
        wake up for.
        """
        if len(self._running):
            return None
        wakeups_s = (self._groups.next_expiry_s(), self._fetch.next_wakeup_s())
        return min((wakeup_s for wakeup_s in wakeups_s if wakeup_s is not None), default=None)

    def stats(self) -> SchedulerStats:
        """Gauges of now and totals so far."""
        tiers = tier_stats(self._kv.tiers, self._config.block_size)
        return self._counters.snapshot(len(self._running), self._queue, self._kv, self._admission.stats(), tiers)

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
        self._pace.check()
        self._admission.check(self._requests.values())
        if self._shares is not None:
            self._shares.check()
        for request in self._requests.values():
            request.check()
            self._steps.check(request)
            assert request.num_preemptions <= self._config.max_preemptions, f"{request.request_id}: preempted too often"
        self._fetch.check()
        for request in self._queue.parked():
            if request.has_read_disk:
                continue
            leader = self._requests[request.spec.leader_id or ""]
            has_prompt = leader.num_computed_tokens >= request.spec.num_prompt_tokens and not leader.load_ids
            assert not has_prompt, f"{request.request_id}: parked for long"
            assert leader.status is RequestStatus.RUNNING or leader.num_lives == 0

    # The moves of `schedule`.

    def _expire(self, plan: StepPlan) -> None:
        for group in self._groups.expired(plan.now_s):
            retry_after_s = self._admission.retry_after_s(self._classes.get(group.granted))
            plan.expired.append(group.expire(plan.now_s, retry_after_s))
            self._counters.num_expired += len(group.members)
            for request in tuple(group.members.values()):
                self._finish(request, FinishReason.ABORT)

    def _refuse_closed(self, plan: StepPlan) -> None:
        """Groups that wait in a class that has closed meanwhile are refused now, not served late."""
        if not self._admission.has_new_floors():
            return
        for group in self._groups.not_started():
            if (why := self._admission.why_closed(next(iter(group.members.values())))) is not None:
                plan.expired.append(group.refuse(why))
                for request in tuple(group.members.values()):
                    self._finish(request, FinishReason.ABORT)

    def _is_late(self, request: Request) -> bool:
        """Whether the plan in force cannot meet its targets, whatever the load."""
        floor = self._link.floor(request.slo_class.name)
        return floor is not None and floor.is_late(request.spec.slo.tpot_s)

    # The parts of `update`.

    def _take_in(self, entry: StepEntry, result: RequestResult, now_s: float) -> FinishReason | None:
        """Commit one request's part; why it is finished, or None."""
        request = entry.request
        if request.status is RequestStatus.FINISHED:
            self._counters.discarded_tokens += result.num_sampled
            return None
        if result.finish_reason is FinishReason.ERROR:
            return FinishReason.ERROR
        if result.new_block_hashes:
            request.block_hashes.extend(result.new_block_hashes)  # they name tokens: true even if the blocks are gone
        if request.num_lives != entry.num_lives:
            self._counters.discarded_tokens += result.num_sampled
            return None
        assert not request.load_ids and result.num_sampled == entry.samples, f"{request.request_id}: no part of a step"
        start, num_prompt_tokens = request.num_computed_tokens, request.num_prompt_tokens
        request.commit(entry.num_tokens, entry.samples, now_s)
        self._counters.generation_tokens += entry.samples
        self._kv.commit(request)
        if start < num_prompt_tokens or start < request.num_lost_tokens:
            end = request.num_computed_tokens
            self._counters.count_computed(start, end, request.num_lost_tokens, num_prompt_tokens)
            if start < num_prompt_tokens:
                self._admission.computed(request)
                if num_prompt_tokens <= end:
                    self._queue.unpark(request.request_id)
        if entry.samples:
            self._admission.emitted(request, now_s)
            if request.num_output_tokens % CHARGED_OUTPUT_TOKENS == 0:
                self._charge(request, 0, CHARGED_OUTPUT_TOKENS)
        if result.finish_reason is not None:
            return result.finish_reason
        return FinishReason.LENGTH if request.has_reached_length else None

    def _charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self._queue.charge(request.slo_class.name, request.spec.tenant, num_prompt_tokens, num_output_tokens)

    def _finish(self, request: Request, reason: FinishReason) -> FinishedRequest:
        """The one way out: gives everything back, at once or when the step in flight is done."""
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
            self._yielding.give_back(request)
        else:
            self._queue.remove(request)
            self._fetch.forget(request)
        request.load_ids = frozenset()
        request.is_placed = False
        request.move(RequestStatus.FINISHED)
        request.finish_reason = reason
        del self._requests[request.request_id]
        self._groups.remove(request)
        self._queue.unpark(request.request_id)
        self._admission.left(request)
        self._charge(request, 0, request.num_output_tokens % CHARGED_OUTPUT_TOKENS)
        return FinishedRequest(request.request_id, request.spec.group_id, reason)
