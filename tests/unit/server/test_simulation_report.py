"""Attainment of simulated requests: judged as served ones, and all of them counted."""

from __future__ import annotations

import pytest

from scheduler.slo import Outcome, SLOClasses
from server.request_record import End
from server.simulated_requests import SimulatedRun
from server.simulation_report import attainment, by_class, protected_share, quantile
from server.slo_verdict import measure
from tests.simulations import DECODE_S, FIXED_S, HEAD_S, LAYER_S, NUM_LAYERS, PER_ROW_S, mix_of, simulate

CLASSES = SLOClasses()
MIX = (mix_of("realtime", 200, 20), mix_of("standard", 200, 20), mix_of("batch", 200, 20))
OVERLOAD_PER_S = 24.0
"""Times 200 tokens, at a machine that computes about 2,100 a second in steps of 64."""


def overload(rate_per_s: float, policy: str) -> SimulatedRun:
    """Steps are short enough for every class's pace, so that what is late is late for its wait."""
    return simulate(MIX, 300, rate_per_s, scheduler_policy=policy, max_num_batched_tokens=64, max_num_seqs=32)


def test_an_idle_machine_serves_all_at_the_sums_of_the_cost_model() -> None:
    run = simulate((mix_of("realtime", 100, 10),), 20, 0.01)
    ttft_s = NUM_LAYERS * (LAYER_S + 99 * PER_ROW_S) + HEAD_S + FIXED_S
    for record in run.records:
        measured = measure(record)
        assert measured.ttft_s == pytest.approx(ttft_s, rel=1e-9)
        assert measured.tpot_s == pytest.approx(DECODE_S, rel=1e-9)
        assert measured.max_gap_s == pytest.approx(DECODE_S, rel=1e-9)
        assert record.num_cached_tokens == 0
    found = attainment(run.records, CLASSES)
    assert found.outcomes == {Outcome.MET: 20}
    assert found.offered == found.admitted == 1.0
    assert found.values()["ttft_s"]["p99"] == pytest.approx(ttft_s, rel=1e-9)


def test_tokens_later_than_the_target_are_late_though_the_machine_is_idle() -> None:
    """A decode takes 19 ms; ten prompts of 400 tokens at once hold up whoever decodes for more than 30 ms a token."""
    run = simulate((mix_of("realtime", 400, 20),), 10, 1e6, scheduler_policy="fcfs")
    values = attainment(run.records, CLASSES).values()
    slow = sum(measure(record).tpot_s > 0.030 and measure(record).ttft_s <= 0.44 for record in run.records)
    assert values["late_tpot"] == slow > 0
    assert values["late_ttft"] == sum(measure(record).ttft_s > 0.44 for record in run.records) > 0
    assert values["met"] + values["late_ttft"] + values["late_tpot"] + values["late_stall"] == 10


def test_overload_refuses_and_every_offered_request_has_one_outcome() -> None:
    run = overload(OVERLOAD_PER_S, "fcfs")
    overall, classes = attainment(run.records, CLASSES), by_class(run.records, CLASSES)
    assert list(classes) == ["realtime", "standard", "batch"]
    assert overall.num_sent == sum(found.num_sent for found in classes.values()) == 300
    realtime = classes["realtime"]
    refused = sum(r.end is End.REFUSED for r in run.records if r.slo.requested == "realtime")
    assert realtime.outcomes[Outcome.REFUSED] == refused > 0
    expired = sum(r.end is End.EXPIRED for r in run.records if r.slo.requested == "realtime")
    assert realtime.outcomes[Outcome.EXPIRED] == expired > 0
    assert realtime.num_admitted == realtime.num_sent - refused - expired
    values = realtime.values()
    assert values["offered_attainment"] == values["met"] / values["sent"] < 1.0
    assert values["admitted_attainment"] == values["met"] / values["admitted"] > values["offered_attainment"]
    assert len(realtime.ttfts_s) == realtime.num_admitted, "refused requests have no time to a first token"


def test_in_overload_the_high_class_fares_better_under_priority_than_under_fcfs() -> None:
    shares = {}
    for policy in ("priority", "fcfs"):
        found = by_class(overload(OVERLOAD_PER_S / 2, policy).records, CLASSES)["realtime"]
        assert found.offered is not None
        shares[policy] = found.offered
    assert shares["priority"] > shares["fcfs"] + 0.2


def test_the_same_seed_gives_the_same_times_and_another_one_others() -> None:
    first, again, other = (simulate(MIX, 60, 20.0, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first.records != other.records


def test_capacity_counts_protected_classes_or_all_where_there_is_none() -> None:
    run = overload(OVERLOAD_PER_S, "fcfs")
    protected = [r for r in run.records if r.slo.requested != "batch"]
    assert protected_share(run.records, CLASSES) == attainment(protected, CLASSES).offered
    batch = [r for r in run.records if r.slo.requested == "batch"]
    assert protected_share(batch, CLASSES) == attainment(batch, CLASSES).offered is not None


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(index) for index in range(1, 101)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert quantile([], 0.5) is None
