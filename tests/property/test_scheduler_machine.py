"""The scheduler under random groups, aborts, errors and time, in step and with a step in flight."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.config import SchedulerConfig
from scheduler.link import ClassFloor
from scheduler.slo import SLO
from tests.device_model import ALPHABET
from tests.latency_builders import make_coefficients
from tests.scheduler_model import SchedulerModel, small_classes

CLASS_NAMES = ("high", "middle", "low")


class SchedulerMachine(RuleBasedStateMachine):
    """Every rule is a call; `SchedulerModel` checks what comes of it."""

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(3, 14),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority", "edf", "deadline", "deadline"]),
        admission=st.sampled_from(["caps", "promise"]),
        is_predicted=st.booleans(),
        has_guarantees=st.booleans(),
        max_preemptions=st.integers(1, 3),
        max_victims=st.integers(1, 4),
    )
    def make(
        self,
        block_size,
        num_blocks,
        max_num_seqs,
        spare_tokens,
        caching,
        policy,
        admission,
        is_predicted,
        has_guarantees,
        max_preemptions,
        max_victims,
    ):
        config = SchedulerConfig(
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            max_queued_requests=8,
            enable_prefix_caching=caching,
            scheduler_policy=policy,
            admission=admission,
            max_preemptions=max_preemptions,
            max_victims_per_step=max_victims,
        )
        self.model = SchedulerModel(
            config,
            small_classes(has_guarantees=has_guarantees),
            num_blocks,
            num_blocks * block_size + 1,
            make_coefficients() if is_predicted else None,
        )

    @rule(num_blocks=st.one_of(st.none(), st.integers(1, 14)), num_streamed=st.integers(0, 10))
    def move_layers(self, num_blocks, num_streamed):
        """Layers come to or leave the device; what lies beyond the border is used up, not taken away."""
        border = None if num_blocks is None else min(num_blocks, self.model.num_blocks)
        self.move(num_blocks=border, num_streamed_layers=num_streamed, num_resident_layers=10 - num_streamed)

    def move(self, **changed):
        self.model.move(dataclasses.replace(self.model.next_link, **changed))

    @rule(names=st.sets(st.sampled_from(CLASS_NAMES)), tpot_s=st.sampled_from([0.02, 0.09]))
    def close_and_open(self, names, tpot_s):
        """Classes whose targets cannot be met by the plan in force; those that are never refused stay open."""
        floors = tuple(
            ClassFloor(c.name, c.when_infeasible == "queue" or c.name not in names, False, 1.0, tpot_s)
            for c in self.model.classes
        )
        self.move(classes=floors)

    @rule(
        data=st.data(),
        num_prompts=st.sampled_from([1, 1, 1, 2]),
        n=st.sampled_from([1, 1, 2, 3]),
        name=st.sampled_from(CLASS_NAMES),
        salt=st.sampled_from(["", "", "salt"]),
        reads=st.sampled_from([True, True, True, False]),
        degrade=st.booleans(),
        ttft_s=st.sampled_from([None, None, 0.1, 30.0]),
        tpot_s=st.sampled_from([None, None, 0.06]),
        e2e_s=st.sampled_from([None, None, None, 3.0]),
        tenant=st.sampled_from(["", "", "other"]),
    )
    def add(self, data, num_prompts, n, name, salt, reads, degrade, ttft_s, tpot_s, e2e_s, tenant):
        capacity = self.model.num_blocks * self.model.config.block_size
        # Few different prompts, so that prefixes are shared: a repeated token, and now and then another at the end.
        prompts = []
        for _ in range(num_prompts):
            length = data.draw(st.integers(1, max(1, capacity * 2 // 3)))
            tail = data.draw(st.lists(st.integers(1, ALPHABET), max_size=2))
            prompts.append([1 + i // 3 % ALPHABET for i in range(length)] + tail)
        max_tokens = data.draw(st.integers(0, max(1, capacity // 2)))
        slo = SLO(name, name, ttft_s, tpot_s, e2e_s, degrade)
        self.model.add(prompts, n, max_tokens, slo, salt, reads, tenant)

    @rule(off_by=st.sampled_from([-1, 0, 0, 1]), share=st.floats(0.0, 1.0), n=st.integers(1, 2), fill=st.booleans())
    def add_at_the_boundary(self, off_by, share, n, fill):
        """A request that needs all blocks but one, all of them, or one too many."""
        block_size = self.model.config.block_size
        capacity = (self.model.num_blocks + off_by) * block_size + (1 if fill else 2 - block_size)
        total = max(1, capacity)
        num_prompt = max(1, min(total, round(total * share)))
        self.model.add([[2] * num_prompt], n, total - num_prompt, SLO("low", "low"))

    @precondition(lambda self: self.model.num_running > 0)
    @rule(share=st.floats(0.3, 1.0), max_tokens=st.integers(0, 3), name=st.sampled_from(["high", "high", "middle"]))
    def add_above_what_runs(self, share, max_tokens, name):
        """A prompt of a high class that may find neither seat nor blocks."""
        capacity = self.model.num_blocks * self.model.config.block_size
        num_prompt = max(1, round((capacity - max_tokens) * share))
        self.model.add([[3] * num_prompt], 1, max_tokens, SLO(name, name))
        self.model.schedule_in_step()

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), num=st.integers(1, 3))
    def abort(self, data, num):
        names = st.sampled_from([*sorted(self.model.live), "unknown", *sorted(self.model.outcomes)[:2]])
        self.model.abort(data.draw(st.lists(names, min_size=num, max_size=num)))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def abort_a_group(self, data):
        group_id = data.draw(st.sampled_from(sorted({s.spec.group_id for s in self.model.live.values()})))
        self.model.abort([i for i, s in self.model.live.items() if s.spec.group_id == group_id])

    @rule(num=st.integers(1, 6))
    def step(self, num):
        for _ in range(num):
            self.model.schedule_in_step()
            self.model.check()

    @rule(num=st.integers(1, 6))
    def step_with_one_in_flight(self, num):
        for _ in range(num):
            while len(self.model.steps) >= 2:
                self.model.update()
            self.model.schedule()
            self.model.check()

    @precondition(lambda self: len(self.model.steps) < 2)
    @rule(execute=st.booleans())
    def schedule(self, execute):
        self.model.schedule()
        if execute:
            for step in self.model.steps:
                self.model.execute(step)

    @precondition(lambda self: self.model.steps)
    @rule()
    def update(self):
        self.model.update()

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def fail(self, data):
        """The next result of some requests is an error."""
        self.model.failing |= set(data.draw(st.lists(st.sampled_from(sorted(self.model.live)), max_size=3)))

    @rule(seconds=st.sampled_from([0.0, 0.3, 2.0, 11.0]))
    def wait(self, seconds):
        self.model.now_s += seconds

    @invariant()
    def holds(self):
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self):
        if hasattr(self, "model"):
            self.model.drain()
            self.model.retry()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
