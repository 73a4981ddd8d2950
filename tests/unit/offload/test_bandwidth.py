"""Percentiles of the bandwidth, drops at once, recoveries that must last."""

from __future__ import annotations

import pytest

from offload.bandwidth import MIN_MEASURED_BYTES, BandwidthEstimate, BandwidthRules
from offload.demand import DemandMeter
from offload.pacer import Pacer

MB = 10**6
RULES = BandwidthRules(sample_s=5e-3, num_window_samples=40, num_first_samples=8)


class Wire:
    """Slices of 1 MB, back to back, at whatever speed the test says."""

    def __init__(self, initial_bytes_per_s: float = 1e9, rules: BandwidthRules = RULES) -> None:
        self.estimate = BandwidthEstimate(initial_bytes_per_s, rules)
        self.now_s = 100.0

    def carry(self, num_slices: int, bytes_per_s: float) -> list[bool]:
        """Which slices were late."""
        late = []
        for _ in range(num_slices):
            self.now_s += MB / bytes_per_s
            late.append(self.estimate.add(MB, MB / bytes_per_s, self.now_s))
            self.estimate.check()
        return late

    @property
    def percentiles(self) -> tuple[float, float]:
        return self.estimate.p50_bytes_per_s, self.estimate.p5_bytes_per_s


def test_initial_value_stands_until_enough_samples_are_in() -> None:
    wire = Wire(1e9)
    wire.carry(7 * 6, 1.2e9)
    assert wire.percentiles == (1e9, 1e9), "each sample of 5 ms takes 6 slices at 1.2 GB/s"
    wire.carry(6, 1.2e9)
    assert wire.percentiles == (pytest.approx(1.2e9), pytest.approx(1.2e9))


def test_percentiles_are_those_of_the_last_samples() -> None:
    wire = Wire(160e6)  # a slice is a sample
    speeds = [140e6 + index * 1e6 for index in range(60)]
    for speed in speeds:
        assert wire.carry(1, speed) == [False]
    window = sorted(speeds[-40:])
    assert wire.percentiles == (pytest.approx(window[20]), pytest.approx(window[2]))


@pytest.mark.parametrize("rules", [RULES, BandwidthRules()])
def test_one_stall_among_the_first_samples_is_not_their_percentile(rules: BandwidthRules) -> None:
    wire = Wire(1e9, rules)
    wire.carry(3, 1e9)
    wire.carry(1, 5e6)
    wire.carry(round(rules.num_first_samples * rules.sample_s * 1e3), 1e9)
    assert wire.percentiles == (pytest.approx(1e9), pytest.approx(1e9))


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_drop_is_seen_after_a_few_slices_and_no_sooner(factor: float) -> None:
    wire = Wire(1e9)
    wire.carry(400, 1e9)
    assert wire.carry(RULES.num_late_slices - 1, factor * 1e9) == [True] * (RULES.num_late_slices - 1)
    assert wire.percentiles[0] == pytest.approx(1e9) and not wire.estimate.is_derated
    wire.carry(1, factor * 1e9)
    assert wire.percentiles == (pytest.approx(factor * 1e9), pytest.approx(factor * 1e9))
    assert wire.estimate.is_derated and wire.estimate.num_drops == 1
    assert not any(wire.carry(500, factor * 1e9)), "what is known is not late"
    assert wire.estimate.num_drops == 1


def test_drop_after_a_drop_is_seen_as_fast() -> None:
    wire = Wire(1e9)
    wire.carry(RULES.num_late_slices, 5e8)
    wire.carry(RULES.num_late_slices, 1e8)
    assert wire.percentiles == (pytest.approx(1e8), pytest.approx(1e8)) and wire.estimate.num_drops == 2


def test_hiccup_that_is_caught_up_is_no_drop() -> None:
    wire = Wire(1e9)
    for _ in range(100):
        assert wire.carry(1, 1e8) == [True], "9 ms late"
        wire.carry(9, 1e12)  # what a copier that was kept from running catches up
        wire.carry(20, 1e9)
    assert wire.estimate.num_drops == 0 and wire.percentiles[0] == pytest.approx(1e9, rel=0.1)


