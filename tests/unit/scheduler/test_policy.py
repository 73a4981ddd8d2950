"""Who is served first, who yields first."""

import pytest

from scheduler.policy import Policy
from scheduler.slo import SLO, SLOClasses
from tests.scheduler_builders import make_spec

CLASSES = SLOClasses()


def test_rank_goes_before_deadline_and_deadline_before_arrival() -> None:
    policy = Policy("priority", CLASSES)
    specs = [
        make_spec("batch", 10, 1, slo_class="batch", arrival_s=0.0),
        make_spec("long", 5000, 1, arrival_s=1.0),
        make_spec("short", 10, 1, arrival_s=2.0),
        make_spec("realtime", 10, 1, slo_class="realtime", arrival_s=3.0),
    ]
    assert [s.request_id for s in sorted(specs, key=lambda s: policy.order(s, 0))] == [
        "realtime",
        "short",
        "long",
        "batch",
    ]


def test_a_clients_own_target_sets_the_deadline() -> None:
    policy = Policy("priority", CLASSES)
    own = make_spec("own", 10, 1, slo=SLO("standard", "standard", ttft_s=0.5))
    assert policy.order(own, 0)[1] == pytest.approx(0.5)
    assert policy.order(make_spec("class", 10, 1), 0)[1] == pytest.approx(3.003)


def test_the_newest_of_the_lowest_class_is_the_least_senior() -> None:
    policy = Policy("priority", CLASSES)
    specs = [
        make_spec("old-long", 5000, 1, arrival_s=1.0),
        make_spec("new-short", 10, 1, arrival_s=2.0),
        make_spec("old-batch", 10, 1, slo_class="batch", arrival_s=0.0),
    ]
    order = [s.request_id for s in sorted(specs, key=lambda s: policy.seniority(s, 0))]
    assert order == ["old-long", "new-short", "old-batch"]


def test_fcfs_knows_no_classes() -> None:
    policy = Policy("fcfs", SLOClasses())
    low = policy.order(make_spec("a", 10, 1, slo_class="batch", arrival_s=0.0), 0)
    high = policy.order(make_spec("b", 10, 1, slo_class="realtime", arrival_s=1.0), 0)
    assert low < high and low[0] == high[0]
    assert policy.seniority(make_spec("a", 10, 1), 0) == policy.order(make_spec("a", 10, 1), 0)


def test_equal_requests_are_told_apart_by_group_and_place() -> None:
    policy = Policy("priority", CLASSES)
    keys = [
        policy.order(make_spec(name, 10, 1, group_id=group), i) for name, group, i in (("x", "a", 2), ("y", "b", 0))
    ]
    assert keys == sorted(keys) and len(set(keys)) == 2
