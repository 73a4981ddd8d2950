"""What a waiting request lacks, and what its start changes."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.chunk_tile import ChunkTile
from scheduler.config import SchedulerConfig
from scheduler.decode_load import DecodeLoad
from scheduler.groups import Group, GroupTable
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.output import Admission
from scheduler.policy import Policy, new_request
from scheduler.request import Request, RequestSpec, RequestStatus
from scheduler.restore_price import RestorePrices
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from scheduler.start_needs import StartPlanner
from scheduler.starter import Starter
from scheduler.stats import SchedulerCounters
from scheduler.step_budget import BudgetLimits, StepBudget
from scheduler.step_plan import StepPlan
from scheduler.waiting_queue import WaitingQueue
from tests.latency_builders import make_coefficients
from tests.scheduler_builders import BLOCK_SIZE, make_group, make_spec

NUM_BLOCKS = 12
WATERMARK = 2
POLICY = Policy("priority", SLOClasses())
CONFIG = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=3, block_size=BLOCK_SIZE, max_preemptions=1)


class Desk:
    """A starter with all that it moves requests between."""

    def __init__(self, decode_load: DecodeLoad | None = None, late: frozenset[str] = frozenset()) -> None:
        self.requests: dict[str, Request] = {}
        self.kv = KVCacheManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=True)
        self.queue = WaitingQueue(self.kv.num_blocks_for, SLOClasses().names, is_fair=True)
        self.running = RunningSet()
        self.groups = GroupTable()
        self.counters = SchedulerCounters()
        prices = RestorePrices(self.kv.tiers, None, BLOCK_SIZE, CONFIG.max_num_batched_tokens)
        self.needs = StartPlanner(self.requests, self.kv, CONFIG.max_preemptions, prices)
        self.starter = Starter(
            CONFIG,
            self.needs,
            self.kv,
            self.queue,
            self.running,
            self.groups,
            self.counters,
            WATERMARK,
            decode_load,
            lambda request: request.request_id in late,
        )
        self.plan = StepPlan(0, 5.0, 32, 4)
        self.budget = StepBudget(None, NO_LINK, 5.0, BudgetLimits(), ChunkTile(None, BLOCK_SIZE, 32))

    def wait(self, *specs: RequestSpec) -> list[Request]:
        members = [new_request(spec, index, POLICY) for index, spec in enumerate(specs)]
        self.groups.add(Group(specs[0].group_id, "standard", 0.0, 99.0, {r.request_id: r for r in members}))
        for request in members:
            self.requests[request.request_id] = request
            self.queue.push(request)
        return members

    def why_not(self, request: Request) -> str | None:
        return self.starter.why_not(request, self.needs.needs_of(request), self.plan)

    def start(self, request: Request) -> int:
        """Its first tokens, as many as there are or the step holds."""
        needs = self.needs.needs_of(request)
        num_tokens = self.starter.num_tokens_that_fit(request, needs, self.plan, self.budget)
        self.starter.start(request, needs, self.plan)
        self.starter.compute(request, num_tokens, self.plan, self.budget)
        return num_tokens

    def compute(self, request: Request) -> None:
        """All that was scheduled of it is done."""
        entry = next(e for e in self.plan.scheduled if e.request_id == request.request_id)
        request.commit(entry.num_tokens, entry.samples, 6.0)
        self.kv.commit(request)


def test_a_start_moves_a_request_with_room_for_all_its_tokens() -> None:
    desk = Desk()
    (request,) = desk.wait(make_spec("a", 21, 4))
    assert desk.why_not(request) is None
    assert desk.start(request) == 21
    assert (request.status, request.started_s, request.admitted_s) == (RequestStatus.RUNNING, 5.0, 5.0)
    assert len(request.block_ids) == 6 and list(desk.running) == [request]
    assert desk.queue.num_requests == 0 and desk.plan.num_tokens_left == 11
    (scheduled,) = desk.plan.scheduled
    assert (scheduled.num_tokens, scheduled.first_block, scheduled.samples) == (21, 0, True)
    assert scheduled.new_block_ids == tuple(request.block_ids)
    assert desk.groups.next_expiry_s() is None, "its group has started"
    desk.groups.check(desk.requests)


def test_a_chunk_has_room_for_the_whole_prompt() -> None:
    desk = Desk()
    (request,) = desk.wait(make_spec("a", 40, 4))
    assert desk.start(request) == 32 and len(request.block_ids) == 10
    assert not desk.plan.scheduled[0].samples


@pytest.mark.parametrize(("num_prompt_tokens", "lacks"), [(12, None), (13, "no_blocks")])
def test_the_watermark_is_kept_beside_others(num_prompt_tokens: int, lacks: str | None) -> None:
    """Of 12 blocks, 7 are taken and 2 are kept."""
    desk = Desk()
    first, second = desk.wait(make_spec("a", 28, 1, group_id="g"), make_spec("b", num_prompt_tokens, 1, group_id="g"))
    desk.start(first)
    assert desk.why_not(second) == lacks


@pytest.mark.parametrize(("num_prompt_tokens", "lacks"), [(48, None), (49, "no_blocks")])
def test_alone_it_may_have_all_blocks(num_prompt_tokens: int, lacks: str | None) -> None:
    desk = Desk()
    (request,) = desk.wait(make_spec("a", num_prompt_tokens, 1))
    assert desk.why_not(request) == lacks


def test_a_seat_is_needed() -> None:
    desk = Desk()
    members = desk.wait(*(make_spec(name, 4, 1, group_id="g") for name in "abcd"))
    for request in members[:3]:
        assert desk.why_not(request) is None
        desk.start(request)
    assert desk.why_not(members[3]) == "no_seat"


def test_in_a_step_that_preempted_only_one_may_start() -> None:
    desk = Desk()
    first, second = desk.wait(make_spec("a", 4, 1, group_id="g"), make_spec("b", 4, 1, group_id="g"))
    desk.plan.preempted.append("victim")
    assert [desk.why_not(r) for r in (first, second)] == ["preempted", "preempted"]
    desk.plan.beneficiary = second
    assert [desk.why_not(r) for r in (first, second)] == ["preempted", None]


def test_one_that_was_preempted_often_enough_needs_room_for_all_it_may_ever_have() -> None:
    desk = Desk()
    (request,) = desk.wait(make_spec("a", 8, 41))
    assert desk.needs.needs_of(request).num_free_blocks == 2
    desk.queue.remove(request)
    request.num_preemptions = CONFIG.max_preemptions
    desk.queue.push(request)
    assert desk.needs.needs_of(request).num_free_blocks == 12
    assert desk.why_not(request) is None
    desk.start(request)
    assert len(request.block_ids) == 12


def test_what_is_cached_is_told_and_shortens_the_target() -> None:
    desk = Desk()
    (first,) = desk.wait(make_spec("a", 14, 4, prompt="p"))
    desk.start(first)
    desk.compute(first)
    (second,) = desk.wait(make_spec("b", 18, 4, prompt="p", arrival_s=9.0))
    assert desk.start(second) == 6
    assert second.num_cached_tokens == 12 and second.block_ids[:3] == first.block_ids[:3]
    assert desk.plan.admissions[1] == Admission("b", "b", 12, 3.0 + 0.3 * 6 / 1000, 0.08)
    assert second.deadlines.next_s == pytest.approx(9.0 + 3.0 + 0.3 * 6 / 1000)


def test_a_choice_takes_over_its_leaders_prompt() -> None:
    desk = Desk()
    leader, other = desk.wait(*make_group("g", 2, 10, 4))
    desk.start(leader)
    desk.compute(leader)
    assert desk.start(other) == 1
    assert other.block_ids[:2] == leader.block_ids[:2] and other.block_ids[2] != leader.block_ids[2]
    assert desk.plan.has_copies and desk.counters.prompt_tokens_shared == 9


def test_only_the_first_start_is_an_admission() -> None:
    desk = Desk(late=frozenset({"a"}))
    (request,) = desk.wait(make_spec("a", 8, 9))
    desk.start(request)
    assert [(a.request_id, a.is_best_effort) for a in desk.plan.admissions] == [("a", True)]
    desk.running.remove(request)
    desk.kv.release(desk.kv.detach(request))
    request.forget_computed()
    request.move(RequestStatus.WAITING)
    request.num_preemptions += 1
    desk.queue.push(request)
    desk.plan = StepPlan(1, 7.0, 32, 4)
    desk.start(request)
    assert desk.plan.admissions == [] and (request.admitted_s, request.started_s) == (5.0, 7.0)


def test_the_load_of_decodes_bounds_starts_where_it_is_looked_at() -> None:
    """A step of 22 ms and more, with a token due every 30 ms, bears some, and not forty."""
    model = LatencyModel(make_coefficients())
    for decode_load, is_too_many in ((None, False), (DecodeLoad(model), True)):
        desk = Desk(decode_load)
        tight = [make_spec(f"r{i}", 4, 9, slo_class="realtime", group_id="g") for i in range(40)]
        for request in desk.wait(*tight)[:39]:
            desk.queue.remove(request)
            request.move(RequestStatus.RUNNING)
            desk.running.add(request)
        newcomer = desk.requests["r39"]
        assert desk.starter.is_too_many(newcomer) is is_too_many
        assert desk.starter.is_too_many_in(desk.plan, newcomer) is is_too_many
        loose = dataclasses.replace(newcomer.spec, slo=dataclasses.replace(newcomer.spec.slo, tpot_s=0.4))
        assert not Desk(decode_load).starter.is_too_many(new_request(loose, 0, POLICY))
