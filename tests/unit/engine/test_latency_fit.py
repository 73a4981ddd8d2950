"""The latency model of a machine whose truth is known."""

from __future__ import annotations

import dataclasses

import pytest

from engine.latency_fit import features_of, fit_latency
from offload.measurements import LayerPoint, median
from offload.record import PerformanceRecord
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.transfer import Direction
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from tests import record_builders as truth
from tests.record_builders import LINK_BYTES_PER_S, make_record, true_layer_s

RECORD = make_record()


def _true_step_s(load: StepLoad) -> float:
    per_row_s = truth.HEAD_PER_ROW_S + truth.OVERHEAD_PER_ROW_S
    num_layers = RECORD.measurements.num_layers
    return num_layers * true_layer_s(load) + truth.HEAD_S + per_row_s * load.num_sequences + truth.FIXED_S


def _predicted_s(load: StepLoad, link: LinkSnapshot = NO_LINK) -> float:
    point = LayerPoint(load.num_tokens, load.num_sequences, load.num_context_tokens, (1.0,))
    return LatencyModel(fit_latency(RECORD, 7_000_000)).mean_s(features_of(point), link)


@pytest.mark.parametrize(
    "load",
    [
        StepLoad.decode(1, 100), StepLoad.decode(12, 300), StepLoad.decode(48, 200), StepLoad(48, 1, 48),
        StepLoad(200, 1, 200), StepLoad(400, 1, 2400),
    ],
)  # fmt: skip
def test_steps_between_the_measured_ones_are_predicted(load: StepLoad) -> None:
    assert _predicted_s(load) == pytest.approx(_true_step_s(load), rel=0.06)


def test_streaming_costs_the_interference_and_at_least_the_copies() -> None:
    load = StepLoad.decode(8, 64)
    layers_s = RECORD.measurements.num_layers * RECORD.layer_s(load, Quantile.P50)
    rest_s = RECORD.head_s(8, Quantile.P50) + RECORD.fixed_s()
    link = LinkSnapshot(h2d=LinkDirection(LINK_BYTES_PER_S, LINK_BYTES_PER_S), num_streamed_layers=1)
    assert _predicted_s(load, link) == pytest.approx(layers_s + rest_s, rel=0.02)
    slow = dataclasses.replace(link, h2d=LinkDirection(1e8, 1e8), num_streamed_layers=30)
    assert _predicted_s(load, slow) == pytest.approx(30 * 7e6 / 1e8 + truth.FIXED_S)


def test_a_capped_record_slows_its_steps_less() -> None:
    slow = fit_latency(RECORD.capped(0.5e9))
    assert 1.0 < slow.decode_slowdown < fit_latency(RECORD).decode_slowdown
    pace = RECORD.capped(0.5e9).link_bytes_per_s(Direction.H2D, Quantile.P50)
    assert slow.decode_slowdown == pytest.approx(RECORD.slowdown(True, pace))


def test_noise_leaves_the_held_out_steps_within_bounds_and_widens_the_p95() -> None:
    noisy = make_record(noise=0.05, seed=3)
    coefficients = fit_latency(noisy)
    assert min(coefficients.p95_factors) > 1.03 and max(coefficients.p95_factors) < 1.25
    num_layers = noisy.measurements.num_layers
    errors = [
        abs(coefficients.layers_s(features_of(point)) / (num_layers * true_layer_s(point.load)) - 1.0)
        for point in noisy.measurements.held_out
    ]
    assert median(errors) < 0.06 and max(errors) < 0.15


def test_a_record_without_steps_is_refused() -> None:
    empty = dataclasses.replace(RECORD, measurements=dataclasses.replace(RECORD.measurements, layers=()))
    with pytest.raises(ValueError, match="headrace profile --force"):
        fit_latency(empty)


def test_a_brief_record_predicts_steps_that_stream_nothing_as_the_full_one_does() -> None:
    measured = RECORD.measurements
    brief = dataclasses.replace(measured, link=(), restart_samples_s=(), interference=(), is_brief=True)
    fitted = fit_latency(PerformanceRecord(RECORD.fingerprint, brief))
    assert fitted == dataclasses.replace(fit_latency(RECORD), decode_slowdown=1.0, prefill_slowdown=1.0)
