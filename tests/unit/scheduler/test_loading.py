"""Requests whose prefix comes from the host: when a step waits for it, who shares it, and what its failure means."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, GatedLoad, TierConfig, TransferKind, TransferResult
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.output import FinishedRequest, RequestResult, SchedulerOutput, StepResult
from scheduler.request import MAX_FAILED_LOADS, Request, RequestStatus
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from scheduler.step_plan import StepPlan
from tests.kv_tier_builders import BLOCK_BYTES, DONE, forget_cached, make_latency, make_link, put_on_host
from tests.scheduler_builders import BLOCK_SIZE, NOW_S, make_group, make_spec, tokens_of

NUM_PARTS = 4
SLOW = make_link(queued_load_bytes=500_000)
"""Half a second until a load begins: no step waits so long."""
FAST = make_link()


class Engine:
    """A scheduler whose host has prefixes, one step after the other. A load ends when a test says so."""

    def __init__(self, latency: LatencyModel | None = None, num_blocks: int = 64, **options: Any) -> None:
        settings: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "scheduler_policy": "fcfs"}
        config = SchedulerConfig(block_size=BLOCK_SIZE, admission="caps", **(settings | options))
        tiers = TierConfig(64, block_bytes=BLOCK_BYTES, num_load_parts=NUM_PARTS)
        self.scheduler = Scheduler(config, SLOClasses(), num_blocks, 200, latency, tiers)
        self.kv = self.scheduler._kv

    def add(
        self, name: str, num_tokens: int = 9, *, prompt: str = "p", max_tokens: int = 50, **options: Any
    ) -> Request:
        self.scheduler.add((make_spec(name, num_tokens, max_tokens, prompt=prompt, **options),), NOW_S)
        return self.scheduler._requests[name]

    def seed(self, num_blocks: int = 2, prompt: str = "p") -> None:
        put_on_host(self.kv.tiers.directory, [f"{prompt}:{index}".encode() for index in range(num_blocks)])

    def schedule(self, now_s: float = NOW_S, link: LinkSnapshot = SLOW) -> SchedulerOutput:
        output = self.scheduler.schedule(now_s, link)
        self.scheduler.check()
        return output

    def update(
        self, output: SchedulerOutput, ended: dict[int, BlockOutcome] | None = None, now_s: float = NOW_S
    ) -> tuple[FinishedRequest, ...]:
        """What the step came to, with the ends of loads; copies to the host end with the step that asks for them."""
        ended = {} if ended is None else ended
        failed = {load_id for load_id, outcome in ended.items() if outcome is not DONE}
        void = {gate.request_id for gate in output.gated_loads if gate.transfer_id in failed}
        results = tuple(
            RequestResult(s.request_id, int(s.samples and s.request_id not in void), None, ()) for s in output.scheduled
        )
        under_way = self.kv.tiers._under_way
        outcomes = {t.transfer_id: DONE for t in output.transfers if t.kind is not TransferKind.LOAD} | ended
        transfers = tuple(TransferResult(i, (outcomes[i],) * len(under_way[i].block_hashes)) for i in outcomes)
        finished = self.scheduler.update(output, StepResult(output.step_id, results, transfers), now_s)
        self.scheduler.check()
        return finished

    def step(self, link: LinkSnapshot = SLOW, **ends: Any) -> SchedulerOutput:
        output = self.schedule(link=link)
        self.update(output, **ends)
        return output


def load_of(output: SchedulerOutput) -> int:
    (load,) = (t for t in output.transfers if t.kind is TransferKind.LOAD)
    return load.transfer_id


@pytest.mark.parametrize(("queued", "joins"), [(0, True), (197_000, True), (199_000, False)])
def test_a_request_alone_is_computed_while_its_load_is_under_way_unless_the_step_would_be_too_long(
    queued: int, joins: bool
) -> None:
    """2 ms for its two blocks come behind what is queued; a step may take 200."""
    engine = Engine()
    engine.seed()
    engine.add("a")
    output = engine.schedule(link=make_link(queued_load_bytes=queued))
    load_id = load_of(output)
    assert output.gated_loads == ((GatedLoad("a", load_id),) if joins else ())
    assert tokens_of(output) == ({"a": 1} if joins else {})
    assert [s.num_computed_tokens for s in output.scheduled] == [8] * joins
    assert ("loading" in output.reasons) is not joins
    engine.update(output, {load_id: DONE})
    after = engine.step()
    assert tokens_of(after) == {"a": 1} and not after.gated_loads
    assert [s.num_computed_tokens for s in after.scheduled] == [9 if joins else 8]


def test_the_longest_step_is_an_option() -> None:
    engine = Engine(max_step_s=0.6)
    engine.seed()
    engine.add("a")
    assert tokens_of(engine.step(link=SLOW, ended={0: DONE})) == {"a": 1}


@pytest.mark.parametrize(("late_s", "joins"), [(0.25, False), (0.35, True), (0.6, True), (0.75, False)])
def test_one_that_is_nearly_there_or_just_overdue_is_waited_for_and_one_long_overdue_is_not(
    late_s: float, joins: bool
) -> None:
    """Expected after 502 ms; who is overdue by so much may take as long again."""
    engine = Engine()
    engine.seed()
    engine.add("a")
    engine.update(first := engine.schedule())
    output = engine.schedule(NOW_S + late_s)
    assert tokens_of(output) == ({"a": 1} if joins else {})
    engine.update(output, {load_of(first): DONE}, NOW_S + late_s)


NUM_LONG = 24
"""Blocks of a prefix that takes 24 ms to load and 96 to compute."""


def decoding(due_s: float, slo_class: str = "standard", **options: Any) -> Engine:
    """Request d decodes, its next token due so long after now; the machine takes 1 ms a token of prefill."""
    engine = Engine(make_latency(), scheduler_policy="deadline", **options)
    engine.seed(NUM_LONG)
    request = engine.add("d", 8, prompt="d", slo_class=slo_class)
    assert tokens_of(engine.step(FAST)) == {"d": 8}
    request.deadlines.next_s = NOW_S + due_s
    return engine


@pytest.mark.parametrize(
    ("num_tokens", "queued", "due_s", "num_joined"),
    [
        (1, 6_000, 0.031, 1),  # the wait of 30 ms is all there is
        (1, 6_000, 0.029, 0),
        (40, 6_000, 0.0485, 40),  # 40 ms of computing, and 7.5 ms, a quarter of the load
        (40, 6_000, 0.0470, 36),  # what fits beside the quarter, in whole blocks
        (48, 6_000, 0.0485, 40),
        (40, 56_000, 0.091, 40),  # 80 ms of waiting, and 10 ms, a quarter of computing
        (40, 56_000, 0.079, 0),
    ],
)
def test_a_decode_is_never_joined_by_a_load_that_would_make_it_late(
    num_tokens: int, queued: int, due_s: float, num_joined: int
) -> None:
    engine = decoding(due_s)
    engine.add("a", 4 * NUM_LONG + num_tokens)
    output = engine.schedule(link=make_link(queued_load_bytes=queued))
    assert tokens_of(output) == {"d": 1} | ({"a": num_joined} if num_joined else {})
    assert bool(output.gated_loads) is bool(num_joined)
    engine.update(output, {load_of(output): DONE})
    if not num_joined:
        after = engine.step(make_link())
        assert "a" in tokens_of(after) and not after.gated_loads


def test_a_decode_without_a_deadline_is_held_up_by_the_largest_step_at_most() -> None:
    for queued, joins in ((25_000, True), (27_000, False)):
        engine = decoding(0.01, "batch", max_step_s=0.05)
        engine.add("a", 4 * NUM_LONG + 1)
        output = engine.schedule(link=make_link(queued_load_bytes=queued))
        assert ("a" in tokens_of(output)) is joins and "d" in tokens_of(output)
        engine.update(output, {load_of(output): DONE})


def test_the_step_after_one_that_waits_starts_when_that_has_waited() -> None:
    """26 ms of loading in 4 parts beside 20 ms of computing: 31. The decode's token after that one is due in 130."""
    engine = decoding(0.05)
    engine.add("a", 4 * NUM_LONG + 20)
    first = engine.schedule(link=make_link(queued_load_bytes=2_000))
    assert tokens_of(first) == {"d": 1, "a": 20} and len(first.gated_loads) == 1
    assert first.predicted_s == pytest.approx(0.026 + 0.005)
    second = engine.schedule(link=make_link())
    assert second.budget_s == pytest.approx(0.05 + 0.08 - 0.031)
    engine.update(first, {load_of(first): DONE})
    engine.update(second)


