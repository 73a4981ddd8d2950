"""The choice of victims: all or nothing, strictly lower for a waiting one, the cheapest to restore first."""

from __future__ import annotations

import dataclasses
import math

import pytest

from scheduler.config import SchedulerConfig
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.policy import Policy, new_request
from scheduler.preemption import RESUMED_S, Preemption
from scheduler.preemption_cost import RecomputeCost, VictimCosts, num_shared_blocks
from scheduler.request import Request, RequestStatus
from scheduler.restore_price import RestorePrices
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from scheduler.step_features import StepFeatures
from tests.latency_builders import STREAMING, make_coefficients
from tests.scheduler_builders import BLOCK_SIZE, make_spec, respecify

POLICY = Policy("priority", SLOClasses())
WATERMARK = 1
NOW_S = 10.0
MAX_TOKENS = 60
"""Far from the end for all that are not said to be near it."""


class PerToken:
    """Loading is free, computing a token takes so long."""

    def __init__(self, s_per_token: float) -> None:
        self._s_per_token = s_per_token

    def restore_s(self, num_kept: int, num_saved: int, num_tokens: int) -> float:
        return self._s_per_token * (num_tokens - min(max(num_kept, num_saved) * BLOCK_SIZE, num_tokens - 1))


class Cluster:
    """Running requests that fill a pool: batch-old and batch-new with 2 blocks each, standard with 3."""

    def __init__(self, max_num_seqs: int = 3, *, is_predicted: bool = False) -> None:
        config = SchedulerConfig(max_num_seqs=max_num_seqs, block_size=BLOCK_SIZE, max_preemptions=2)
        self.kv = KVCacheManager(7, BLOCK_SIZE, enable_prefix_caching=True)
        self.running = RunningSet()
        prices = RestorePrices(self.kv.tiers, LatencyModel(make_coefficients()), BLOCK_SIZE, 512)
        self.preemption = Preemption(config, self.running, self.kv, WATERMARK, prices if is_predicted else None)
        self.requests: dict[str, Request] = {}
        rows = (("batch-old", "batch", 7, 0.0), ("batch-new", "batch", 7, 2.0), ("standard", "standard", 11, 1.0))
        for name, slo_class, num_tokens, arrival_s in rows:
            self.add(name, slo_class, num_tokens, arrival_s)

    def add(self, name: str, slo_class: str, num_tokens: int, arrival_s: float) -> Request:
        """One that has its first token, and room for that."""
        spec = make_spec(name, num_tokens, MAX_TOKENS, slo_class=slo_class, arrival_s=arrival_s)
        request = new_request(spec, 0, POLICY)
        assert self.kv.allocate_slots(request, num_tokens) is not None
        request.move(RequestStatus.RUNNING)
        request.num_computed_tokens, request.num_output_tokens, request.started_s = num_tokens, 1, arrival_s
        self.running.add(request)
        self.requests[name] = request
        return request

    def for_head(
        self, slo_class: str, num_blocks: int, max_victims: int = 9, shared: tuple[int, ...] = ()
    ) -> list[str]:
        head = new_request(make_spec("head", 4, 1, slo_class=slo_class, arrival_s=9.0), 0, POLICY)
        victims = self.preemption.victims_for_head(head, num_blocks, shared, max_victims, NOW_S)
        return [v.request_id for v in victims]

    def for_block(self, name: str, num_blocks: int = 1, max_victims: int = 9) -> list[str]:
        victims = self.preemption.victims_for_block(self.requests[name], num_blocks, max_victims, NOW_S)
        return [v.request_id for v in victims]

    def resumed(self, name: str, num_new_tokens: int, ago_s: float) -> Request:
        """Lets one have been preempted, and back for so long."""
        request = self.requests[name]
        request.num_preemptions, request.started_s = 1, NOW_S - ago_s
        request.num_lost_tokens = request.num_computed_tokens - num_new_tokens
        return request


def test_a_head_takes_lower_classes_newest_first_and_no_more_than_it_needs() -> None:
    assert Cluster().for_head("standard", 1) == ["batch-new"]
    assert Cluster().for_head("standard", 2) == ["batch-new", "batch-old"], "2 and the watermark of 1"
    assert Cluster().for_head("realtime", 5) == ["batch-new", "batch-old", "standard"]


