"""Arrivals of a simulation, and the search for the rate that a machine bears."""

from __future__ import annotations

import itertools

import pytest

from engine.simulation.arrivals import STEADY, ArrivalPattern
from engine.simulation.capacity import busy_rate_per_s, find_capacity
from engine.simulation.replayed_load import ReplayedLoad, SeenRequest
from engine.simulation.simulation_error import SimulationError
from engine.simulation.traffic import CANCEL_MEAN_S, TrafficClass, draw_traffic
from scheduler.config import SchedulerConfig
from tests.simulations import LAYER_S, NUM_LAYERS, PER_ROW_S, make_machine, mix_of


def test_equal_seeds_give_the_same_requests_at_every_rate() -> None:
    mix = (TrafficClass("realtime", 2.0, (10, 500), (1, 90)), TrafficClass("batch", 1.0, (100, 200), (5, 5)))
    slow, fast, other = (draw_traffic(mix, 200, *args, 4096).requests for args in ((1.0, 7), (4.0, 7), (1.0, 8)))
    for a, b in zip(slow, fast, strict=True):
        assert (a.group_id, a.prompts, a.sampling, a.slo) == (b.group_id, b.prompts, b.sampling, b.slo)
        assert a.arrival_s == pytest.approx(4.0 * b.arrival_s, rel=1e-12)
    assert [r.arrival_s for r in slow] != [r.arrival_s for r in other]


def test_arrivals_are_poisson_and_classes_come_in_their_shares() -> None:
    mix = (mix_of("realtime", 1, 1, share=3.0), mix_of("batch", 1, 1, share=1.0))
    requests = draw_traffic(mix, 4000, 10.0, 0, 64).requests
    times = [0.0, *(request.arrival_s for request in requests)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.05)
    # Of exponential gaps the variance is the mean squared.
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)
    assert sum(r.slo.requested == "realtime" for r in requests) / len(requests) == pytest.approx(0.75, abs=0.02)


def test_lengths_lie_in_their_range_and_reach_both_ends() -> None:
    requests = draw_traffic((TrafficClass("batch", 1.0, (3, 6), (1, 2)),), 200, 1.0, 0, 64).requests
    assert {len(r.prompts[0]) for r in requests} == {3, 4, 5, 6}
    assert {r.sampling.max_tokens for r in requests} == {1, 2}


def test_what_is_longer_than_the_model_reads_is_cut_and_counted() -> None:
    traffic = draw_traffic((TrafficClass("batch", 1.0, (50, 150), (20, 20)),), 100, 1.0, 0, 100)
    asked = draw_traffic((TrafficClass("batch", 1.0, (50, 150), (20, 20)),), 100, 1.0, 0, 1000)
    too_long = sum(len(r.prompts[0]) > 80 for r in asked.requests)
    assert traffic.num_clipped == too_long > 0
    assert asked.num_clipped == 0
    assert max(len(r.prompts[0]) + r.sampling.max_tokens for r in traffic.requests) == 100
    (only,) = draw_traffic((mix_of("batch", 50, 500),), 1, 1.0, 0, 100).requests
    assert (len(only.prompts[0]), only.sampling.max_tokens) == (1, 99)
    with pytest.raises(SimulationError, match=r"max_model_len is 1"):
        draw_traffic((mix_of("batch", 1, 1),), 1, 1.0, 0, 1)


@pytest.mark.parametrize("start", [0.01, 7.0, 7.3, 8.0, 900.0])
def test_capacity_is_found_from_either_side(start: float) -> None:
    found = find_capacity(lambda rate: 1.0 if rate <= 7.3 else 0.5, start)
    assert 7.3 / 1.02 <= found <= 7.3


def test_capacity_is_where_the_goal_is_just_reached() -> None:
    tried = []

    def falling(rate: float) -> float:
        tried.append(rate)
        return 1.0 / (1.0 + rate)

    assert find_capacity(falling, 1.0, goal=0.75) == pytest.approx(1 / 3, rel=0.02)
    assert len(tried) < 15


def test_where_there_is_no_capacity_the_way_out_is_named() -> None:
    with pytest.raises(SimulationError, match=r"fewer than 90% meet.*--gpu"):
        find_capacity(lambda _: 0.89, 1.0)
    with pytest.raises(SimulationError, match=r"targets, fewest of class gold at 9\.537e-07\. .*\(--classes\)"):
        find_capacity(lambda _: 0.89, 1.0, explain=lambda rate: f"gold at {rate:.4g}")
    with pytest.raises(SimulationError, match=r"even at .* at least 90%.*--requests"):
        find_capacity(lambda _: 0.9, 1.0)


def test_the_search_begins_at_the_rate_of_full_steps() -> None:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=100)
    rate = busy_rate_per_s(make_machine(), config, (mix_of("batch", 100, 8),))
    prefill_s = NUM_LAYERS * (LAYER_S + 99 * PER_ROW_S)
    assert rate == pytest.approx(1.0 / (prefill_s + 8 * NUM_LAYERS * LAYER_S / 4), rel=1e-12)


def trace_of(*rows: tuple[float, int, int], slo_class: str | None = None) -> ReplayedLoad:
    return ReplayedLoad(tuple(SeenRequest(*row, slo_class) for row in rows))