def test_two_requests_share_one_load_and_its_blocks() -> None:
    engine = Engine()
    engine.seed()
    first, second = engine.add("a"), engine.add("b", 10)
    output = engine.schedule()
    load_id = load_of(output)
    assert first.load_ids == second.load_ids == {load_id}
    assert first.block_ids[:2] == second.block_ids[:2] and first.block_ids[2:] != second.block_ids[2:]
    assert not output.scheduled
    engine.update(output, {load_id: DONE})
    assert [h.num_tokens for h in engine.step().scheduled] == [1, 2]
    assert (first.num_host_cached_tokens, second.num_host_cached_tokens) == (8, 8)


def test_both_are_gated_on_it_where_the_step_bears_both() -> None:
    engine = Engine(make_latency(), scheduler_policy="deadline")
    engine.seed()
    engine.add("a"), engine.add("b", 10)
    output = engine.schedule(link=FAST)
    load_id = load_of(output)
    assert set(output.gated_loads) == {GatedLoad("a", load_id), GatedLoad("b", load_id)}
    engine.update(output, {load_id: DONE})
    assert tokens_of(engine.step(FAST)) == {"a": 1, "b": 1}


def test_a_longer_prefix_loads_only_what_nobody_loads_yet() -> None:
    engine = Engine()
    engine.seed(4)
    first = engine.add("a")
    output = engine.schedule()
    short = load_of(output)
    engine.update(output)
    second = engine.add("b", 17)
    output = engine.schedule()
    (load,) = output.transfers
    assert load.block_hashes == (b"p:2", b"p:3")
    assert second.load_ids == {short, load.transfer_id} and second.block_ids[:2] == first.block_ids[:2]
    engine.update(output, {load.transfer_id: DONE})
    assert second.load_ids == {short} and not engine.schedule().scheduled