def test_a_head_never_takes_its_equals() -> None:
    assert Cluster().for_head("batch", 1) == []
    assert Cluster().for_head("standard", 4) == [], "batch alone is not enough, so nobody yields"


def test_the_watermark_is_not_kept_for_nobody() -> None:
    assert Cluster().for_head("realtime", 7) == ["batch-new", "batch-old", "standard"]
    assert Cluster().for_head("realtime", 8) == []


def test_no_more_victims_than_allowed_or_none() -> None:
    assert Cluster().for_head("realtime", 3, max_victims=2) == ["batch-new", "batch-old"]
    assert Cluster().for_head("realtime", 4, max_victims=1) == []


def test_with_few_victims_allowed_larger_ones_go() -> None:
    """Two blocks each are not enough for 4 and the watermark; the three of standard and two more are."""
    assert Cluster().for_head("realtime", 4, max_victims=2) == ["batch-new", "standard"]
    assert Cluster().for_head("realtime", 2, max_victims=1) == ["standard"]


def test_a_head_that_lacks_a_seat_only_takes_one() -> None:
    assert Cluster(max_num_seqs=3).for_head("realtime", -WATERMARK) == ["batch-new"]
    assert Cluster(max_num_seqs=3).for_head("realtime", -7) == ["batch-new"]
    assert Cluster(max_num_seqs=4).for_head("realtime", -WATERMARK) == []


def test_what_the_others_take_in_this_step_is_wanted_too() -> None:
    cluster = Cluster()
    standard = cluster.requests["standard"]
    standard.num_computed_tokens, standard.num_output_tokens = 12, 2  # its next token opens a block
    assert cluster.for_head("realtime", 1) == ["batch-new", "batch-old"]


def test_what_a_victim_does_not_take_in_this_step_counts() -> None:
    cluster = Cluster()
    newest = cluster.requests["batch-new"]
    newest.num_computed_tokens, newest.num_output_tokens = 8, 2
    assert cluster.for_head("realtime", 1) == ["batch-new"], "2 blocks, and it needs no third"
    assert cluster.for_block("standard", 3) == ["batch-new", "batch-old"], "a block that is needed now must be there"


def test_blocks_that_the_head_shares_free_nothing_for_it() -> None:
    cluster = Cluster()
    shared = tuple(cluster.requests["batch-new"].block_ids[:1])
    assert cluster.for_head("realtime", 1, shared=shared) == ["batch-old"], "2 blocks, where batch-new frees but 1"


def test_nobody_yields_to_a_head_that_the_budget_does_not_reach() -> None:
    cluster = Cluster()
    cluster.requests["standard"].num_computed_tokens = 0
    respecify(cluster.requests["standard"], num_prompt_tokens=2000)
    assert cluster.for_head("realtime", 1) == ["batch-new"], "a later deadline does not come before it"
    cluster.requests["standard"].order = (0, 0.0, 0.0, "", 0)
    assert cluster.for_head("realtime", 1) == []


def test_a_running_request_takes_its_juniors_equals_included() -> None:
    assert Cluster().for_block("standard") == ["batch-new"]
    assert Cluster().for_block("batch-old") == ["batch-new"]
    assert Cluster().for_block("batch-new") == [], "the newest of the lowest class yields itself"


def test_a_pinned_request_is_never_chosen() -> None:
    cluster = Cluster()
    cluster.requests["batch-new"].num_preemptions = 2
    assert cluster.for_block("standard") == ["batch-old"]
    assert cluster.for_block("standard", num_blocks=3) == []
    assert cluster.for_head("realtime", 1) == ["batch-old"]


def test_whoever_shares_all_its_blocks_gives_nothing_and_stays() -> None:
    cluster = Cluster()
    cluster.kv.pool.acquire(cluster.requests["batch-new"].block_ids)
    assert cluster.for_block("standard") == ["batch-old"]
    assert cluster.for_block("standard", num_blocks=3) == []


def test_blocks_that_only_several_free_together_count_where_they_are_needed() -> None:
    cluster = Cluster()
    old, new = cluster.requests["batch-old"], cluster.requests["batch-new"]
    cluster.kv.pool.release(new.block_ids[:1])
    new.block_ids[0] = old.block_ids[0]
    cluster.kv.pool.acquire(old.block_ids[:1])
    assert cluster.kv.pool.num_free_blocks == 1
    assert cluster.for_block("standard", 2) == ["batch-new", "batch-old"]
    assert cluster.for_block("standard", 3) == ["batch-new", "batch-old"], "one each, and one that they shared"
    assert cluster.for_block("standard", 4) == []


