"""Whether the decodes bear one more, against sums by hand."""

from __future__ import annotations

import math

import pytest

from scheduler.decode_load import PREFILL_RESERVE, DecodeLoad, VirtualBatch
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from scheduler.policy import Policy, new_request
from scheduler.ramp import Ramp
from scheduler.request import Request
from scheduler.slo import SLO, SLOClasses
from scheduler.step_features import StepFeatures
from tests.latency_builders import make_coefficients
from tests.scheduler_builders import make_spec

POLICY = Policy("deadline", SLOClasses())
MODEL = LatencyModel(
    make_coefficients(
        rows=Ramp(0.0095, (1000.0,), (0.001,)),
        samples=Ramp(0.0, (1.0,), (0.0,)),
        s_per_decode=0.0,
        s_per_skew_token=0.0,
        s_per_decode_context_token=0.0,
        sync_s=0.0,
        p95_factors=(1.0, 1.0, 1.0),
    )
)
"""A step of n decodes takes 9.5 + n ms."""


def make(name: str, slo_class: str, tpot_s: float | None = None) -> Request:
    slo = SLO(slo_class, slo_class, tpot_s=tpot_s)
    return new_request(make_spec(name, 4, 100, slo=slo), 0, POLICY)


def many(count: int, slo_class: str, tpot_s: float | None = None) -> list[Request]:
    return [make(f"{slo_class}{tpot_s}{index}", slo_class, tpot_s) for index in range(count)]


@pytest.mark.parametrize(("count", "fits"), [(16, True), (17, False)])
def test_the_tightest_target_less_a_reserve_is_the_limit(count: int, fits: bool) -> None:
    """30 ms less a tenth leave room for 17 rows of 1 ms beside the 9.5."""
    assert 17 * 0.001 <= 0.030 * (1 - PREFILL_RESERVE) - 0.0095 < 18 * 0.001
    load = DecodeLoad(MODEL, skips=False)
    assert load.allows(many(count, "realtime"), make("new", "realtime")) == fits


def test_loose_targets_count_for_the_steps_that_they_need() -> None:
    """Of 100 rows that are due every 400 ms, a step of 30 ms needs 7.5."""
    running = [*many(8, "realtime"), *many(100, "batch")]
    assert DecodeLoad(MODEL).allows(running, make("new", "realtime"))
    assert not DecodeLoad(MODEL).allows([*running, *many(1, "realtime")], make("new", "realtime"))
    assert not DecodeLoad(MODEL, skips=False).allows(running, make("new", "realtime"))


def test_features_of_the_virtual_batch() -> None:
    batch = VirtualBatch()
    for tpot_s, context in ((0.05, 1000), (0.1, 3000), (0.2, 400)):
        batch.add(tpot_s, context)
    assert batch.features(0.05, skips=True) == StepFeatures(0, 2, 2600, 3000, 0.0, 2)
    assert batch.features(0.05, skips=False) == StepFeatures(0, 3, 4400, 3000, 0.0, 3)
    assert batch.features(math.inf, skips=True) == batch.features(0.05, skips=False)
    assert batch.features(10.0, skips=True) == batch.features(0.05, skips=False), "at most a row each"


def test_nobody_waits_for_lower_classes_nor_for_what_is_not_protected() -> None:
    crowd = [*many(100, "standard"), *many(100, "batch")]
    load = DecodeLoad(MODEL, skips=False)
    assert load.allows(crowd, make("new", "realtime"))
    assert load.allows(many(200, "batch"), make("new", "standard"))
    assert not load.allows(crowd, make("new", "standard"))
    assert load.allows((), make("new", "realtime"))


def test_a_lost_or_impossible_target_bounds_nobody() -> None:
    running = many(30, "realtime")
    load = DecodeLoad(MODEL, skips=False)
    assert not load.allows(running, make("new", "realtime"))
    for request in running:
        request.deadlines.is_lost = True
    assert load.allows(running, make("new", "realtime"))
    assert load.allows(many(30, "realtime", tpot_s=0.010), make("new", "realtime")), "10.5 ms alone"


def test_the_floor_of_the_link_counts() -> None:
    slow = LinkSnapshot(h2d=LinkDirection(1e9, 1e9), num_streamed_layers=14)  # 28 ms a step
    load = DecodeLoad(MODEL)
    assert load.allows(many(1, "realtime"), make("new", "realtime"))
    load.observe_link(slow)
    assert not load.allows(many(1, "realtime"), make("new", "realtime"))
    load.observe_link(NO_LINK)
    assert load.allows(many(1, "realtime"), make("new", "realtime"))


def test_rows_beside_prefill_are_all_rows_as_long_as_they_fit() -> None:
    batch = VirtualBatch()
    for tpot_s in (0.030, *[0.400] * 10):
        batch.add(tpot_s, 10)
    assert DecodeLoad(MODEL).rows(batch, 0.030).num_decodes == 11
    assert DecodeLoad(MODEL).rows(batch, 0.020).num_decodes == math.ceil(0.020 / 0.030 + 10 * 0.020 / 0.400)
    assert DecodeLoad(MODEL, skips=False).rows(batch, 0.020).num_decodes == 11


def test_classes_without_promises_leave_half_of_the_room_of_a_pace_that_was_asked_for() -> None:
    """30 ms less a tenth leave 16.5 ms beside a single decode's 10.5: 8.25 of them, 9 rows in all, may go."""
    load = DecodeLoad(MODEL, skips=False)
    for wanted_s, count, is_standard_in in ((math.inf, 30, True), (0.030, 8, True), (0.030, 9, False)):
        load.wanted_s = wanted_s
        running = many(count, "batch")
        assert load.allows(running, make("new", "standard")) == is_standard_in
        assert load.allows(running, make("new", "interactive")), "who has a promise may take the other half"
    load.wanted_s = 0.010
    assert load.allows(many(9, "batch"), make("new", "standard")), "not even a single decode keeps that pace"
    load.wanted_s = 0.030
    assert load.allows([], make("new", "batch")), "nobody waits for nothing"