def test_the_loader_leaves_and_its_sharer_goes_on() -> None:
    engine = Engine()
    engine.seed()
    engine.add("a")
    sharer = engine.add("b", 10)
    output = engine.schedule()
    load_id, shared = load_of(output), sharer.block_ids[:2]
    engine.update(output)
    engine.scheduler.abort(["a"], NOW_S)
    engine.scheduler.check()
    assert [engine.kv.pool.num_references(b) for b in shared] == [2, 2], "the load's and the sharer's"
    engine.update(waiting := engine.schedule(), {load_id: DONE})
    assert not waiting.scheduled and not waiting.transfers
    output = engine.schedule()
    assert [(s.num_computed_tokens, s.num_tokens, s.new_block_ids[:2]) for s in output.scheduled] == [
        (8, 2, tuple(shared))
    ]
    engine.update(output)
    assert [engine.kv.pool.num_references(b) for b in shared] == [1, 1]


def test_all_leave_and_the_blocks_stay_until_the_load_has_ended() -> None:
    engine = Engine(num_blocks=4)
    engine.seed()
    engine.add("a", max_tokens=4)
    output = engine.schedule()
    engine.scheduler.abort(["a"], NOW_S)
    engine.scheduler.check()
    assert engine.kv.pool.num_free_blocks == 2
    engine.update(output, {load_of(output): DONE})
    assert engine.kv.pool.num_free_blocks == 4 and engine.kv.pool.num_cached_blocks == 2


@pytest.mark.parametrize("outcome", [BlockOutcome.FAILED, BlockOutcome.CORRUPT])
def test_a_load_that_failed_sends_all_who_share_it_back_and_they_compute(outcome: BlockOutcome) -> None:
    engine = Engine()
    engine.seed()
    requests = engine.add("a"), engine.add("b", 10)
    output = engine.schedule()
    engine.update(output, {load_of(output): outcome})
    assert {r.status for r in requests} == {RequestStatus.WAITING}
    assert [(r.num_lives, r.num_preemptions, r.num_computed_tokens) for r in requests] == [(1, 0, 0)] * 2
    assert engine.kv.pool.num_free_blocks == 64
    after = engine.step()
    assert tokens_of(after) == {"a": 9, "b": 10} and not after.gated_loads
    assert not any(t.kind is TransferKind.LOAD for t in after.transfers)
    assert engine.scheduler.stats().num_preemptions == 0


