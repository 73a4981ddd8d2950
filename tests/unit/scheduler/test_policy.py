"""Who is served first, who yields first, and when a lower class may go before a higher one."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from scheduler.config import PolicyName
from scheduler.policy import HEADROOM, LENGTH_BIAS, OVERLOAD_HEADROOM, OVERLOAD_S, Backlog, Policy, new_request
from scheduler.request import Request
from scheduler.slo import SLO, SLOClasses
from tests.scheduler_builders import make_spec

CLASSES = SLOClasses()
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
DEADLINE = Policy("deadline", CLASSES)

SPECS = [
    make_spec("batch", 10, 1, slo_class="batch", arrival_s=0.0),
    make_spec("long", 20_000, 1, arrival_s=1.0),
    make_spec("short", 10, 1, arrival_s=6.9),
    make_spec("realtime", 10, 1, slo_class="realtime", arrival_s=9.0),
]
"""Due at 600, 10, 9.903 and 9.401 s."""


def names_in_order(policy: PolicyName) -> list[str]:
    return [s.request_id for s in sorted(SPECS, key=lambda s: Policy(policy, CLASSES).order(s, 0))]


def test_fcfs_goes_by_arrival() -> None:
    assert names_in_order("fcfs") == ["batch", "long", "short", "realtime"]


def test_priority_goes_by_rank_then_by_deadline() -> None:
    assert names_in_order("priority") == ["realtime", "short", "long", "batch"]
    order = Policy("priority", CLASSES).order
    earlier = make_spec("earlier", 20_000, 1, arrival_s=0.8)
    assert order(earlier, 0) < order(SPECS[2], 0), "the deadline, not the length"


def test_edf_goes_by_deadline_over_all_classes() -> None:
    due_s = {s.request_id: Policy("edf", CLASSES).order(s, 0)[1] for s in SPECS}
    assert due_s == pytest.approx({"batch": 600.0, "long": 10.0, "short": 9.903, "realtime": 9.401})
    assert names_in_order("edf") == ["realtime", "short", "long", "batch"]
    assert Policy("edf", CLASSES).order(make_spec("x", 10, 1, arrival_s=6.0), 0) < Policy("edf", CLASSES).order(
        SPECS[3], 0
    )


@pytest.mark.parametrize("is_overloaded", [False, True])
def test_deadline_goes_by_rank_then_by_deadline_and_in_overload_the_short_go_first(is_overloaded: bool) -> None:
    assert names_in_order("deadline") == ["realtime", "short", "long", "batch"]
    policy = Policy("deadline", CLASSES)
    if is_overloaded:
        policy.note_overload(0.0)
    long = make_spec("long", 3000, 1)  # due at 3.9 s
    gain_s = LENGTH_BIAS * 2 * 0.3 if is_overloaded else 0.0
    for late_s, is_first in ((gain_s - 0.01, True), (gain_s + 0.01, False)):
        short = make_spec("short", 1000, 1, arrival_s=0.6 + late_s)  # due so much later than the long one
        assert (policy.order(short, 0) < policy.order(long, 0)) == is_first


def test_an_overload_is_over_after_a_while() -> None:
    policy = Policy("deadline", CLASSES)
    calm = policy.order(make_spec("x", 1000, 1, arrival_s=OVERLOAD_S), 0)
    policy.note_overload(0.0)
    assert policy.order(make_spec("x", 1000, 1, arrival_s=OVERLOAD_S), 0) == calm
    assert policy.order(make_spec("x", 1000, 1, arrival_s=OVERLOAD_S - 1e-6), 0)[1] > calm[1]


@pytest.mark.parametrize("policy", ["priority", "edf", "deadline"])
def test_a_clients_own_target_sets_the_deadline(policy: PolicyName) -> None:
    own = new_request(make_spec("own", 10, 1, slo=SLO("standard", "standard", ttft_s=0.5)), 0, Policy(policy, CLASSES))
    other = new_request(make_spec("class", 10, 1), 0, Policy(policy, CLASSES))
    assert (own.deadlines.next_s, other.deadlines.next_s) == pytest.approx((0.5, 3.003))
    assert own.order < other.order


def test_a_request_of_its_class_is_due_before_it_is_on_the_socket() -> None:
    request = new_request(make_spec("a", 1000, 9, slo_class="interactive", arrival_s=5.0), 0, DEADLINE, egress_s=0.1)
    assert request.deadlines.next_s == pytest.approx(5.0 + 1.2 - 0.1)
    assert request.deadlines.tpot_s == 0.05 and request.is_protected and request.rank == 1
    assert not new_request(make_spec("b", 10, 1, slo_class="batch"), 0, DEADLINE).is_protected


@pytest.mark.parametrize("policy", POLICIES)
def test_the_newest_of_the_lowest_class_is_the_least_senior(policy: PolicyName) -> None:
    specs = [
        make_spec("old-long", 5000, 1, arrival_s=1.0),
        make_spec("new-short", 10, 1, arrival_s=2.0),
        make_spec("old-batch", 10, 1, slo_class="batch", arrival_s=0.0),
    ]
    order = [s.request_id for s in sorted(specs, key=lambda s: Policy(policy, CLASSES).seniority(s, 0))]
    if policy == "fcfs":
        assert order == ["old-batch", "old-long", "new-short"]
    else:
        assert order == ["old-long", "new-short", "old-batch"]


def test_fcfs_knows_no_classes() -> None:
    policy = Policy("fcfs", SLOClasses())
    assert [policy.rank(s) for s in SPECS] == [0] * 4
    assert policy.seniority(SPECS[0], 0) == policy.order(SPECS[0], 0)
    assert [Policy("edf", CLASSES).rank(s) for s in SPECS] == [3, 2, 2, 0], "others take seats by rank"


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_requests_are_told_apart_by_group_and_place(policy: PolicyName) -> None:
    keys = [
        Policy(policy, CLASSES).order(make_spec(name, 10, 1, group_id=group), i)
        for name, group, i in (("x", "a", 2), ("y", "b", 0), ("z", "b", 1))
    ]
    assert keys == sorted(keys) and len(set(keys)) == 3


# Whose turn it is under `deadline`.


def candidate(name: str, slo_class: str, due_s: float, num_tokens: int = 100, *, is_relegated: bool = False) -> Request:
    request = new_request(make_spec(name, num_tokens, 4, slo_class=slo_class), 0, DEADLINE)
    request.deadlines.next_s, request.is_relegated = due_s, is_relegated
    return request


def backlog(num_tokens_above: int, s_per_token: float | None = 0.001, now_s: float = 10.0) -> Backlog:
    return Backlog(now_s, s_per_token, lambda rank: num_tokens_above if rank > 0 else 0)


def chosen(candidates: list[Request], behind: Backlog) -> str:
    """The same in whatever order they are given."""
    names = {DEADLINE.choose(list(some), behind).request_id for some in itertools.permutations(candidates)}
    assert len(names) == 1
    return names.pop()


def test_the_earlier_deadline_goes_first_where_that_is_safe() -> None:
    high, low = candidate("high", "realtime", 20.0), candidate("low", "standard", 12.0)
    spare_s = HEADROOM * (500 + 100) * 0.001
    assert chosen([high, low], backlog(500)) == "low"
    assert chosen([high, candidate("later", "standard", 20.5)], backlog(500)) == "high"
    for more_s, first in ((-0.01, "high"), (0.01, "low")):
        close = [candidate("high", "realtime", 10.0 + spare_s + more_s), candidate("low", "standard", 10.1)]
        assert chosen(close, backlog(500)) == first


def test_rank_decides_where_the_higher_classes_would_be_late_or_nothing_is_known() -> None:
    high, low = candidate("high", "realtime", 20.0), candidate("low", "standard", 12.0)
    assert chosen([high, low], backlog(9900)) == "low"
    assert chosen([high, low], backlog(9901)) == "high"
    assert chosen([high, low], backlog(0, s_per_token=None)) == "high"


def test_in_overload_the_higher_classes_need_more_room() -> None:
    high, low = candidate("high", "realtime", 20.0), candidate("low", "standard", 12.0)
    policy = Policy("deadline", CLASSES)
    policy.note_overload(9.0)
    num_tokens = round(10.0 / 0.001 / OVERLOAD_HEADROOM) - 100
    assert policy.choose([high, low], backlog(num_tokens)) is low
    assert policy.choose([high, low], backlog(num_tokens + 1)) is high


def test_the_earliest_of_all_higher_deadlines_must_be_met() -> None:
    """The middle class is due before the high one: a step of the low one has to leave it its time too."""
    high, middle = candidate("high", "realtime", 30.0), candidate("middle", "interactive", 11.0)
    low = candidate("low", "standard", 10.5)
    assert chosen([high, middle, low], backlog(100)) == "low"
    assert chosen([high, middle, low], backlog(1000)) == "middle", "11 s are too few for the low one, 30 s are enough"
    assert chosen([high, low], backlog(1000)) == "low"


@pytest.mark.parametrize(
    ("others", "first"),
    [
        (("late", "batch"), "late"),
        (("in time", "late", "batch"), "in time"),
        (("batch",), "batch"),
        (("in time", "batch"), "in time"),
    ],
)
def test_who_can_be_in_time_goes_before_who_cannot_and_both_before_the_unprotected(
    others: tuple[str, ...], first: str
) -> None:
    candidates = {
        "late": candidate("late", "realtime", 1.0, is_relegated=True),
        "in time": candidate("in time", "standard", 99.0),
        "batch": candidate("batch", "batch", 0.5),
    }
    assert chosen([candidates[name] for name in others], backlog(0)) == first


def test_among_those_that_are_late_rank_decides() -> None:
    late = [
        candidate("realtime", "realtime", 9.0, is_relegated=True),
        candidate("standard", "standard", 1.0, is_relegated=True),
    ]
    assert chosen(late, backlog(0)) == "realtime"


@pytest.mark.parametrize("policy", ["fcfs", "priority", "edf"])
def test_the_other_policies_choose_by_their_order_whatever_waits(policy: PolicyName) -> None:
    by_name = Policy(policy, CLASSES)
    requests = [new_request(spec, 0, by_name) for spec in SPECS]
    requests[3].is_relegated = True
    for some in itertools.permutations(requests):
        assert by_name.choose(some, backlog(10**6)) is min(requests, key=lambda r: r.order)


def test_what_each_policy_does_beside_ordering() -> None:
    rights = {name: Policy(name, CLASSES).rights for name in POLICIES}
    assert [name for name in POLICIES if not rights[name].has_time_budget] == ["fcfs"]
    assert [name for name in POLICIES if not rights[name].is_fair] == ["fcfs"]
    for right in ("skips_decodes", "relegates", "gates_starts", "has_shares", "waits_to_preempt"):
        assert [name for name in POLICIES if getattr(rights[name], right)] == ["deadline"]
