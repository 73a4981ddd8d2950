"""Victims against brute force, and requests that push each other out: bounded, with progress in between."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import SchedulerConfig
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.policy import Policy, new_request
from scheduler.preemption import RESUMED_S, Preemption
from scheduler.request import Request, RequestStatus
from scheduler.restore_price import RestorePrices
from scheduler.running_set import RunningSet
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from scheduler.step_features import StepFeatures
from tests.latency_builders import make_coefficients
from tests.scheduler_builders import make_spec, result_of

BLOCK_SIZE = 4
NUM_BLOCKS = 200
WATERMARK = 2
NOW_S = 100.0
CHUNK_TOKENS = 64
MAX_PREEMPTIONS = 2
CLASS_NAMES = ("realtime", "interactive", "standard", "batch")


@dataclasses.dataclass(frozen=True)
class Runner:
    """One running request of a case."""

    slo_class: str
    num_tokens: int
    num_shared: int
    """Blocks that it shares with the one before, as far as that has as many."""
    slack_s: float
    is_broken: bool
    num_preemptions: int
    num_new_tokens: int
    ago_s: float
    num_left: int


runners = st.builds(
    Runner,
    st.sampled_from(CLASS_NAMES),
    st.integers(2, 40),
    st.sampled_from([0, 0, 0, 1, 3, 10]),
    st.sampled_from([-1.0, 0.5, 0.5, 3.0, 20.0]),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 7, 8, 30]),
    st.sampled_from([0.5, 1.0, 9.0]),
    st.sampled_from([1, 4, 5, 60]),
)


class Case:
    """Running requests, and what a reader of their tables can say of them."""

    def __init__(self, rows: list[Runner], max_num_seqs: int, *, is_predicted: bool = True) -> None:
        self.classes = SLOClasses()
        self.policy = Policy("priority", self.classes)
        config = SchedulerConfig(
            max_num_batched_tokens=CHUNK_TOKENS,
            max_num_seqs=max_num_seqs,
            block_size=BLOCK_SIZE,
            max_preemptions=MAX_PREEMPTIONS,
        )
        self.kv = KVCacheManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=True)
        self.running = RunningSet()
        self.is_predicted = is_predicted
        prices = RestorePrices(
            self.kv.tiers, LatencyModel(make_coefficients()), BLOCK_SIZE, config.max_num_batched_tokens
        )
        self.preemption = Preemption(config, self.running, self.kv, WATERMARK, prices if is_predicted else None)
        self.row_of: dict[str, Runner] = {}
        self.requests: list[Request] = []
        for index, row in enumerate(rows):
            self.requests.append(self._start(f"r{index}", row, float(index), self.requests[-1:]))

    def _start(self, name: str, row: Runner, arrival_s: float, before: list[Request]) -> Request:
        spec = make_spec(name, row.num_tokens, row.num_left + 1, slo_class=row.slo_class, arrival_s=arrival_s)
        request = new_request(spec, 0, self.policy)
        num_full = (row.num_tokens - 1) // BLOCK_SIZE
        shared = tuple(before[0].block_ids[: min(row.num_shared, num_full)]) if before else ()
        assert self.kv.allocate_slots(request, row.num_tokens, shared) is not None
        request.move(RequestStatus.RUNNING)
        request.num_computed_tokens, request.num_output_tokens = row.num_tokens, 1
        request.num_preemptions, request.started_s = row.num_preemptions, NOW_S - row.ago_s
        request.num_lost_tokens = row.num_tokens - row.num_new_tokens if row.num_preemptions else 0
        request.deadlines.next_s, request.deadlines.is_lost = NOW_S + row.slack_s, row.is_broken
        self.running.add(request)
        self.row_of[name] = row
        return request

    def freed_by(self, victims: tuple[Request, ...], keep: frozenset[int]) -> int:
        """Blocks that nobody else has, counted from the tables."""
        owners = Counter(b for request in self.requests for b in request.block_ids)
        dropped = Counter(b for victim in victims for b in victim.block_ids)
        return sum(dropped[b] == owners[b] and b not in keep for b in dropped)

    def token_blocks(self, request: Request) -> int:
        """Blocks that its next token takes: it opens one where the ones before are full."""
        return int(self.row_of[request.request_id].num_tokens % BLOCK_SIZE == 0)

    def may_yield(self, request: Request) -> bool:
        return request.num_preemptions < MAX_PREEMPTIONS and self.freed_by((request,), frozenset()) > 0

    def is_spared(self, request: Request) -> bool:
        row = self.row_of[request.request_id]
        return row.num_left <= 4 or (row.num_preemptions > 0 and (row.num_new_tokens < 8 or row.ago_s < 1.0))

    def cost(self, request: Request) -> tuple[object, ...]:
        """As the reference states it; each chunk of the recomputation is predicted by itself."""
        if not self.is_predicted:
            return (-request.rank, -request.spec.arrival_s)
        row = self.row_of[request.request_id]
        owners = Counter(b for other in self.requests for b in other.block_ids)
        num_shared = sum(owners[b] > 1 for b in request.block_ids)
        num_tokens = row.num_tokens + 1
        num_kept = min(num_shared * BLOCK_SIZE, num_tokens - 1)
        model = LatencyModel(make_coefficients())
        # A share of a full chunk for the tokens, and the pairs that they have more or fewer than in it.
        full_s = model.mean_s(StepFeatures().with_chunk(CHUNK_TOKENS, 0, samples=False), NO_LINK)
        pair_s = make_coefficients().s_per_prefill_pair
        num_lost = num_tokens - num_kept
        pairs = num_lost * (num_kept + num_lost / 2) - num_lost * CHUNK_TOKENS / 2
        left_s = row.slack_s - (full_s * num_lost / CHUNK_TOKENS + pair_s * pairs)
        is_kept = row.slo_class != "batch" and not row.is_broken
        own = len(request.block_ids) - num_shared
        return (is_kept, -round(left_s, 9), own, -request.rank, -request.spec.arrival_s)


def best_choice(
    case: Case, ordered: list[Request], needed: int, num_seats: int, max_victims: int, keep: frozenset[int], spare: bool
) -> list[Request] | None:
    """Of all subsets that are enough, each victim counted alone: the costliest as cheap as can be, then the next."""
    best: tuple[int, ...] | None = None
    alone = [case.freed_by((r,), keep) + (case.token_blocks(r) if spare else 0) for r in ordered]
    for size in range(1, min(max_victims, len(ordered)) + 1):
        for subset in itertools.combinations(range(len(ordered)), size):
            if size >= num_seats and sum(alone[i] for i in subset) >= needed:
                places = tuple(reversed(subset))
                best = places if best is None else min(best, places)
    return None if best is None else [ordered[i] for i in reversed(best)]


cases = st.lists(runners, min_size=1, max_size=7)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=cases,
    head_class=st.sampled_from(CLASS_NAMES),
    num_missing=st.integers(-6, 30),
    max_victims=st.integers(0, 4),
    spare_seats=st.integers(0, 1),
    num_kept=st.sampled_from([0, 0, 2]),
    is_predicted=st.sampled_from([True, True, False]),
)
def test_victims_for_a_waiting_request_are_the_cheapest_that_are_enough(
    rows: list[Runner],
    head_class: str,
    num_missing: int,
    max_victims: int,
    spare_seats: int,
    num_kept: int,
    is_predicted: bool,
) -> None:
    case = Case(rows, len(rows) + spare_seats, is_predicted=is_predicted)
    head = new_request(make_spec("head", 4, 1, slo_class=head_class, arrival_s=50.0), 0, case.policy)
    keep = frozenset(case.requests[0].block_ids[:num_kept])
    victims = case.preemption.victims_for_head(head, num_missing, keep, max_victims, NOW_S)
    num_seats = 1 - spare_seats
    needed = num_missing + WATERMARK + sum(map(case.token_blocks, case.requests))
    if needed <= 0 and num_seats <= 0:
        assert victims == []
        return
    lower = [r for r in case.requests if r.rank > head.rank]
    ordered = sorted((r for r in lower if case.may_yield(r) and not case.is_spared(r)), key=case.cost)
    assert set(victims) <= set(ordered) and len(victims) <= max_victims
    if victims:
        given_up = case.freed_by(tuple(victims), keep) + sum(map(case.token_blocks, victims))
        spare = WATERMARK if len(victims) == len(case.requests) else 0
        assert given_up >= needed - spare and len(victims) >= num_seats, "all or nothing"
    expected = best_choice(case, ordered, needed, num_seats, max_victims, keep, spare=True)
    if expected is not None:
        assert victims == expected
    else:
        _check_together(case, victims, ordered, needed, max_victims, keep, spare=True)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=cases,
    data=st.data(),
    num_missing=st.integers(1, 12),
    max_victims=st.integers(1, 4),
    is_predicted=st.sampled_from([True, True, False]),
)
def test_victims_for_a_running_request_are_lower_classes_by_cost_then_the_newest(
    rows: list[Runner], data: st.DataObject, num_missing: int, max_victims: int, is_predicted: bool
) -> None:
    case = Case(rows, len(rows), is_predicted=is_predicted)
    request = data.draw(st.sampled_from(case.requests))
    victims = case.preemption.victims_for_block(request, num_missing, max_victims, NOW_S)
    able = [r for r in case.requests if case.may_yield(r) and r is not request]
    lower = sorted((r for r in able if r.rank > request.rank), key=lambda r: (case.is_spared(r), *case.cost(r)))
    equals = sorted(
        (r for r in able if r.rank == request.rank and r.spec.arrival_s > request.spec.arrival_s),
        key=lambda r: (case.is_spared(r), -r.spec.arrival_s),
    )
    ordered = lower + equals
    assert set(victims) <= set(ordered) and len(victims) <= max_victims
    if victims:
        assert case.freed_by(tuple(victims), frozenset()) >= num_missing
    expected = best_choice(case, ordered, num_missing, 0, max_victims, frozenset(), spare=False)
    if expected is not None:
        assert victims == expected
    else:
        _check_together(case, victims, ordered, num_missing, max_victims, frozenset(), spare=False)


def _check_together(
    case: Case,
    victims: list[Request],
    ordered: list[Request],
    needed: int,
    max_victims: int,
    keep: frozenset[int],
    *,
    spare: bool,
) -> None:
    """Where none is enough by what each frees alone: the first ones that are enough together, or nobody."""
    for size in range(1, min(max_victims, len(ordered)) + 1):
        first = tuple(ordered[:size])
        watermark = WATERMARK if spare and size == len(case.requests) else 0
        token_blocks = sum(map(case.token_blocks, first)) if spare else 0
        if case.freed_by(first, keep) + token_blocks >= needed - watermark:
            assert victims == list(first)
            return
    assert victims == []


# Whole runs.


def make_run(num_blocks: int, max_num_seqs: int, policy: str = "priority") -> Scheduler:
    config = SchedulerConfig(
        max_num_batched_tokens=CHUNK_TOKENS,
        max_num_seqs=max_num_seqs,
        block_size=BLOCK_SIZE,
        scheduler_policy=policy,  # type: ignore[arg-type]
        admission="caps",
        max_preemptions=MAX_PREEMPTIONS,
    )
    latency = LatencyModel(make_coefficients())
    return Scheduler(config, SLOClasses(), num_blocks, num_blocks * BLOCK_SIZE + 1, latency)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    first=st.sampled_from(["standard", "batch"]),
    prompts=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    outputs=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    num_blocks=st.integers(24, 30),
)
def test_two_requests_that_do_not_fit_together_do_not_push_each_other_out_for_ever(
    first: str, prompts: tuple[int, int], outputs: tuple[int, int], num_blocks: int
) -> None:
    scheduler = make_run(num_blocks, 2)
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        slo_class = first if index == 0 else "batch"
        scheduler.add((make_spec(f"r{index}", prompt, output, slo_class=slo_class, arrival_s=float(index)),), 1.0)
    now_s, preempted, num_steps = 1.0, Counter[str](), 0
    while scheduler.has_work():
        step = scheduler.schedule(now_s, NO_LINK)
        assert len(step.preempted) <= 1 and step.scheduled, "one of them goes on in every step"
        preempted.update(step.preempted)
        now_s += 0.05
        scheduler.update(step, result_of(step), now_s)
        scheduler.check()
        num_steps += 1
    assert preempted["r0"] == 0, "the senior never yields to its junior"
    assert preempted["r1"] <= MAX_PREEMPTIONS
    assert num_steps <= sum(outputs) + (MAX_PREEMPTIONS + 1) * (sum(prompts) + sum(outputs))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    arrivals=st.lists(st.tuples(st.floats(0.0, 1.5), st.integers(4, 18), st.integers(1, 4)), min_size=2, max_size=12),
    policy=st.sampled_from(["priority", "edf", "deadline"]),
)
def test_a_low_request_gets_on_between_two_preemptions_by_waiting_ones(
    arrivals: list[tuple[float, int, int]], policy: str
) -> None:
    """However often a high class needs its place: a second and two blocks of new tokens lie between two yields."""
    scheduler = make_run(20, 2, policy)
    scheduler.add((make_spec("low", 10, 60, slo_class="batch"),), 0.0)
    offers_s = list(itertools.accumulate(gap_s for gap_s, _, _ in arrivals))
    offers = [(at_s, i, *arrivals[i][1:]) for i, at_s in enumerate(offers_s)]
    yields: list[tuple[float, int]] = []  # when, and how far `low` had ever come
    now_s, furthest, num_low, started = 0.0, 0, 0, set[str]()
    while scheduler.has_work() or offers:
        while offers and offers[0][0] <= now_s:
            at_s, index, num_blocks, output = offers.pop(0)
            # All of its output finds room in the block of its last prompt token: it never lacks one.
            spec = make_spec(f"high{index}", num_blocks * BLOCK_SIZE - 3, output, slo_class="realtime", arrival_s=at_s)
            scheduler.add((spec,), now_s)
        step = scheduler.schedule(now_s, NO_LINK)
        position = {s.request_id: s.num_computed_tokens + s.num_tokens for s in step.scheduled}
        has_start = not started.issuperset(position)
        started |= position.keys()
        if "low" in step.preempted:
            if has_start and yields:
                assert num_low >= yields[-1][1] + 2 * BLOCK_SIZE and now_s - yields[-1][0] >= RESUMED_S
            yields.append((now_s, furthest))
        num_low = position.get("low", num_low)
        furthest = max(furthest, num_low)
        now_s += 0.05
        scheduler.update(step, result_of(step), now_s)
        scheduler.check()
    assert len(yields) <= MAX_PREEMPTIONS


@pytest.mark.parametrize("policy", ["priority", "edf", "deadline"])
def test_a_low_request_is_preempted_in_such_runs(policy: str) -> None:
    """That the run above is about something."""
    scheduler = make_run(20, 2, policy)
    scheduler.add((make_spec("low", 10, 60, slo_class="batch"),), 0.0)
    for step_id in range(30):
        if step_id == 3:
            scheduler.add((make_spec("high", 69, 4, slo_class="realtime", arrival_s=0.1),), 0.2)
        step = scheduler.schedule(0.2 + step_id / 20, NO_LINK)
        scheduler.update(step, result_of(step), 0.24 + step_id / 20)
    assert scheduler.stats().num_preemptions == 1