def test_stall_within_a_drop_does_not_count_for_all_of_it() -> None:
    wire = Wire(1e9)
    wire.carry(3, 5e8)
    wire.carry(1, 5e6)  # 200 ms
    wire.carry(4, 5e8)
    assert wire.percentiles == (pytest.approx(5e8), pytest.approx(5e8))


def test_few_milliseconds_are_no_drop() -> None:
    wire = Wire(10e9)
    wire.carry(15, 2e9)
    assert wire.estimate.num_drops == 0, "15 slices, but 7.5 ms"
    wire.carry(5, 2e9)
    assert wire.estimate.num_drops == 1


def test_recovery_must_last() -> None:
    wire = Wire(1e9)
    wire.carry(RULES.num_late_slices, 5e8)
    start_s = wire.now_s
    while wire.estimate.is_derated:
        assert wire.percentiles == (pytest.approx(5e8), pytest.approx(5e8))
        wire.carry(1, 1e9)
    assert RULES.recovery_s <= wire.now_s - start_s < RULES.recovery_s + 0.5
    assert wire.percentiles == (pytest.approx(1e9), pytest.approx(1e9))


def test_rare_traffic_is_enough_to_recover_but_one_sample_is_not() -> None:
    wire = Wire(1e9)
    wire.carry(RULES.num_late_slices, 5e8)
    wire.carry(5, 1e9)
    wire.now_s += 60.0
    wire.carry(5, 1e9)
    assert wire.estimate.is_derated, "two samples, a minute apart"
    wire.carry(5 * (RULES.num_first_samples - 2), 1e9)
    assert not wire.estimate.is_derated


def test_link_that_comes_and_goes_is_planned_as_gone() -> None:
    wire = Wire(1e9)
    for _ in range(50):  # 50 x 0.1 s slow, 0.1 s fast: 10 s
        wire.carry(50, 5e8)
        wire.carry(100, 1e9)
    assert wire.estimate.num_drops == 1, "plans do not flap with it"
    assert wire.percentiles == (pytest.approx(5e8), pytest.approx(5e8))


def test_small_gain_is_no_recovery() -> None:
    wire = Wire(1e9)
    wire.carry(RULES.num_late_slices, 5e8)
    wire.carry(5000, 5.2e8)
    assert wire.estimate.is_derated and wire.percentiles[0] == pytest.approx(5e8)


@pytest.mark.parametrize("recorded", [10e9, 0.1e9, 1.07e9])
def test_wrong_record_corrects_itself(recorded: float) -> None:
    wire = Wire(recorded)
    wire.carry(8 * 6, 1e9)
    assert wire.percentiles == (pytest.approx(1e9, rel=0.01), pytest.approx(1e9, rel=0.01))


def test_small_slices_measure_nothing() -> None:
    estimate = BandwidthEstimate(1e9, RULES)
    for index in range(1000):
        assert not estimate.add(MIN_MEASURED_BYTES - 1, 1.0, float(index)), "the fixed cost of a copy is not bandwidth"
    assert (estimate.p50_bytes_per_s, estimate.num_drops) == (1e9, 0)


def test_pacer_keeps_the_speed_through_late_wake_ups_and_gives_no_credit_for_idling() -> None:
    pacer = Pacer(1e6, free_s=10.0)
    assert pacer.schedule(1000, ready_s=9.0) == pytest.approx(10.001)
    assert pacer.schedule(1000, ready_s=9.0) == pytest.approx(10.002), "each from the end of the one before"
    assert pacer.schedule(1000, ready_s=9.0, share=0.5) == pytest.approx(10.004)
    assert pacer.schedule(1000, ready_s=12.0) == pytest.approx(12.001), "an idle link carries nothing"


def test_demand_is_what_was_asked_for_lately() -> None:
    meter = DemandMeter(2.0)
    for step in range(1000):
        meter.add(10 * MB, step * 0.01)
    assert meter.bytes_per_s(9.99) == pytest.approx(1e9, rel=0.01)
    assert meter.bytes_per_s(9.99 + 2.0) == pytest.approx(1e9 / 2.71828, rel=0.01)
    assert meter.bytes_per_s(100.0) < 1
    assert DemandMeter(2.0).bytes_per_s(5.0) == 0