def test_after_two_loads_that_failed_a_request_is_computed_whatever_the_host_has() -> None:
    engine = Engine()
    request = engine.add("a", 17)
    for num_failed in range(1, MAX_FAILED_LOADS + 1):
        engine.seed(4)
        output = engine.schedule()
        engine.update(output, {load_of(output): BlockOutcome.CORRUPT})
        assert request.num_failed_loads == request.num_lives == num_failed
    engine.seed(4)
    after = engine.step()
    assert tokens_of(after) == {"a": 17} and not after.gated_loads and not request.load_ids
    engine.add("b", 17, prompt="p")
    assert engine.kv.get_computed_blocks(engine.scheduler._requests["b"]) == tuple(request.block_ids[:4])


def test_one_block_that_failed_leaves_the_others_to_be_used() -> None:
    engine = Engine()
    engine.seed(4)
    request = engine.add("a", 17)
    output = engine.schedule()
    outcomes = (DONE, DONE, BlockOutcome.CORRUPT, DONE)
    engine.scheduler.update(output, StepResult(output.step_id, (), (TransferResult(load_of(output), outcomes),)), NOW_S)
    engine.scheduler.check()
    assert request.status is RequestStatus.WAITING
    after = engine.step()
    assert tokens_of(after) == {"a": 9} and [s.num_computed_tokens for s in after.scheduled] == [8]


def test_a_step_upon_a_load_that_failed_counts_for_nothing() -> None:
    engine = Engine()
    engine.seed()
    request = engine.add("a")
    output = engine.schedule(link=FAST)
    load_id = load_of(output)
    assert output.gated_loads == (GatedLoad("a", load_id),)
    engine.update(output, {load_id: BlockOutcome.FAILED})
    assert (request.num_output_tokens, request.num_pending_samples, request.position) == (0, 0, 0)
    assert request.status is RequestStatus.WAITING and request.first_token_s is None
    assert tokens_of(engine.step()) == {"a": 9}
    assert request.num_output_tokens == 1


def test_its_admission_tells_where_the_prefix_was_and_a_failure_does_not_admit_it_twice() -> None:
    engine = Engine()
    engine.seed()
    engine.add("a")
    output = engine.schedule()
    (admission,) = output.admissions
    assert (admission.num_cached_tokens, admission.num_host_cached_tokens, admission.num_disk_cached_tokens) == (
        8,
        8,
        0,
    )
    engine.update(output, {load_of(output): BlockOutcome.FAILED})
    assert not engine.step().admissions


def test_choices_wait_for_a_leader_whose_load_is_under_way() -> None:
    engine = Engine()
    engine.seed(prompt="g")
    engine.scheduler.add(make_group("g", 2, 9, 50), NOW_S)
    output = engine.schedule()
    engine.update(output)
    assert tokens_of(engine.step()) == {} and engine.scheduler._requests["g/1"].status is RequestStatus.WAITING
    engine.update(engine.schedule(), {load_of(output): DONE})
    assert tokens_of(engine.step()) == {"g/0": 1}
    after = engine.step()
    assert tokens_of(after) == {"g/0": 1, "g/1": 1} and not after.gated_loads


@pytest.mark.parametrize("outcome", [DONE, BlockOutcome.FAILED])
def test_no_choice_takes_over_a_prompt_that_is_still_being_loaded(outcome: BlockOutcome) -> None:
    """The leader computed its prompt of two blocks, lost it, and has it all on the way back."""
    engine = Engine(max_num_seqs=2)
    engine.add("other", 4, prompt="other")
    engine.scheduler.add(make_group("g", 2, 8, 50), NOW_S)
    leader, choice = (engine.scheduler._requests[f"g/{index}"] for index in range(2))
    engine.step()
    engine.step()
    assert leader.num_output_tokens == 2 and choice.status is RequestStatus.WAITING, "its seat is taken"
    engine.scheduler._yielding.preempt(leader, StepPlan(99, NOW_S, 128, 4), 99)
    engine.scheduler.abort(["other"], NOW_S)
    forget_cached(engine.kv)
    assert all(map(engine.kv.tiers.is_on_host, leader.block_hashes)), "saved beside the second step"
    output = engine.schedule()
    assert leader.num_computed_tokens == 8 and leader.load_ids
    assert not output.scheduled and not output.block_copies and not choice.block_ids
    engine.update(output, {load_of(output): outcome})
    after = engine.step()
    if outcome is DONE:
        assert tokens_of(after) == {"g/0": 2, "g/1": 1} and len(after.block_copies) == 1
    else:
        assert tokens_of(after)["g/0"] == 10 and not after.block_copies
    while engine.scheduler.has_work():
        engine.step(FAST)
