"""The fit finds what is there, and grows with the load whatever was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.profile_grid import ProfileLimits, grid, held_out_grid
from offload.record_fit import LayerFit, Ramps, RowFit, nnls, num_pairs
from offload.step_load import StepLoad
from tests.record_builders import LIMITS, make_measurements, true_layer_s

SMALL_LIMITS = ProfileLimits(max_num_sequences=8, max_num_tokens=64, max_context_tokens=256, kv_tokens=512)
SMALL_LOADS = [shape.load for shape in grid(SMALL_LIMITS)]
VALUES = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 3))


@st.composite
def loads(draw: st.DrawFn) -> StepLoad:
    num_sequences = draw(st.integers(1, 100))
    num_tokens = draw(st.integers(num_sequences, 1000))
    return StepLoad(num_tokens, num_sequences, draw(st.integers(num_tokens, 100_000)))


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=VALUES),
    st.lists(VALUES, min_size=8, max_size=8),
)
def test_nnls_is_at_the_optimum(matrix: np.ndarray, values: list[float]) -> None:
    """By its conditions: no coefficient below 0; the gradient 0 where one is above, and not downhill where one is 0."""
    target = np.array(values[: len(matrix)])
    x = nnls(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    scale = 1e-6 * (1.0 + np.linalg.norm(matrix, axis=0) * np.linalg.norm(target))
    assert (x >= 0.0).all()
    assert (np.abs(gradient[x > 0.0]) <= scale[x > 0.0]).all()
    assert (gradient[x == 0.0] <= scale[x == 0.0]).all()


def test_nnls_drops_what_would_be_negative() -> None:
    matrix = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert nnls(matrix, np.array([3.0, -1.0, 2.0])) == pytest.approx([2.5, 0.0])  # unconstrained: 3, -1


def test_ramps_add_up_to_their_argument_and_go_on_beyond_the_last_knot() -> None:
    ramps = Ramps((2.0, 8.0), (1.0, 0.5))
    assert [ramps(x) for x in (0.0, 1.0, 2.0, 8.0, 10.0)] == pytest.approx([0.0, 1.0, 2.0, 5.0, 6.0])
    for x in (0.0, 1.5, 2.0, 7.0, 8.0, 100.0):
        parts = Ramps.parts(ramps.knots, x)
        assert sum(parts) == x
        assert ramps(x) == pytest.approx(sum(part * slope for part, slope in zip(parts, ramps.slopes, strict=True)))


def test_pairs_are_what_causal_attention_computes() -> None:
    num_sequences, tokens, context = 3, 5, 11
    seen = sum(query + 1 for query in range(context - tokens, context))
    load = StepLoad(num_sequences * tokens, num_sequences, num_sequences * context)
    assert num_pairs(load) == num_sequences * seen
    assert num_pairs(StepLoad.decode(4, 100)) == 400


def test_exact_times_are_found_again_at_and_between_the_points() -> None:
    measured = [shape.load for shape in grid(LIMITS)]
    fit = LayerFit.of(measured, [true_layer_s(load) for load in measured])
    for load in measured:
        assert fit(load) == pytest.approx(true_layer_s(load), rel=1e-6)
    for shape in held_out_grid(LIMITS):  # between two knots the corner of the roofline is cut off
        assert fit(shape.load) == pytest.approx(true_layer_s(shape.load), rel=0.08)
    assert fit.s_per_pair == pytest.approx(8e-9, rel=1e-3)
    assert fit.s_per_context_token == pytest.approx(30e-9, rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_five_percent_costs_the_fit_less_than_that(seed: int) -> None:
    points = make_measurements(noise=0.05, seed=seed).layers
    fit = LayerFit.of([point.load for point in points], [point.p50_s for point in points])
    errors = sorted(abs(fit(point.load) / true_layer_s(point.load) - 1.0) for point in points)
    assert errors[len(errors) // 2] < 0.025
    assert errors[-1] < 0.08


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(1e-6, 1.0), min_size=len(SMALL_LOADS), max_size=len(SMALL_LOADS)),
    st.lists(st.tuples(loads(), st.integers(0, 500), st.integers(0, 5000)), min_size=1, max_size=10),
)
def test_whatever_was_measured_the_fit_grows_with_tokens_and_context(
    times_s: list[float], steps: list[tuple[StepLoad, int, int]]
) -> None:
    fit = LayerFit.of(SMALL_LOADS, times_s)
    for load, more_tokens, more_context in steps:
        context = load.num_context_tokens + more_tokens + more_context
        larger = StepLoad(load.num_tokens + more_tokens, load.num_sequences, context)
        assert 0.0 < fit(load) <= fit(larger) * (1 + 1e-12)
        wider = StepLoad.decode(load.num_sequences + more_tokens, 7)
        assert fit(StepLoad.decode(load.num_sequences, 7)) <= fit(wider) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.integers(1, 100), st.floats(1e-6, 1.0), min_size=1, max_size=8),
    st.booleans(),
    st.lists(st.integers(1, 200), min_size=2, max_size=10),
)
def test_a_fit_over_rows_grows_too(times_s: dict[int, float], is_straight: bool, rows: list[int]) -> None:
    fit = RowFit.of(list(times_s), list(times_s.values()), is_straight=is_straight)
    found = [fit(num) for num in sorted(rows)]
    assert found == sorted(found)
    assert found[0] > 0.0


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one measured load"):
        LayerFit.of([], [])
    with pytest.raises(ValueError, match="at least one measured number of rows"):
        RowFit.of([], [])
