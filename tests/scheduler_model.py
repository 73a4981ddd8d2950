"""An engine core without an engine: drives a Scheduler and its twin, computes on `DeviceModel`, keeps the books."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.output import (
    FinishedRequest,
    RefusalReason,
    RequestResult,
    SchedulerOutput,
    StepResult,
    Verdict,
    VerdictKind,
)
from scheduler.promise_test import STALE_S
from scheduler.request import FinishReason, RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import SLO, SLOClass, SLOClasses
from scheduler.token_deadlines import TokenDeadlines
from tests.device_model import STOP_TOKEN, DeviceModel, block_hashes
from tests.scheduler_books import Part, SchedulerBooks, Step

T = TypeVar("T")


def small_classes(queue_cap_tokens: int = 30, max_wait_s: float = 20.0, *, has_guarantees: bool = False) -> SLOClasses:
    """Three classes with room for little; with guarantees, the upper two are refused or degraded if they were late."""
    upper: tuple[Literal["refuse", "degrade", "queue"], ...] = (
        ("degrade", "refuse") if has_guarantees else ("queue", "queue")
    )
    return SLOClasses(
        tuple(
            SLOClass(
                name, rank, (f"tier{rank}",), base_s, 100.0, tpot_s, 1.0, rank < 2, late, lower, 0.9, 0.3, cap, wait_s
            )
            for rank, (name, base_s, tpot_s, late, lower, cap, wait_s) in enumerate(
                (
                    ("high", 0.5, 0.1, upper[0], "middle", queue_cap_tokens, max_wait_s / 4),
                    ("middle", 2.0, 0.1, upper[1], None, 2 * queue_cap_tokens, max_wait_s),
                    ("low", 50.0, 0.4, "queue", None, 4 * queue_cap_tokens, 2 * max_wait_s),
                )
            )
        ),
        default="middle",
    )


class SchedulerModel(SchedulerBooks):
    """Feeds two equal schedulers; asserts that they agree with each other, with the books and with the device."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        num_blocks: int,
        max_model_len: int,
        coefficients: LatencyCoefficients | None = None,
    ) -> None:
        """
        Args:
            coefficients: of the latency model; None: nothing is predicted.
        """

        def model() -> LatencyModel | None:
            return None if coefficients is None else LatencyModel(coefficients)

        super().__init__(config, classes, num_blocks, max_model_len, model())
        self.scheduler, self._twin = (Scheduler(config, classes, num_blocks, max_model_len, model()) for _ in range(2))
        self._device = DeviceModel(num_blocks, config.block_size)
        self.duration_of: Callable[[SchedulerOutput], float] = lambda _: 0.0
        """Of a step, once those before it are done."""
        self.is_exact = False
        """Steps take exactly as long as predicted."""
        self.failing: set[str] = set()
        """Requests whose next result is an error."""
        self.retries: list[tuple[float, dict[str, Any]]] = []
        """Groups refused for want of room: when to come back, and what was asked for."""
        self.next_link = NO_LINK
        self._deadlines: dict[str, TokenDeadlines] = {}
        self._num_groups = 0

    def move_border(self, num_blocks: int | None) -> None:
        """From the next step on only blocks below the border go out; None: all."""
        self.move(dataclasses.replace(self.link, num_blocks=num_blocks))

    def move(self, link: LinkSnapshot) -> None:
        """What the scheduler is shown from the next step on."""
        self.next_link = link

    def _check_border(self, output: SchedulerOutput, used_before: set[int]) -> None:
        """Beyond the border only what is used already may be shared."""
        for scheduled in output.scheduled:
            is_fine = all(b < self.border or b in used_before for b in scheduled.new_block_ids)
            assert is_fine, "a block beyond the border"
        if not self.steps:
            used = {b for table in self._tables.values() for b in table if b >= self.border}
            assert output.demand.num_blocks_beyond == len(used)

    def _both(self, call: Callable[[Scheduler], T]) -> T:
        first, second = call(self.scheduler), call(self._twin)
        assert first == second, f"two schedulers with the same history disagree:\n{first}\n{second}"
        return first

    def add(
        self,
        prompts: list[list[int]],
        n: int,
        max_tokens: int,
        slo: SLO,
        salt: str = "",
        reads_prefix_cache: bool = True,
        tenant: str = "",
    ) -> Verdict:
        """Offer a group; judge the verdict."""
        asked: dict[str, Any] = {"prompts": prompts, "n": n, "max_tokens": max_tokens, "slo": slo, "salt": salt}
        asked["reads_prefix_cache"] = reads_prefix_cache
        specs, chains = self._specs(prompts, n, max_tokens, slo, salt)
        specs = [dataclasses.replace(s, reads_prefix_cache=reads_prefix_cache, tenant=tenant) for s in specs]
        verdict = self._both(lambda s: s.add(tuple(specs), self.now_s))
        self._judge(verdict, specs)
        if verdict.retry_after_s is not None:
            self.retries.append((self.now_s + verdict.retry_after_s, asked))
        for index, (spec, chain) in enumerate(zip(specs, chains, strict=True)):
            if verdict.kind is VerdictKind.REFUSE:
                self._end(spec.request_id, "refused")
            else:
                self.live[spec.request_id] = self._sequence(spec, index, verdict.granted, chain)
                self._deadlines[spec.request_id] = self.scheduler._requests[spec.request_id].deadlines
        return verdict

    def _specs(
        self, prompts: list[list[int]], n: int, max_tokens: int, slo: SLO, salt: str
    ) -> tuple[list[RequestSpec], list[list[int]]]:
        """Choice i has prompt i // n; also the prefix ids of each choice's prompt."""
        group_id = f"g{self._num_groups}"
        self._num_groups += 1
        specs: list[RequestSpec] = []
        chains: list[list[int]] = []
        for prompt in prompts:
            chain: list[int] = []
            for token in prompt:
                chain.append(self._prefix_ids.extend(chain[-1] if chain else self._prefix_ids.root(salt), token))
            leader_id = f"{group_id}/{len(specs)}"
            for _ in range(n):
                request_id = f"{group_id}/{len(specs)}"
                hashes = block_hashes(chain, self.config.block_size)
                leader = None if request_id == leader_id else leader_id
                specs.append(
                    RequestSpec(request_id, group_id, len(prompt), max_tokens, hashes, slo, self.now_s, leader)
                )
                chains.append(list(chain))
        return specs, chains

    def abort(self, request_ids: list[str]) -> None:
        """Cancel; ids may be unknown, finished or repeated."""
        expected = [i for i in dict.fromkeys(request_ids) if i in self.live]
        finished = self._both(lambda s: s.abort(request_ids, self.now_s))
        assert [f.request_id for f in finished] == expected
        assert all(f.finish_reason is FinishReason.ABORT for f in finished)
        for request_id in expected:
            self._leave(request_id, "abort")
        assert self._both(lambda s: s.abort(request_ids, self.now_s)) == ()

    def schedule(self) -> SchedulerOutput:
        """Schedule one step and check it; it stays in flight."""
        before = {i: s for i, s in self.live.items() if i in self._tables}
        used_before = {b for table in self._tables.values() for b in table}
        used_before |= {b for step in self.steps for part in step.parts for b in part.table}
        self.link = link = self.next_link
        self.border = self.num_blocks if link.num_blocks is None else min(link.num_blocks, self.num_blocks)
        output = self._both(lambda s: s.schedule(self.now_s, link))
        self._check_left(output)
        self._check_preempted(output, before)
        starts = self._apply(output)
        self._check_starts(output, starts)
        self._check_protected(output)
        self._check_border(output, used_before)
        parts = [Part(s, self.live[s.request_id], tuple(self._tables[s.request_id])) for s in output.scheduled]
        start_s = max(self.now_s, self.steps[-1].end_s) if self.steps else self.now_s
        self.steps.append(Step(output, tuple(parts), start_s + self.duration_of(output)))
        if len(self.steps) == 1 and self.live and self.link.num_blocks is None:
            assert output.scheduled, f"nothing is scheduled, {len(self.live)} requests are live: {output.reasons}"
        return output

    def execute(self, step: Step) -> None:
        """Compute a step on the device; steps are executed in order, at the latest when they are updated."""
        if step.executed:
            return
        step.executed = True
        self._device.copy(step.output.block_copies)
        self._device.execute([(p.scheduled, p.sequence, p.table) for p in step.parts])
        for part in step.parts:
            if part.scheduled.samples and part.sequence.request_id not in step.void:
                step.tokens[part.sequence.request_id] = part.sequence.sample()

    def update(self) -> tuple[FinishedRequest, ...]:
        """Take in the oldest step."""
        self.execute(self.steps[0])
        step = self.steps.popleft()
        self.now_s = max(self.now_s, step.end_s)
        result = StepResult(step.output.step_id, tuple(self._result(step, part) for part in step.parts))
        finished = self._both(lambda s: s.update(step.output, result, self.now_s))
        assert [f.request_id for f in finished] == self._expected_finishes(step, result)
        for one in finished:
            if self._deadlines.pop(one.request_id).num_misses == 0:
                self.counts.check_kept(one.request_id)
            self._leave(one.request_id, one.finish_reason.value)
        self.failing.clear()
        return finished

    def _result(self, step: Step, part: Part) -> RequestResult:
        sequence, scheduled = part.sequence, part.scheduled
        if sequence.request_id in self.failing:
            return RequestResult(sequence.request_id, 0, FinishReason.ERROR, ())
        end = scheduled.num_computed_tokens + scheduled.num_tokens
        hashes = sequence.hash_full_blocks(end, self.config.block_size)
        is_stop = step.tokens.get(sequence.request_id) == STOP_TOKEN
        return RequestResult(
            sequence.request_id, int(scheduled.samples), FinishReason.STOP if is_stop else None, hashes
        )

    def check(self) -> None:
        """Between any two calls."""
        self.scheduler.check()
        assert self.scheduler.has_work() == bool(self.live)
        stats = self.scheduler.stats()
        assert stats == self._twin.stats()
        assert stats.num_running == len(self._tables)
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert stats.num_preemptions == self.num_preemptions
        self.counts.check(stats, set(self._tables))
        assert len(self.live) <= self.config.max_num_seqs + self.config.max_queued_requests
        held = {b for table in self._tables.values() for b in table}
        in_flight = {b for step in self.steps for part in step.parts for b in part.table}
        in_flight |= {copy.source for step in self.steps for copy in step.output.block_copies}
        assert len(held) <= stats.num_blocks_used <= len(held | in_flight), "blocks are lost"

    def schedule_in_step(self) -> SchedulerOutput:
        """One whole step, with nothing left in flight."""
        while self.steps:
            self.update()
        output = self.schedule()
        self.update()
        return output

    def drain(self) -> None:
        """Run to the end; every step computes something, and recomputation is bounded, so it comes."""
        self.move(NO_LINK)
        while self.steps:
            self.update()
        kv_tokens = sum(s.spec.num_prompt_tokens + s.spec.max_tokens for s in self.live.values())
        for _ in range(kv_tokens * (self.config.max_preemptions + 2) + 1):
            if not self.live:
                break
            self.schedule_in_step()
            self.check()
        assert not self.live, f"no end after the work of {kv_tokens} tokens: livelock"
        self.schedule_in_step()  # the link is shown once more, whether or not anything was left
        self.check()

    def retry(self) -> None:
        """Whoever comes back when told, and finds nobody waiting, is not refused.

        But for whose own targets cannot be kept even alone by now: its prefix is not cached any more, or steps have
        turned out to take longer than predicted.
        """
        has_changed = self._tests_promises and (self.config.enable_prefix_caching or not self.is_exact)
        for retry_s, asked in self.retries[-5:]:
            self.now_s = max(self.now_s, retry_s)
            verdict = self.add(**asked)
            if has_changed and verdict.retry_after_s == STALE_S:  # slower than the record for now: it is asked again
                self.now_s += STALE_S
                verdict = self.add(**asked)
            is_out_of_reach = has_changed and verdict.reason is RefusalReason.CLASS_CLOSED
            assert verdict.kind is not VerdictKind.REFUSE or is_out_of_reach, verdict
            self.abort(list(self.live))
            self.check()
