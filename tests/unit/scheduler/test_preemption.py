"""The choice of victims: all or nothing, strictly lower for a waiting one, the least senior first."""

from __future__ import annotations

from scheduler.config import SchedulerConfig
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.policy import PriorityPolicy, new_request
from scheduler.preemption import Preemption
from scheduler.request import Request
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from tests.scheduler_builders import BLOCK_SIZE, make_spec

POLICY = PriorityPolicy(SLOClasses())
WATERMARK = 1


class Cluster:
    """Running requests that fill a pool: batch-old and batch-new with 2 blocks each, standard with 3."""

    def __init__(self, max_num_seqs: int = 3) -> None:
        config = SchedulerConfig(max_num_seqs=max_num_seqs, block_size=BLOCK_SIZE, max_preemptions=2)
        self.kv = KVCacheManager(7, BLOCK_SIZE, enable_prefix_caching=True)
        self.running = RunningSet()
        self.preemption = Preemption(config, self.running, self.kv, WATERMARK)
        self.requests: dict[str, Request] = {}
        rows = (("batch-old", "batch", 7, 0.0), ("batch-new", "batch", 7, 2.0), ("standard", "standard", 11, 1.0))
        for name, slo_class, num_tokens, arrival_s in rows:
            request = new_request(make_spec(name, num_tokens, 9, slo_class=slo_class, arrival_s=arrival_s), 0, POLICY)
            self.kv.allocate_slots(request, num_tokens)
            request.num_computed_tokens, request.num_output_tokens = num_tokens, 1
            self.running.add(request)
            self.requests[name] = request

    def for_head(
        self, slo_class: str, num_blocks: int, max_victims: int = 9, shared: tuple[int, ...] = ()
    ) -> list[str]:
        head = new_request(make_spec("head", 4, 1, slo_class=slo_class, arrival_s=9.0), 0, POLICY)
        return [v.request_id for v in self.preemption.victims_for_head(head, num_blocks, shared, max_victims)]

    def for_block(self, name: str, num_blocks: int = 1, max_victims: int = 9) -> list[str]:
        return [v.request_id for v in self.preemption.victims_for_block(self.requests[name], num_blocks, max_victims)]


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
    assert Cluster().for_head("realtime", 4, max_victims=2) == []


def test_a_head_that_lacks_a_seat_only_takes_one() -> None:
    assert Cluster(max_num_seqs=3).for_head("realtime", -WATERMARK) == ["batch-new"]
    assert Cluster(max_num_seqs=4).for_head("realtime", -WATERMARK) == []


def test_what_the_others_take_in_this_step_is_wanted_too() -> None:
    cluster = Cluster()
    standard = cluster.requests["standard"]
    standard.num_computed_tokens, standard.num_output_tokens = 12, 2  # its next token opens a block
    assert cluster.for_head("realtime", 1) == ["batch-new", "batch-old"]


def test_blocks_that_the_head_shares_free_nothing_for_it() -> None:
    cluster = Cluster()
    shared = tuple(cluster.requests["batch-new"].block_ids[:1])
    assert cluster.for_head("realtime", 1, shared=shared) == ["batch-new", "batch-old"]


def test_nobody_yields_to_a_head_that_the_budget_does_not_reach() -> None:
    cluster = Cluster()
    cluster.requests["standard"].num_computed_tokens = 0
    cluster.requests["standard"].spec = make_spec("standard", 2000, 9)
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


def test_blocks_shared_with_others_do_not_count() -> None:
    cluster = Cluster()
    cluster.kv.pool.acquire(cluster.requests["batch-new"].block_ids)
    assert cluster.for_block("standard") == ["batch-new", "batch-old"]
    assert cluster.for_block("standard", max_victims=1) == []
