"""Requests that lose their blocks: in which order things happen, and how much room there is at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, KVTransfer, Purpose, TierConfig, TransferKind
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.output import SchedulerOutput, StepResult
from scheduler.request import Request, RequestStatus
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from scheduler.step_plan import StepPlan
from tests.kv_tier_builders import BLOCK_BYTES, end_of, make_latency, make_link, put_on_host
from tests.scheduler_builders import BLOCK_SIZE, NOW_S, make_group, make_spec, result_of, tokens_of

UNSAVED = make_link(num_streamed_layers=1, coupling=0.5, kv_link_share=0.4)
"""Beside weights that stores would slow down, nothing is written behind."""


class Engine:
    """Steps of a scheduler with a host; copies end when a test says so."""

    def __init__(self, num_blocks: int, latency: LatencyModel | None = None, **options: Any) -> None:
        settings: dict[str, Any] = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "scheduler_policy": "priority",
            "preemption_mode": "swap",
        }
        config = SchedulerConfig(block_size=BLOCK_SIZE, admission="caps", **(settings | options))
        tiers = TierConfig(64, block_bytes=BLOCK_BYTES)
        self.scheduler = Scheduler(config, SLOClasses(), num_blocks, 4 * num_blocks, latency, tiers)
        self.kv, self.yielding = self.scheduler._kv, self.scheduler._yielding
        self.under_way: list[KVTransfer] = []

    def add(self, name: str, num_tokens: int, *, max_tokens: int = 30, **options: Any) -> Request:
        self.scheduler.add((make_spec(name, num_tokens, max_tokens, **options),), NOW_S)
        return self.scheduler._requests[name]

    def schedule(self, now_s: float = NOW_S, link: LinkSnapshot = UNSAVED) -> SchedulerOutput:
        output = self.scheduler.schedule(now_s, link)
        self.under_way += output.transfers
        self.scheduler.check()
        return output

    def update(self, output: SchedulerOutput, *, ends: bool = False, outcome: BlockOutcome = BlockOutcome.DONE) -> None:
        result = result_of(output)
        if ends:
            ended, self.under_way = self.under_way, []
            result = StepResult(result.step_id, result.results, tuple(end_of(t, outcome) for t in ended))
        self.scheduler.update(output, result, NOW_S)
        self.scheduler.check()

    def step(self, **options: Any) -> SchedulerOutput:
        output = self.schedule()
        self.update(output, **options)
        return output


def new_plan() -> StepPlan:
    return StepPlan(99, NOW_S, 64, 4)


@pytest.mark.parametrize(("num_wanted", "num_stored"), [(0, 4), (2, 3), (99, 0)])
def test_a_preemption_says_how_many_blocks_are_free_by_it_now(num_wanted: int, num_stored: int) -> None:
    """17 tokens: 4 full blocks and one that is not."""
    engine = Engine(16)
    request = engine.add("r", 16)
    engine.step()
    engine.step()
    assert request.num_computed_tokens == 17 and not engine.under_way
    plan = new_plan()
    assert engine.yielding.preempt(request, plan, num_wanted) == 5 - num_stored
    stores = engine.kv.tiers.take_outgoing()
    assert [(t.kind, t.purpose, len(t.block_hashes)) for t in stores] == [
        (TransferKind.STORE, Purpose.FREES_BLOCKS, num_stored)
    ] * bool(num_stored)
    assert plan.preempted == ["r"] and plan.num_victims_left == 3
    assert request.status is RequestStatus.WAITING
    assert (request.num_preemptions, request.num_lives, request.num_lost_tokens) == (1, 1, 17)
    engine.scheduler.check()


def test_a_restart_is_no_preemption() -> None:
    engine = Engine(16)
    request = engine.add("r", 16)
    engine.step()
    num_free = engine.kv.pool.num_free_blocks
    engine.yielding.restart(request)
    assert (request.num_preemptions, request.num_lives, request.num_computed_tokens) == (0, 1, 0)
    assert engine.kv.pool.num_free_blocks == num_free + 4
    assert not engine.kv.tiers.take_outgoing(), "nothing is stored for it"
    assert engine.scheduler.stats().num_preemptions == 0
    engine.scheduler.check()


def test_whoever_yields_has_its_old_place_in_the_order() -> None:
    engine = Engine(32, max_num_seqs=2, scheduler_policy="fcfs")
    old, new = engine.add("old", 8, arrival_s=1.0), engine.add("new", 8, arrival_s=2.0)
    engine.add("later", 8, arrival_s=3.0)
    engine.step()
    for request in (new, old):
        engine.yielding.preempt(request, new_plan(), 99)
    assert engine.scheduler._queue.head_of("standard") is old
    assert list(tokens_of(engine.schedule())) == ["old", "new"]


def test_choices_that_waited_for_its_prompt_have_turns_of_their_own() -> None:
    engine = Engine(32, max_num_batched_tokens=8)
    engine.scheduler.add(make_group("g", 2, 16, 9), NOW_S)
    engine.step()
    leader = engine.scheduler._requests["g/0"]
    assert [r.request_id for r in engine.scheduler._queue.parked()] == ["g/1"]
    engine.yielding.preempt(leader, new_plan(), 99)
    assert not engine.scheduler._queue.parked()
    engine.scheduler.check()


def test_a_step_in_flight_keeps_the_blocks_it_computes_upon() -> None:
    engine = Engine(8)
    request = engine.add("r", 16, max_tokens=9)
    output = engine.schedule()
    num_free = engine.kv.pool.num_free_blocks
    assert engine.yielding.preempt(request, new_plan(), 99) == 0
    assert engine.kv.pool.num_free_blocks == num_free and engine.scheduler._steps.num_blocks_coming() == 4
    engine.update(output)
    assert engine.kv.pool.num_free_blocks == 8 and request.num_output_tokens == 0, "that part of the step is void"


def full_pool(latency: LatencyModel | None = None, **options: Any) -> tuple[Engine, Request]:
    """A batch request of 17 tokens in 5 of 8 blocks, none of them saved."""
    engine = Engine(8, latency, **options)
    victim = engine.add("victim", 16, max_tokens=16, slo_class="batch")
    engine.step()
    engine.step()
    assert victim.num_computed_tokens == 17 and engine.kv.pool.num_free_blocks == 3
    return engine, victim


def need(engine: Engine, head_due_s: float, num_tokens: int = 20) -> tuple[Request, SchedulerOutput]:
    """A higher request that lacks 2 blocks of its 5, its first token due so long after now."""
    head = engine.add("head", num_tokens, max_tokens=4, slo_class="interactive")
    head.deadlines.next_s = NOW_S + head_due_s
    return head, engine.schedule()


def test_one_that_is_needed_at_once_gets_the_last_blocks_and_the_others_are_stored() -> None:
    """2 missing, 1 of the watermark and 1 for the decode that runs: 4 of 5 are wanted, and 1 is stored."""
    engine, victim = full_pool()
    head, output = need(engine, 0.0)
    assert output.preempted == ("victim",)
    assert [len(t.block_hashes) for t in output.transfers if t.purpose is Purpose.FREES_BLOCKS] == [1]
    assert tokens_of(output) == {"head": 20} and head.status is RequestStatus.RUNNING
    assert victim.status is RequestStatus.WAITING
    engine.update(output, ends=True)
    assert engine.scheduler.stats().num_preemptions == 1


def test_one_that_can_wait_for_the_stores_starts_when_they_are_done() -> None:
    engine, _ = full_pool()
    head, output = need(engine, 60.0)
    assert output.preempted == ("victim",)
    assert [len(t.block_hashes) for t in output.transfers if t.purpose is Purpose.FREES_BLOCKS] == [4]
    assert head.status is RequestStatus.WAITING and not output.scheduled, "4 of its 5 are free"
    engine.update(output)
    output = engine.schedule()
    assert not output.preempted and not output.scheduled
    engine.update(output, ends=True)
    assert tokens_of(engine.schedule()) == {"head": 20}


@pytest.mark.parametrize(("due_s", "can_wait"), [(0.165, False), (0.175, True)])
def test_it_can_wait_if_stores_and_its_prompt_are_done_before_it_is_due(due_s: float, can_wait: bool) -> None:
    """5 blocks leave within 150 ms, by the half of the link that weights leave; its 20 tokens take 20."""
    engine, _ = full_pool(make_latency())
    link = dataclasses.replace(UNSAVED, d2h=dataclasses.replace(UNSAVED.d2h, p50_bytes_per_s=5000 / 0.15 / 0.5))
    engine.kv.tiers.observe(link, NOW_S)
    head = engine.add("head", 20, max_tokens=4, slo_class="interactive")
    head.deadlines.next_s = NOW_S + due_s
    output = engine.schedule(link=link)
    num_stored = sum(len(t.block_hashes) for t in output.transfers if t.purpose is Purpose.FREES_BLOCKS)
    assert num_stored == (4 if can_wait else 1)
    assert (head.status is RequestStatus.WAITING) is can_wait


def test_blocks_that_the_host_has_are_room_at_once() -> None:
    engine, victim = full_pool()
    put_on_host(engine.kv.tiers.directory, victim.block_hashes)
    head, output = need(engine, 60.0)
    assert output.preempted == ("victim",) and head.status is RequestStatus.RUNNING
    assert not any(t.purpose is Purpose.FREES_BLOCKS for t in output.transfers)
    assert engine.kv.tiers.use.num_preemptions == {"free": 1}


def test_nobody_yields_where_it_would_not_be_enough() -> None:
    engine, victim = full_pool()
    engine.add("equal", 5, max_tokens=4, slo_class="interactive")
    assert not engine.step().preempted
    _, output = need(engine, 0.0, num_tokens=28)
    assert not output.preempted and victim.status is RequestStatus.RUNNING


def test_who_yielded_comes_back_by_its_prefix_and_computes_the_rest() -> None:
    engine, victim = full_pool()
    _, output = need(engine, 60.0)
    engine.update(output, ends=True)
    engine.update(output := engine.schedule(), ends=True)
    assert tokens_of(output) == {"head": 20}
    while "head" in engine.scheduler._requests:
        engine.step(ends=True)
    output = engine.schedule()
    assert tokens_of(output) == {"victim": 2}, "16 of its 18 tokens are found, on device or host"
    assert [s.num_computed_tokens for s in output.scheduled] == [16] and victim.num_preemptions == 1
