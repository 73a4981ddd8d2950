"""The demand curve against sums over a plain list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.demand_curve import RUN_ENTRIES, DemandCurve, Lateness, Work, WorkCost
from scheduler.request import OrderKey

Entries = dict[str, tuple[OrderKey, float, Work]]
COSTS = st.builds(WorkCost, st.floats(0.0, 0.01), st.floats(0.0, 1e-5), st.integers(0, 50))
WORKS = st.builds(Work.between, st.integers(0, 200), st.integers(0, 400))
DUES = st.one_of(st.floats(0.0, 10.0), st.just(math.inf))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "work", "drop"]), st.integers(0, 90), DUES, WORKS), max_size=150
)


def key_of(index: int, rank: int = 0) -> OrderKey:
    return (rank, (index * 7919 % 100) / 10.0, 0.0, f"g{index}", 0)


def plain_lateness(
    entries: Entries,
    key: OrderKey,
    due_s: float,
    work: Work,
    cost: WorkCost,
    least: WorkCost,
    now_s: float,
    lag_s: float,
) -> Lateness:
    """Every deadline on its own."""

    def seconds(works: list[Work], cost: WorkCost = cost) -> float:
        return cost.seconds(sum(w.num_tokens for w in works), math.fsum(w.num_pairs for w in works))

    before = [w for k, _, w in entries.values() if k < key]
    finish_s = now_s + lag_s + seconds([*before, work])
    others_s = -math.inf
    for entry_key, entry_due_s, own in entries.values():
        if entry_key < key or now_s + seconds([own], least) > entry_due_s:
            continue
        ahead = [w for k, _, w in entries.values() if k <= entry_key]
        others_s = max(others_s, now_s + lag_s + seconds([*ahead, work]) - entry_due_s)
    return Lateness(finish_s, finish_s - due_s, others_s)


@settings(max_examples=60, deadline=None)
@given(
    OPERATIONS, st.integers(0, 99), DUES, WORKS, COSTS, st.floats(0.1, 1.0), st.floats(0.0, 5.0), st.floats(0.0, 0.5)
)
def test_lateness_is_that_of_the_plain_sums(
    operations: list[tuple[str, int, float, Work]],
    place: int,
    due_s: float,
    work: Work,
    cost: WorkCost,
    share: float,
    now_s: float,
    lag_s: float,
) -> None:
    curve, entries = DemandCurve(), Entries()
    for kind, index, entry_due_s, entry_work in operations:
        name = f"r{index}"
        if kind == "put":
            curve.put(name, key_of(index), entry_due_s, entry_work)
            entries[name] = key_of(index), entry_due_s, entry_work
        elif kind == "work":
            curve.set_work(name, entry_work)
            if name in entries:
                entries[name] = (*entries[name][:2], entry_work)
        else:
            curve.drop(name)
            entries.pop(name, None)
    curve.check(entries)
    assert len(curve) == len(entries)
    assert curve.total().num_tokens == sum(w.num_tokens for _, _, w in entries.values())
    key = (0, place / 10.0, 1.0, "new", 0)
    least = cost.stretched(share)
    found = curve.lateness(key, due_s, work, cost, least, now_s, lag_s)
    plain = plain_lateness(entries, key, due_s, work, cost, least, now_s, lag_s)
    assert found.finish_s == pytest.approx(plain.finish_s)
    if due_s < math.inf:
        assert found.own_s == pytest.approx(plain.own_s)
    if max(found.others_s, plain.others_s) > 1e-9:  # whoever is in time need not be told by how much
        assert found.others_s == pytest.approx(plain.others_s, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 10.0), WORKS), max_size=40), COSTS)
def test_letting_in_what_makes_nobody_late_leaves_everybody_in_time(
    offers: list[tuple[float, Work]], cost: WorkCost
) -> None:
    """In the order of their deadlines, every entry that was let in is in time by the sums at the end."""
    curve, entries = DemandCurve(), Entries()
    for index, (due_s, work) in enumerate(offers):
        key = (0, due_s, 0.0, f"r{index:03}", 0)
        late = curve.lateness(key, due_s, work, cost, cost, 0.0, 0.05)
        if late.own_s <= 0.0 and late.others_s <= 0.0:
            curve.put(f"r{index}", key, due_s, work)
            entries[f"r{index}"] = key, due_s, work
    for key, due_s, _ in entries.values():
        ahead = [w for k, _, w in entries.values() if k <= key]
        took_s = cost.seconds(sum(w.num_tokens for w in ahead), math.fsum(w.num_pairs for w in ahead))
        assert 0.05 + took_s <= due_s + 1e-9


def test_work_does_not_depend_on_how_it_is_cut() -> None:
    whole = Work.between(100, 1000)
    parts = Work.between(100, 350) + Work.between(350, 351) + Work.between(351, 1000)
    assert (parts.num_tokens, parts.num_pairs) == (whole.num_tokens, pytest.approx(whole.num_pairs))
    assert whole.num_pairs == pytest.approx(sum(position + 0.5 for position in range(100, 1000)))
    assert Work.between(5, 3) == Work()


def test_a_lost_promise_holds_up_nobody_and_its_work_still_counts() -> None:
    curve, cost = DemandCurve(), WorkCost(0.01, 0.0)
    curve.put("lost", (0, 1.0, 0.0, "lost", 0), 1.0, Work(200))
    assert curve.lateness((0, 0.5, 0.0, "new", 0), 9.0, Work(50), cost, cost, 0.0, 0.0).others_s == -math.inf
    assert curve.lateness((0, 2.0, 0.0, "new", 0), 2.4, Work(50), cost, cost, 0.0, 0.0).own_s == pytest.approx(0.1)


def test_many_entries_are_kept_in_short_runs() -> None:
    curve = DemandCurve()
    for index in range(1000):
        curve.put(f"r{index}", (0, float(index * 7919 % 1000), 0.0, f"r{index}", 0), 1e6, Work(1))
    curve.check(f"r{index}" for index in range(1000))
    assert 1000 / (2 * RUN_ENTRIES) <= len(curve._runs) <= 1000 / RUN_ENTRIES + 1
    for index in range(1000):
        curve.drop(f"r{index}")
    curve.check(())
    assert curve.total() == Work()
