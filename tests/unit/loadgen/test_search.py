"""The capacity search against servers whose capacity is a formula."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from loadgen.intervals import clopper_pearson
from loadgen.probe import ClassCount, Grader, Probe, Verdict
from loadgen.search import Measure, Search, SearchLimits, SearchResult
from tests.synthetic_server import CoinServer, FluidServer, misses_grow

OBJECTIVE = 0.9


def _search(measure: Measure, **options: Any) -> SearchResult:
    defaults: dict[str, Any] = {
        "start_rate_per_s": 1.0,
        "min_rate_per_s": 0.0,
        "max_rate_per_s": None,
        "resolution": 0.05,
        "max_looks": 1,
        "max_probes": 40,
        "checks_above": True,
    }
    objectives = options.pop("objectives", {"a": OBJECTIVE})
    limits = SearchLimits(**{**defaults, **options})
    seen: list[Probe] = []
    search = Search(limits, Grader(objectives, 0.95, limits.max_looks), measure, seen.append)
    result = asyncio.run(search.run())
    assert tuple(seen) == result.probes
    return result


@pytest.mark.parametrize("start_rate_per_s", [0.3, 5.0, 300.0])
@pytest.mark.parametrize("objective", [0.5, 0.9, 0.99])
def test_a_deterministic_servers_capacity_is_found_to_the_resolution(start_rate_per_s: float, objective: float) -> None:
    server = FluidServer(service_s=0.1, patience_s=2.0, num_requests=400)
    truth = server.capacity_per_s(objective)
    assert asyncio.run(server(truth * 0.9999, 0)).counts["a"].num_met >= objective * 400
    assert asyncio.run(server(truth * 1.01, 0)).counts["a"].num_met < objective * 400
    found = _search(server, start_rate_per_s=start_rate_per_s, objectives={"a": objective}, resolution=0.01)
    assert found.capacity_per_s is not None and found.first_miss is not None
    assert found.capacity_per_s <= truth <= found.first_miss.rate_per_s <= found.capacity_per_s * 1.01
    assert found.is_resolved and not found.reversals
    assert found.surely_met_per_s is not None and found.surely_missed_per_s is not None
    assert found.surely_met_per_s <= truth <= found.surely_missed_per_s


def test_the_interval_covers_the_truth_for_nine_in_ten_seeds() -> None:
    truth = 23.0
    covered = near = 0
    for seed in range(200):
        server = CoinServer({"a": misses_grow(truth, OBJECTIVE)}, 150, seed)
        found = _search(server, start_rate_per_s=4.0, max_looks=3)
        low, high = found.surely_met_per_s or 0.0, found.surely_missed_per_s or math.inf
        covered += low <= truth <= high
        near += found.capacity_per_s is not None and truth / 1.5 <= found.capacity_per_s <= truth * 1.5
    assert covered >= 180
    assert near >= 180


def test_the_interval_is_of_use() -> None:
    """Not only does it cover: where a thousand requests are judged it is narrower than a factor of two."""
    server = CoinServer({"a": misses_grow(23.0, OBJECTIVE)}, 1000, 5)
    found = _search(server, start_rate_per_s=4.0, max_looks=4)
    assert found.surely_met_per_s is not None and found.surely_missed_per_s is not None
    assert found.surely_missed_per_s < 2.0 * found.surely_met_per_s


def test_a_probe_is_prolonged_only_while_it_is_undecided() -> None:
    server = CoinServer({"a": misses_grow(23.0, OBJECTIVE)}, 150, 0)
    found = _search(server, start_rate_per_s=4.0, max_looks=4)
    assert server.asked == [(p.rate_per_s, look) for p in found.probes for look in range(len(p.looks))]
    assert found.probes[0].is_sure and len(found.probes[0].looks) == 1, "far below the capacity one look is enough"
    unsure = [p for p in found.probes if not p.is_sure]
    assert unsure and all(len(p.looks) == 4 for p in unsure)
    for probe in unsure:
        attainment = probe.counts["a"].attainment
        assert attainment is not None and probe.passed == (attainment >= OBJECTIVE)
    for probe in found.probes:
        count = probe.counts["a"]
        assert count == sum((look.counts["a"] for look in probe.looks), ClassCount(0, 0))
        exact = clopper_pearson(count.num_met, count.num_judged, 1.0 - 0.05 / 4)
        assert probe.is_sure == (not exact.low < OBJECTIVE < exact.high)


def test_every_judged_class_must_keep_its_objective_and_no_other() -> None:
    tight, loose = misses_grow(10.0, 0.9), misses_grow(40.0, 0.8)
    server = CoinServer({"a": tight, "b": loose}, 2000, 1)
    for objectives, truth in (({"a": 0.9, "b": 0.8}, 10.0), ({"b": 0.8}, 40.0), ({"a": 0.9}, 10.0)):
        found = _search(server, objectives=objectives)
        assert found.capacity_per_s == pytest.approx(truth, rel=0.15)


def test_where_the_client_is_too_slow_nothing_passes_and_it_is_said() -> None:
    server = CoinServer({"a": misses_grow(1000.0, OBJECTIVE)}, 200, 0, client_limit_per_s=50.0)
    found = _search(server)
    assert found.capacity_per_s is not None and 50.0 / 1.05 <= found.capacity_per_s < 50.0
    assert found.client_limit_per_s is not None and 50.0 <= found.client_limit_per_s < 50.0 * 1.05
    assert not found.is_resolved, "the server's capacity is above"
    assert found.surely_missed_per_s is None
    assert all(p.verdict is Verdict.INVALID for p in found.probes if p.rate_per_s >= 50.0)
    assert all(len(p.looks) == 1 for p in found.probes if p.verdict is Verdict.INVALID)


def test_a_pass_above_a_fail_is_reported_and_widens_the_interval() -> None:
    """A server that only does badly between 7 and 8.5 requests per second."""
    server = CoinServer({"a": lambda rate: 0.5 if 7.0 <= rate <= 8.5 else 1.0}, 200, 0)
    found = _search(server, start_rate_per_s=1.0)
    assert found.reversals
    assert all(low <= 8.5 < high for low, high in found.reversals)
    assert found.capacity_per_s is not None and found.capacity_per_s < 7.0
    assert found.surely_met_per_s is not None and found.surely_met_per_s < 7.0
    assert found.surely_missed_per_s is None, "no rate above the pass is known to fail"
    quiet = _search(server, start_rate_per_s=1.0, checks_above=False)
    assert not quiet.reversals


def test_a_server_that_meets_nothing_has_no_capacity_and_one_that_meets_all_no_bound() -> None:
    never = _search(CoinServer({"a": lambda _: 0.0}, 100, 0), max_probes=6)
    assert (never.capacity_per_s, never.surely_met_per_s) == (None, None)
    assert [p.rate_per_s for p in never.probes] == [2.0**-k for k in range(6)]
    patient = _search(CoinServer({"a": lambda _: 0.0}, 100, 0), min_rate_per_s=0.2)
    assert [p.rate_per_s for p in patient.probes] == [1.0, 0.5, 0.25, 0.3125]
    always = _search(CoinServer({"a": lambda _: 1.0}, 100, 0), max_rate_per_s=9.0)
    assert [p.rate_per_s for p in always.probes] == [1.0, 2.0, 4.0, 8.0, 9.0]
    assert (always.capacity_per_s, always.first_miss, always.is_resolved) == (9.0, None, False)
    assert (always.surely_met_per_s, always.surely_missed_per_s) == (9.0, None)


def test_an_interrupted_probe_is_left_out() -> None:
    server = CoinServer({"a": misses_grow(100.0, OBJECTIVE)}, 100, 0, interrupt_after=3)
    found = _search(server)
    assert found.interrupted
    assert len(found.probes) == 3 and len(server.asked) == 4


def test_a_class_of_which_nothing_was_judged_decides_nothing_and_is_not_met() -> None:
    grader = Grader({"a": 0.9, "b": 0.9}, 0.95, 1)
    counts = {"a": ClassCount(1000, 1000), "b": ClassCount(0, 0)}
    assert grader.decide(counts) is None
    assert grader.estimate(counts) is Verdict.FAILED
    assert grader.decide({"a": ClassCount(0, 1000), "b": ClassCount(0, 0)}) is Verdict.FAILED
    assert grader.decide({name: ClassCount(1000, 1000) for name in "ab"}) is Verdict.PASSED
