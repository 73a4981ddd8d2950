"""The books of a scheduler's user: what is owed after each call, computed from the calls alone.

One outcome a request, budgets, ranks, order, progress, protection of what is in flight. Nothing here looks inside the
scheduler.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque

from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.output import RefusalReason, ScheduledRequest, SchedulerOutput, StepResult, Verdict, VerdictKind
from scheduler.promise_test import STALE_S
from scheduler.request import FinishReason, RequestSpec
from scheduler.slo import SLOClasses
from tests.count_books import CountBooks
from tests.device_model import ModelSequence, PrefixIds
from tests.start_books import StartBooks
from tests.step_books import check_decodes, check_time


@dataclasses.dataclass(frozen=True)
class Part:
    """One request's part of a step, with its block table at that moment."""

    scheduled: ScheduledRequest
    sequence: ModelSequence
    table: tuple[int, ...]


@dataclasses.dataclass
class Step:
    """A step that was scheduled and not updated."""

    output: SchedulerOutput
    parts: tuple[Part, ...]
    end_s: float = 0.0
    """It is done no sooner."""
    executed: bool = False
    void: set[str] = dataclasses.field(default_factory=set)
    """Requests preempted since: their results are discarded."""
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)


class SchedulerBooks:
    """Follows every call, and asserts what must hold of its answer."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        num_blocks: int,
        max_model_len: int,
        model: LatencyModel | None = None,
    ) -> None:
        """
        Args:
            model: as that of the scheduler when it was made; it is only read.
        """
        self.config = config
        self.classes = classes
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self.now_s = 0.0
        self.live: dict[str, ModelSequence] = {}
        self.outcomes: dict[str, str] = {}
        self.steps: deque[Step] = deque()
        self._prefix_ids = PrefixIds()
        self._tables: dict[str, list[int]] = {}  # of running requests
        self._positions: dict[str, int] = {}  # past everything scheduled
        self._computed: dict[str, int] = {}  # past everything updated
        self._pending: dict[str, int] = {}  # samples in flight
        self._num_preemptions: dict[str, int] = {}
        self._num_lost: dict[str, int] = {}  # tokens computed before a preemption
        self._started_s: dict[str, float] = {}  # the last time
        self._started_groups: set[str] = set()
        self._admitted: set[str] = set()
        self._is_predicted = model is not None
        self._tests_promises = model is not None and config.admission == "promise" and config.scheduler_policy != "fcfs"
        self._starts = StartBooks(config, classes, model)
        self.counts = CountBooks(classes, config.egress_s, has_promises=self._tests_promises)
        self.spared: set[str] = set()
        """Of those that ran before the last step: those that a waiting request must not take from."""
        self.link = NO_LINK
        """As it was shown last."""
        self.border = num_blocks
        """Blocks at or beyond it go to nobody."""
        self.num_copies = 0
        self.num_preemptions = 0
        self.num_started_prompt_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self._tables)

    def _sequence(self, spec: RequestSpec, index: int, granted: str, chain: list[int]) -> ModelSequence:
        slo = dataclasses.replace(spec.slo, granted=granted)
        if granted != spec.slo.granted:  # targets of its own were those it could not have
            slo = dataclasses.replace(slo, ttft_s=None, tpot_s=None)
        spec = dataclasses.replace(spec, slo=slo)
        rank = self._starts.rank(spec)
        self._starts.added(spec)
        self.counts.added(spec)
        return ModelSequence(
            spec,
            rank,
            (*self._starts.key(spec), spec.arrival_s, spec.group_id, index),
            (rank, spec.arrival_s, spec.group_id, index),
            self._prefix_ids,
            chain,
            len(spec.block_hashes),
            spec.num_prompt_tokens,
        )

    def _judge(self, verdict: Verdict, specs: list[RequestSpec]) -> None:
        """NEVER_FITS exactly if a choice can never run alone; a refusal that can be retried says when."""
        fits = all(
            s.num_prompt_tokens + s.max_tokens <= self.max_model_len
            and -(-(s.num_prompt_tokens + max(s.max_tokens - 1, 0)) // self.config.block_size) <= self.num_blocks
            for s in specs
        ) and len(specs) <= (self.config.max_num_seqs + self.config.max_queued_requests)
        refused = verdict.kind is VerdictKind.REFUSE
        assert (verdict.reason is RefusalReason.NEVER_FITS) == (not fits)
        if refused and fits:
            self._judge_refusal(verdict, specs[0])
        assert refused or verdict.granted in self.classes.names
        if verdict.kind is VerdictKind.DEGRADE:
            assert specs[0].slo.may_degrade and verdict.granted == self.classes.get(specs[0].slo.granted).degrade_to

    def _judge_refusal(self, verdict: Verdict, spec: RequestSpec) -> None:
        """Only who makes promises refuses for them; whoever may come back is told when."""
        slo_class = self.classes.get(spec.slo.granted)
        is_guaranteed = slo_class.when_infeasible != "queue"
        if verdict.reason is RefusalReason.CLASS_CLOSED:
            assert verdict.retry_after_s is None and is_guaranteed
            assert self._is_closed(spec) or self._tests_promises, "an open class is closed"
            return
        assert verdict.retry_after_s is not None and 0 < verdict.retry_after_s < math.inf
        assert not self._is_closed(spec)
        if verdict.reason is RefusalReason.SLO_UNATTAINABLE:
            assert is_guaranteed and self._tests_promises
        # With nothing else there, only for as long as steps of late were slower than the record.
        is_slow = verdict.reason is RefusalReason.SLO_UNATTAINABLE and verdict.retry_after_s == STALE_S
        assert self.live or is_slow, "an idle instance refused what it can serve"

    def _is_closed(self, spec: RequestSpec) -> bool:
        """Whether the floors in force are beyond the targets in force, in a class that is refused for that."""
        slo, slo_class = spec.slo, self.classes.get(spec.slo.granted)
        floor = self.link.floor(slo_class.name)
        if floor is None or slo_class.when_infeasible == "queue":
            return False
        if slo.tpot_s is None:
            return not floor.is_open
        is_first_late = not floor.is_open and floor.ttft_s > (
            slo_class.ttft_base_s if slo.ttft_s is None else slo.ttft_s
        )
        return floor.tpot_s > slo.tpot_s or is_first_late

    def _expected_finishes(self, step: Step, result: StepResult) -> list[str]:
        """Commit the step to the books; who is done by them."""
        done = []
        self._starts.stepped(step.output, self.now_s - step.output.now_s)
        for part, one in zip(step.parts, result.results, strict=True):
            name, sequence, scheduled = part.sequence.request_id, part.sequence, part.scheduled
            if name in self.live and one.finish_reason is FinishReason.ERROR:
                done.append(name)
                continue
            if name not in self.live or name in step.void:
                self.counts.num_discarded += one.num_sampled
                continue
            self._computed[name] = scheduled.num_computed_tokens + scheduled.num_tokens
            self.counts.computed(name, scheduled.num_computed_tokens, self._computed[name])
            if scheduled.samples:
                self._pending[name] -= 1
                sequence.num_committed_tokens += 1
                self._starts.emitted(name)
                self.counts.sampled(name, self.now_s)
            spec = sequence.spec
            num_output = sequence.num_committed_tokens - spec.num_prompt_tokens
            is_full = num_output >= spec.max_tokens and self._computed[name] >= spec.num_prompt_tokens
            if one.finish_reason is FinishReason.STOP or is_full:
                done.append(name)
        return done

    def _end(self, request_id: str, outcome: str) -> None:
        assert request_id not in self.outcomes, f"{request_id}: {self.outcomes[request_id]}, then {outcome}"
        self.outcomes[request_id] = outcome

    def _leave(self, request_id: str, outcome: str) -> None:
        self._end(request_id, outcome)
        del self.live[request_id]
        self._starts.left(request_id)
        self.counts.left(request_id, outcome)
        self._stop_running(request_id)

    def _stop_running(self, request_id: str) -> None:
        for book in (self._tables, self._positions, self._computed, self._pending):
            book.pop(request_id, None)

    def _apply(self, output: SchedulerOutput) -> list[str]:
        """Enter a step into the books; returns who started."""
        assert output.num_tokens <= self.config.max_num_batched_tokens
        check_time(output)
        ready = [name for name in self._tables if self._num_to_compute(name) == 1]
        policy = self.config.scheduler_policy
        check_decodes(output, ready, policy, is_predicted=self._is_predicted)
        assert len({s.request_id for s in output.scheduled}) == len(output.scheduled)
        starts = []
        for scheduled in output.scheduled:
            name = scheduled.request_id
            sequence = self.live[name]
            if name not in self._tables:
                starts.append(name)
                self._start(scheduled, sequence, output)
            else:
                assert scheduled.first_block == len(self._tables[name])
                assert scheduled.num_computed_tokens == self._positions[name]
                self._tables[name].extend(scheduled.new_block_ids)
            end = scheduled.num_computed_tokens + scheduled.num_tokens
            known = sequence.num_committed_tokens + self._pending[name]
            assert scheduled.num_tokens >= 1 and end <= known
            assert end <= sequence.spec.num_prompt_tokens + max(sequence.spec.max_tokens - 1, 0)
            assert scheduled.samples == (end == known and sequence.spec.max_tokens > 0)
            assert len(self._tables[name]) * self.config.block_size >= end
            self._positions[name] = end
            self._pending[name] += scheduled.samples
        assert len(self._tables) <= self.config.max_num_seqs
        targets = {c.target for c in output.block_copies}
        assert sum(t in targets for table in self._tables.values() for t in table) == len(targets)
        self.num_copies += len(targets)
        return starts

    def _num_to_compute(self, name: str) -> int:
        """Tokens that a running request lacks, past those in flight."""
        sequence, spec = self.live[name], self.live[name].spec
        known = sequence.num_committed_tokens + self._pending[name]
        return min(known, spec.num_prompt_tokens + max(spec.max_tokens - 1, 0)) - self._positions[name]

    def _start(self, scheduled: ScheduledRequest, sequence: ModelSequence, output: SchedulerOutput) -> None:
        name, spec = scheduled.request_id, sequence.spec
        assert scheduled.first_block == 0
        self._tables[name] = list(scheduled.new_block_ids)
        self._pending[name] = 0
        self._computed[name] = scheduled.num_computed_tokens
        self._started_groups.add(spec.group_id)
        self._started_s[name] = self.now_s
        admission = next((a for a in output.admissions if a.request_id == name), None)
        assert (admission is None) == (name in self._admitted)
        if admission is not None:
            self._admitted.add(name)
            self.num_started_prompt_tokens += spec.num_prompt_tokens
            is_shared = spec.leader_id in self._tables
            num_known, ttft_s = scheduled.num_computed_tokens, admission.ttft_target_s
            self.counts.started(name, num_known, ttft_s, self.now_s, is_shared=is_shared)
        else:
            self.counts.restarted(name, scheduled.num_computed_tokens, self.now_s)
        is_pinned = self._num_preemptions.get(name, 0) >= self.config.max_preemptions
        last = spec.num_prompt_tokens + max(spec.max_tokens - 1, 0) if is_pinned else sequence.num_committed_tokens
        assert len(self._tables[name]) * self.config.block_size >= last, f"{name} starts without room"
        if not self.config.enable_prefix_caching and spec.leader_id is None:
            assert scheduled.num_computed_tokens == 0

    def _check_left(self, output: SchedulerOutput) -> None:
        """Exactly the groups that waited too long, and those whose class has closed before a choice started."""
        expected: dict[str, RefusalReason] = {}
        for sequence in self.live.values():
            spec = sequence.spec
            limit_s = self.classes.get(spec.slo.granted).max_wait_s
            if spec.slo.e2e_deadline_s is not None:
                limit_s = min(limit_s, spec.slo.e2e_deadline_s)
            if spec.group_id in self._started_groups:
                continue
            if self.now_s >= spec.arrival_s + limit_s:
                expected[spec.group_id] = RefusalReason.EXPIRED
            elif self._is_closed(spec):
                expected[spec.group_id] = RefusalReason.CLASS_CLOSED
        assert {e.group_id: e.reason for e in output.expired} == expected and len(output.expired) == len(expected)
        for one in output.expired:
            if one.reason is RefusalReason.EXPIRED:
                assert one.retry_after_s is not None and 0 < one.retry_after_s < math.inf
            for name in [n for n, s in self.live.items() if s.spec.group_id == one.group_id]:
                self._leave(name, "expired" if one.reason is RefusalReason.EXPIRED else "refused")

    def _check_preempted(self, output: SchedulerOutput, running: dict[str, ModelSequence]) -> None:
        """Nobody is preempted more than `max_preemptions` times, or yields to its junior."""
        assert len(output.preempted) <= self.config.max_victims_per_step
        assert not set(output.preempted) & {s.request_id for s in output.scheduled}
        stay = {n: s for n, s in running.items() if n not in output.preempted and n in self.live}
        could_yield = {n: s for n, s in stay.items() if not self._is_pinned(n) and self._has_own_block(n)}
        self.spared = {name for name in running if self._is_spared(name)}
        for name in output.preempted:
            assert name in running, f"{name} is preempted and does not run"
            assert not self._is_pinned(name), f"{name} is preempted too often"
            victim = running[name]
            if all(one.rank >= victim.rank for n, one in self.live.items() if n not in output.preempted):
                # Nobody of a higher class is there: it yielded to an equal, its senior, or for itself.
                juniors = {n: s for n, s in could_yield.items() if s.seniority > victim.seniority}
                assert all(s.rank == victim.rank and n in self.spared for n, s in juniors.items()), f"{juniors} stay"
                assert not juniors or any(s.seniority < victim.seniority for s in stay.values()), f"{name} has juniors"
        for name in output.preempted:
            self._num_lost[name] = max(self._num_lost.get(name, 0), self._computed[name])
            self._num_preemptions[name] = self._num_preemptions.get(name, 0) + 1
            self.num_preemptions += 1
            self._starts.preempted(name)
            for step in self.steps:
                if any(p.sequence.request_id == name for p in step.parts):
                    step.void.add(name)
            sequence = self.live[name]
            del sequence.chain[sequence.num_committed_tokens :]
            self._stop_running(name)

    def _is_pinned(self, name: str) -> bool:
        return self._num_preemptions.get(name, 0) >= self.config.max_preemptions

    def _is_spared(self, name: str) -> bool:
        """Within a block of its end, or back for less than a second or two blocks of new tokens."""
        spec, block_size = self.live[name].spec, self.config.block_size
        if spec.num_prompt_tokens + max(spec.max_tokens - 1, 0) - self._positions[name] <= block_size:
            return True
        if not self._num_preemptions.get(name, 0):
            return False
        num_new = self._computed[name] - self._num_lost[name]
        return num_new < 2 * block_size or self.now_s - self._started_s[name] < 1.0

    def _has_own_block(self, name: str) -> bool:
        """One that nobody else uses, and that may be handed out."""
        others = {b for other, table in self._tables.items() if other != name for b in table}
        for step in self.steps:
            others.update(copy.source for copy in step.output.block_copies)
            others.update(b for p in step.parts if p.sequence.request_id != name for b in p.table)
        return any(b not in others and b < self.border for b in self._tables[name])

    def _check_starts(self, output: SchedulerOutput, starts: list[str]) -> None:
        if output.preempted:
            assert len(starts) <= 1, "new requests start in a step that preempted"
            for start in starts:
                for victim in output.preempted:
                    assert self.live[start].rank < self.live[victim].rank, f"{victim} yields to its equal {start}"
                    assert victim not in self.spared, f"{victim} was to be spared"
            grew = any(s.new_block_ids and s.request_id not in starts for s in output.scheduled)
            lacked = grew or bool({"no_block_for_decode", "long_prompt"} & set(output.reasons))
            assert starts or lacked or self.steps, f"{output.preempted} yield, and nobody gains"
        # Whoever yielded, and the choices that waited for it, have their turn in the next step.
        away = set(output.preempted)
        waiting = [
            s
            for name, s in self.live.items()
            if not {name, s.spec.leader_id} & away and name not in self._tables and not self._waits_for_leader(s)
        ]
        candidates = [s for n, s in self.live.items() if n not in self._tables or self._computes_prompt(n)]
        self._starts.check([self.live[name] for name in starts], waiting, candidates, output)

    def _computes_prompt(self, name: str) -> bool:
        """Whether a running request may have lacked more than a token before this step."""
        return self.live[name].num_committed_tokens == self.live[name].spec.num_prompt_tokens or self._is_back(name)

    def _is_back(self, name: str) -> bool:
        return self._computed[name] <= self._num_lost.get(name, 0)

    def _waits_for_leader(self, sequence: ModelSequence) -> bool:
        leader_id = sequence.spec.leader_id
        if leader_id not in self._tables or self._num_preemptions.get(sequence.request_id, 0):
            return leader_id in self.live and leader_id not in self._admitted
        return self._computed[leader_id] < sequence.spec.num_prompt_tokens

    def _check_protected(self, output: SchedulerOutput) -> None:
        """What a step in flight reads or writes, no other request may write, and no copy may overwrite."""
        used = {b: p.sequence.request_id for step in self.steps for p in step.parts for b in p.table}
        shared_by = {b: {p.sequence.request_id for s in self.steps for p in s.parts if b in p.table} for b in used}
        size = self.config.block_size
        for scheduled in output.scheduled:
            name, start = scheduled.request_id, scheduled.num_computed_tokens
            table = self._tables[name]
            for block in table[start // size : (start + scheduled.num_tokens - 1) // size + 1]:
                assert shared_by.get(block, {name}) <= {name}, f"{name} writes block {block} of a step in flight"
        for copy in output.block_copies:
            assert copy.target not in used, f"block {copy.target} of a step in flight is overwritten"