@pytest.mark.parametrize("num_left", [1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_a_request_near_its_end_is_spared(num_left: int) -> None:
    cluster = Cluster()
    newest = cluster.requests["batch-new"]
    respecify(newest, max_tokens=1 + num_left)
    assert newest.spec.num_kv_tokens - newest.position == num_left
    is_spared = num_left <= BLOCK_SIZE
    assert cluster.for_head("realtime", 1) == (["batch-old"] if is_spared else ["batch-new"])
    assert cluster.for_block("standard") == (["batch-old"] if is_spared else ["batch-new"])


@pytest.mark.parametrize(
    ("num_new_tokens", "ago_s", "is_spared"),
    [(8, RESUMED_S, False), (7, RESUMED_S, True), (8, 0.9 * RESUMED_S, True), (-3, 60.0, True)],
)
def test_a_request_that_came_back_is_spared_for_a_while_and_some_tokens(
    num_new_tokens: int, ago_s: float, is_spared: bool
) -> None:
    cluster = Cluster()
    cluster.requests["batch-new"].num_computed_tokens = 8
    cluster.resumed("batch-new", num_new_tokens, ago_s)
    assert cluster.for_head("realtime", 1) == (["batch-old"] if is_spared else ["batch-new"])


def test_no_head_takes_the_spared_but_nobody_that_runs_yields_to_its_junior_for_them() -> None:
    cluster = Cluster()
    for name in ("batch-new", "batch-old"):
        cluster.resumed(name, 0, 0.1)
    assert cluster.for_head("standard", 1) == []
    assert cluster.for_block("standard") == ["batch-new"]
    assert cluster.for_block("batch-old") == ["batch-new"]


def test_a_running_request_takes_spared_ones_of_lower_classes_before_its_equals() -> None:
    cluster = Cluster()
    cluster.requests["batch-old"].num_preemptions = 2
    cluster.resumed("batch-new", 0, 0.1)
    newer = cluster.requests["standard"]
    cluster.running.remove(newer)
    newer.seniority = (2, 5.0, 5.0, "standard", 0)
    cluster.running.add(newer)
    older = new_request(make_spec("older", 4, MAX_TOKENS, arrival_s=0.5), 0, POLICY)
    cluster.requests["older"] = older
    cluster.running.add(older)
    assert cluster.for_block("older") == ["batch-new"]
    assert cluster.for_block("older", 4) == ["batch-new", "standard"]


# By cost.


def due(cluster: Cluster, **in_s: float) -> Cluster:
    for name, seconds in in_s.items():
        cluster.requests[name.replace("_", "-")].deadlines.next_s = NOW_S + seconds
    return cluster


def test_whoever_has_the_most_slack_yields_first() -> None:
    cluster = due(Cluster(is_predicted=True), batch_old=5.0, batch_new=4.0, standard=90.0)
    assert cluster.for_head("realtime", 1) == ["batch-old"], "batch is promised nothing and goes before standard"
    assert cluster.for_head("realtime", 2) == ["batch-old", "batch-new"]
    assert cluster.for_head("realtime", 4) == ["batch-old", "standard"], "with standard, one of the others will do"
    assert cluster.for_head("realtime", 5) == ["batch-old", "batch-new", "standard"]
    assert cluster.for_block("standard") == ["batch-old"]
    assert cluster.for_block("batch-old") == ["batch-new"], "among equals the newest"


def test_a_broken_promise_goes_before_one_that_can_be_kept() -> None:
    cluster = due(Cluster(max_num_seqs=4, is_predicted=True), standard=90.0)
    for name in ("batch-old", "batch-new"):
        cluster.requests[name].is_protected = True
    assert cluster.for_head("realtime", 1) == ["batch-new"]
    cluster.requests["batch-old"].deadlines.is_lost = True
    assert cluster.for_head("realtime", 1) == ["batch-old"]
    cluster.requests["batch-old"].deadlines.is_lost = False
    cluster.requests["batch-old"].is_relegated = True
    assert cluster.for_head("realtime", 1) == ["batch-old"]


def test_what_is_left_of_the_slack_after_restoring_counts() -> None:
    cluster = due(Cluster(is_predicted=True), batch_old=5.0, batch_new=5.001)
    assert cluster.for_head("realtime", 1) == ["batch-new"]
    new = cluster.requests["batch-new"]
    respecify(new, num_prompt_tokens=8)  # one more to compute takes more than 1 ms
    assert cluster.for_head("realtime", 1) == ["batch-old"]


def test_equal_slack_goes_by_own_blocks_then_by_age() -> None:
    cluster = due(Cluster(is_predicted=True), batch_old=5.0, batch_new=5.0)
    assert cluster.for_head("realtime", 1) == ["batch-new"]
    old, new = cluster.requests["batch-old"], cluster.requests["batch-new"]
    costs = VictimCosts(PerToken(0.0), cluster.kv.pool, NOW_S, has_cache=True)
    assert costs.key(old) == costs.key(new) == (False, -5.0, 2)
    cluster.kv.pool.acquire(old.block_ids[:1])
    assert costs.key(old) == (False, -5.0, 1) < costs.key(new)


def test_blocks_that_others_use_are_not_computed_again() -> None:
    cluster = Cluster(is_predicted=True)
    standard = cluster.requests["standard"]
    standard.deadlines.next_s = NOW_S
    cluster.kv.pool.acquire(standard.block_ids[:2])
    assert num_shared_blocks(standard, cluster.kv.pool) == 2
    restore = PerToken(0.5)
    costs, without = (VictimCosts(restore, cluster.kv.pool, NOW_S, has_cache=has_cache) for has_cache in (True, False))
    assert costs.key(standard) == (True, 0.5 * (12 - 8), 1)
    assert without.key(standard) == (True, 0.5 * 12, 1)
    respecify(standard, reads_prefix_cache=False)
    assert costs.key(standard) == without.key(standard)
    cluster.kv.pool.acquire(standard.block_ids[2:])
    respecify(standard, num_prompt_tokens=11, reads_prefix_cache=True)
    assert costs.key(standard) == (True, 0.5, 0), "the last token is always computed"


def test_blocks_that_the_host_has_count_as_saved_up_to_the_first_that_it_lacks() -> None:
    cluster = Cluster(is_predicted=True)
    standard = cluster.requests["standard"]
    standard.deadlines.next_s = NOW_S
    for num_on_host in range(len(standard.block_hashes) + 1):
        on_host = set(standard.block_hashes[:num_on_host])
        costs = VictimCosts(PerToken(0.5), cluster.kv.pool, NOW_S, has_cache=True, is_saved=on_host.__contains__)
        assert costs.key(standard)[1] == 0.5 * (12 - 4 * num_on_host)


@pytest.mark.parametrize("link", [NO_LINK, STREAMING])
def test_recomputing_costs_what_its_chunks_take(link) -> None:
    """Against the sum of the predictions of every chunk: exact in the pairs, and full chunks to the nanosecond."""
    model = LatencyModel(make_coefficients())
    chunk = 128
    cost = RecomputeCost.of(model, link, chunk)

    def chunks_s(num_kept: int, num_chunks: int) -> float:
        return sum(
            model.mean_s(StepFeatures().with_chunk(chunk, num_kept + i * chunk, samples=False), link)
            for i in range(num_chunks)
        )

    for num_kept, num_chunks in ((0, 1), (0, 2), (0, 7), (256, 3)):
        tokens = num_kept + num_chunks * chunk
        assert cost.restore_s(num_kept, tokens) == pytest.approx(chunks_s(num_kept, num_chunks), rel=1e-9)
    assert cost.restore_s(40, 40) == 0.0
    assert cost.s_per_token >= 0.0 and cost.s_per_pair >= 0.0


def test_a_link_that_bounds_every_step_makes_pairs_free() -> None:
    slow = dataclasses.replace(STREAMING, num_streamed_layers=10_000)
    cost = RecomputeCost.of(LatencyModel(make_coefficients()), slow, 128)
    assert cost.s_per_pair == 0.0 and math.isclose(cost.s_per_token * 128, 10_000 * 2e6 / 1e9 + 1e-3)
