"""The streamer takes the time that is predicted for it, in virtual time, whatever layers and units are like."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.predict import StepPrediction, predict_step
from offload.step_transfers import StepTransfers
from tests.fake_link import FakeLink
from tests.streamed_units import BYTES_PER_S, StreamedUnits

NUM_LAYERS = 8
LAYER_S, HEAD_S = 1e-3, 2e-3


def run_step(units: StreamedUnits, link: FakeLink, layer_s: list[float], streamed: set[int]) -> StepTransfers:
    """All layers and the head; what each streamed layer reads is compared with its bytes."""
    units.streamer.begin_step(math.inf)
    for layer, seconds in enumerate(layer_s):
        if layer in streamed:
            units.read(layer)
        link.advance(seconds)
        if layer in streamed:
            units.read_held(layer)
            units.streamer.release(layer)
    link.advance(HEAD_S)
    return units.streamer.end_step()


def measure(
    layer_s: list[float], sizes: list[int], streamed: set[int], num_slots: int, num_steps: int = 40
) -> tuple[float, float]:
    """Seconds of a step and of waiting in it: the mean of the second half of the steps."""
    link = FakeLink(BYTES_PER_S)
    units = StreamedUnits(link, sizes, num_slots)
    units.streamer.set_streamed(streamed)
    for _ in range(num_steps):
        run_step(units, link, layer_s, streamed)
    begin_s, exposed_s = link.now_s(), 0.0
    for _ in range(num_steps):
        exposed_s += run_step(units, link, layer_s, streamed).exposed_s
    return (link.now_s() - begin_s) / num_steps, exposed_s / num_steps


def predict(layer_s: list[float], sizes: list[int], streamed: set[int], num_slots: int) -> StepPrediction:
    units = StreamedUnits(FakeLink(BYTES_PER_S), sizes, num_slots).units
    chosen = [unit for unit in units if unit.layer in streamed]
    return predict_step(layer_s, HEAD_S, chosen, num_slots, BYTES_PER_S, restart_s=0.0, fixed_s=0.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    layer_s=st.lists(st.sampled_from([0.5e-3, 1e-3, 5e-3]), min_size=NUM_LAYERS, max_size=NUM_LAYERS),
    sizes=st.lists(st.integers(200, 4000), min_size=NUM_LAYERS, max_size=NUM_LAYERS),
    streamed=st.sets(st.integers(0, NUM_LAYERS - 1), min_size=1),
    num_slots=st.integers(1, 3),
)
def test_a_step_takes_as_long_as_predicted(
    layer_s: list[float], sizes: list[int], streamed: set[int], num_slots: int
) -> None:
    step_s, exposed_s = measure(layer_s, sizes, streamed, num_slots)
    predicted = predict(layer_s, sizes, streamed, num_slots)
    assert step_s == pytest.approx(predicted.step_s, rel=0.02)
    assert exposed_s == pytest.approx(predicted.exposed_s, rel=0.02, abs=0.02 * step_s)


@pytest.mark.parametrize("slow", [0, 3, 7])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_one_slow_layer_costs_its_time_at_most_and_hides_more_copies(slow: int, num_slots: int) -> None:
    """Five times as slow as the others. A plan for the average layer does not lie about it: the prediction holds."""
    sizes, streamed = [2000] * NUM_LAYERS, {1, 3, 5, 7}
    even = [LAYER_S] * NUM_LAYERS
    uneven = [5 * LAYER_S if layer == slow else LAYER_S for layer in range(NUM_LAYERS)]
    (even_s, even_exposed_s), (step_s, exposed_s) = (measure(t, sizes, streamed, num_slots) for t in (even, uneven))
    assert step_s == pytest.approx(predict(uneven, sizes, streamed, num_slots).step_s)
    assert even_s < step_s <= even_s + 4 * LAYER_S + 1e-9
    assert exposed_s <= even_exposed_s + 1e-9
    assert step_s == pytest.approx(sum(uneven) + HEAD_S + exposed_s), "all of a step is computing or waiting"
