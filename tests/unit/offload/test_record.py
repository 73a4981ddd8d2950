"""What a record says of a machine whose truth is known."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.measurements import median, p95
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from offload.transfer import Direction
from tests import record_builders as truth
from tests.record_builders import make_record, true_layer_s

RECORD = make_record()
NOISY = make_record(noise=0.05, seed=3)
LOADS = st.builds(StepLoad.decode, st.integers(1, 64), st.integers(1, 300)) | st.integers(1, 512).map(
    lambda tokens: StepLoad(tokens, 1, tokens)
)


def test_a_record_is_a_step_cost() -> None:
    cost: StepCost = RECORD
    load = StepLoad.decode(8, 64)
    assert RECORD.quiet_layer_s(load, Quantile.P50) == pytest.approx(true_layer_s(load), rel=0.02)
    assert cost.fixed_s() == pytest.approx(truth.FIXED_S, rel=1e-6)
    for rows in (1, 8, 64):
        expected = truth.HEAD_S + (truth.HEAD_PER_ROW_S + truth.OVERHEAD_PER_ROW_S) * rows
        assert cost.head_s(rows, Quantile.P50) == pytest.approx(expected, rel=1e-6)
    bandwidth = 7e6 / (truth.COPY_START_S + 7e6 / truth.LINK_BYTES_PER_S)
    assert cost.link_bytes_per_s(Direction.H2D, Quantile.P50) == pytest.approx(bandwidth, rel=0.02)
    assert RECORD.restart_s == pytest.approx(truth.RESTART_S)


def test_layers_are_slower_while_the_link_copies_and_less_so_on_a_slower_link() -> None:
    load = StepLoad.decode(8, 64)
    for gbps, expected in ((0.25, 1.01), (0.5, 1.02), (1.0, 1.04), (2.0, 1.08)):
        capped = RECORD.capped(gbps * 1e9)
        slowdown = capped.layer_s(load, Quantile.P50) / RECORD.quiet_layer_s(load, Quantile.P50)
        assert slowdown == pytest.approx(expected, abs=1e-6)
    assert RECORD.slowdown(is_decode=True, copied_bytes_per_s=1e15) == pytest.approx(1.32)  # at the fastest measured


def test_a_cap_is_applied_on_top_of_what_was_measured() -> None:
    capped = RECORD.capped(2e9, 1e9)
    assert capped.link_bytes_per_s(Direction.H2D, Quantile.P50) == 2e9
    assert capped.link_bytes_per_s(Direction.D2H, Quantile.P95) == 1e9
    measured = RECORD.link_bytes_per_s(Direction.H2D, Quantile.P50)
    assert RECORD.capped(1e12).link_bytes_per_s(Direction.H2D, Quantile.P50) == measured
    assert capped.capped(None).link_bytes_per_s(Direction.H2D, Quantile.P50) == measured


def test_directions_couple_only_where_together_they_exceed_the_machine() -> None:
    assert RECORD.coupling(Direction.H2D) == pytest.approx(0.5, abs=0.02)
    assert RECORD.capped(2e9, 2e9).coupling(Direction.H2D) == 1.0
    assert 0.5 < RECORD.capped(6e9, 6e9).coupling(Direction.D2H) < 0.75


def test_the_95th_percentile_is_that_of_the_samples() -> None:
    load = StepLoad.decode(8, 64)
    assert RECORD.quiet_layer_s(load, Quantile.P95) == pytest.approx(RECORD.quiet_layer_s(load, Quantile.P50), rel=0.07)
    # Of a normal distribution with a deviation of 5 % it is 1.645 deviations up.
    factor = NOISY.quiet_layer_s(load, Quantile.P95) / NOISY.quiet_layer_s(load, Quantile.P50)
    assert factor == pytest.approx(1.0 + 1.645 * 0.05, abs=0.03)
    slow, usual = (NOISY.link_bytes_per_s(Direction.H2D, q) for q in (Quantile.P95, Quantile.P50))
    assert slow / usual == pytest.approx(1.0 / (1.0 + 1.645 * 0.05), abs=0.04)


def test_the_error_is_that_of_points_the_fit_has_not_seen() -> None:
    error = NOISY.held_out_error
    assert error.num_points == len(NOISY.measurements.held_out) > 5
    assert 0.0 < error.median < 0.05
    assert error.median <= error.p95 < 0.15
    doubled = tuple(
        dataclasses.replace(point, samples_s=tuple(2 * sample for sample in point.samples_s))
        for point in NOISY.measurements.held_out
    )
    wrong = dataclasses.replace(NOISY, measurements=dataclasses.replace(NOISY.measurements, held_out=doubled))
    assert wrong.held_out_error.median == pytest.approx(0.5, abs=0.03)
    assert wrong.quiet_layer_s(StepLoad.decode(1, 1), Quantile.P50) == NOISY.quiet_layer_s(
        StepLoad.decode(1, 1), Quantile.P50
    )


@settings(max_examples=50, deadline=None)
@given(LOADS, st.integers(0, 64), st.integers(0, 300), st.sampled_from(Quantile))
def test_every_time_grows_with_the_load(load: StepLoad, more: int, context: int, quantile: Quantile) -> None:
    for record in (NOISY, NOISY.capped(2e9)):
        larger = StepLoad(load.num_tokens, load.num_sequences, load.num_context_tokens + context)
        assert record.layer_s(load, quantile) <= record.layer_s(larger, quantile) * (1 + 1e-12)
        assert record.layer_s(load, Quantile.P50) <= record.layer_s(load, Quantile.P95)
        assert record.layer_s(load, quantile) >= record.quiet_layer_s(load, quantile)
        rows = load.num_sequences
        assert record.head_s(rows, quantile) <= record.head_s(rows + more, quantile) * (1 + 1e-12)


def test_medians_and_percentiles() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert p95([float(value) for value in range(1, 101)]) == 95.0
    assert p95([7.0]) == 7.0