def test_a_trace_keeps_its_lengths_and_the_shape_of_its_times() -> None:
    load = trace_of((5.0, 100, 10), (6.0, 7, 3), (9.0, 20, 1))
    assert load.rate_per_s == pytest.approx(0.5)
    for rate in (0.5, 2.0):
        traffic = load.traffic((mix_of("batch", 1, 1),), rate, 0, 4096)
        assert [r.arrival_s for r in traffic.requests] == pytest.approx([0.0, 0.5 / rate, 2.0 / rate])
        assert [(len(r.prompts[0]), r.sampling.max_tokens) for r in traffic.requests] == [(100, 10), (7, 3), (20, 1)]
        assert traffic.num_clipped == 0


def test_rows_of_a_trace_beyond_the_model_are_cut_and_counted() -> None:
    traffic = trace_of((0.0, 100, 10), (1.0, 95, 10), (2.0, 90, 10)).traffic((mix_of("batch", 1, 1),), 1.0, 0, 100)
    assert [len(r.prompts[0]) + r.sampling.max_tokens for r in traffic.requests] == [100, 100, 100]
    assert traffic.num_clipped == 2


def test_classes_are_the_traces_own_or_drawn_by_share() -> None:
    mix = (mix_of("realtime", 1, 1, share=3.0), mix_of("batch", 1, 1, share=1.0))
    rows = [(float(i), 5, 5) for i in range(2000)]
    named = trace_of(*rows, slo_class="standard").traffic(mix, 1.0, 0, 64).requests
    assert {r.slo.requested for r in named} == {"standard"}
    drawn, again, other = (trace_of(*rows).traffic(mix, 1.0, seed, 64).requests for seed in (1, 1, 2))
    names = [r.slo.requested for r in drawn]
    assert names.count("realtime") / 2000 == pytest.approx(0.75, abs=0.03)
    assert names == [r.slo.requested for r in again] != [r.slo.requested for r in other]


@pytest.mark.parametrize("rows", [[], [(0.0, 1, 1)], [(3.0, 1, 1), (3.0, 1, 1)]])
def test_a_trace_without_a_rate_is_refused(rows: list[tuple[float, int, int]]) -> None:
    with pytest.raises(SimulationError, match="it takes two that come one after the other"):
        trace_of(*rows)


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gaps_vary_as_asked_about_the_same_mean(cv: float) -> None:
    requests = draw_traffic((mix_of("batch", 1, 1),), 6000, 10.0, 1, 64, ArrivalPattern(cv=cv)).requests
    gaps = [b - a for a, b in itertools.pairwise([0.0, *(request.arrival_s for request in requests)])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.06)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx((cv * mean) ** 2, rel=0.12)


def test_bursts_bring_more_in_their_quarter_of_a_minute_and_leave_the_mean_rate() -> None:
    requests = draw_traffic((mix_of("batch", 1, 1),), 9000, 30.0, 4, 64, ArrivalPattern(burst=2.0)).requests
    whole = [r.arrival_s for r in requests if r.arrival_s < 240.0]
    assert len(whole) == pytest.approx(240 * 30, rel=0.03)
    in_bursts = sum(arrival_s % 60.0 >= 45.0 for arrival_s in whole)
    # 15 s at twice the rate of the other 45 s.
    assert in_bursts / len(whole) == pytest.approx(2 * 15 / (2 * 15 + 45), abs=0.02)


def test_a_pattern_moves_times_and_nothing_else() -> None:
    mix = (TrafficClass("realtime", 2.0, (10, 500), (1, 90)), TrafficClass("batch", 1.0, (100, 200), (5, 5)))
    steady, bursts = (draw_traffic(mix, 100, 2.0, 0, 4096, p).requests for p in (STEADY, ArrivalPattern(burst=3.0)))
    assert [r.prompts for r in steady] == [r.prompts for r in bursts]
    assert [r.arrival_s for r in bursts] == sorted(r.arrival_s for r in bursts) != [r.arrival_s for r in steady]


@pytest.mark.parametrize("values", [{"cv": 0.0}, {"cv": float("inf")}, {"burst": 0.5}, {"burst": float("nan")}])
def test_a_pattern_that_cannot_be_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        ArrivalPattern(**values)


def test_a_share_of_the_clients_leaves_after_random_times() -> None:
    traffic = draw_traffic((mix_of("batch", 10, 10),), 3000, 5.0, 0, 64)
    leaving = traffic.with_cancellations(0.3, 7)
    assert leaving.requests == traffic.requests and not traffic.cancellations
    assert len(leaving.cancellations) / 3000 == pytest.approx(0.3, abs=0.03)
    arrivals = {request.group_id: request.arrival_s for request in traffic.requests}
    after = [c.at_s - arrivals[c.group_id] for c in leaving.cancellations]
    assert min(after) > 0.0 and sum(after) / len(after) == pytest.approx(CANCEL_MEAN_S, rel=0.1)
    times = [c.at_s for c in leaving.cancellations]
    assert times == sorted(times)
    assert leaving.cancellations == traffic.with_cancellations(0.3, 7).cancellations
    assert leaving.cancellations != traffic.with_cancellations(0.3, 8).cancellations
