"""The predicted step against closed forms where these are exact, and against a simulation tick by tick."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.interval import hidden_interval
from offload.predict import predict_step, simulate_steps
from offload.residency import ResidencyOrder, interval_layout
from offload.streamed_unit import StreamedUnit
from tests.slow_step import SlowStep
from tests.smallest_interval import smallest_interval


def units(layers: dict[int, int]) -> list[StreamedUnit]:
    return [StreamedUnit(layer, num_bytes) for layer, num_bytes in layers.items()]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, dict[int, int], int, int]:
    """Layers, head, loads, slots, restart: unequal layers, adjacent streamed ones, slots that do not divide."""
    layer_ticks = draw(st.lists(st.integers(1, 6), min_size=2, max_size=8))
    streamed = draw(st.sets(st.integers(0, len(layer_ticks) - 1), min_size=2))
    loads = {layer: draw(st.integers(1, 15)) for layer in sorted(streamed)}
    return layer_ticks, draw(st.integers(0, 9)), loads, draw(st.integers(1, len(loads) - 1)), draw(st.integers(0, 3))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_every_step_ends_when_the_slow_simulation_says(case: tuple[list[int], int, dict[int, int], int, int]) -> None:
    layer_ticks, head, loads, num_slots, restart = case
    slow = SlowStep(layer_ticks, head, loads, num_slots, restart)
    steps = list(
        itertools.islice(simulate_steps(layer_ticks, head, units(loads), num_slots, 1.0, restart_s=restart), 12)
    )
    assert [step.end_s for step, _ in steps] == slow.run(12)
    assert steps[-1][0].exposed_s == slow.stalled


@settings(max_examples=50, deadline=None)
@given(cases())
def test_the_steady_step_is_the_average_of_many(case: tuple[list[int], int, dict[int, int], int, int]) -> None:
    layer_ticks, head, loads, num_slots, restart = case
    predicted = predict_step(layer_ticks, head, units(loads), num_slots, 1.0, restart_s=restart)
    steps = [
        s
        for s, _ in itertools.islice(
            simulate_steps(layer_ticks, head, units(loads), num_slots, 1.0, restart_s=restart), 601
        )
    ]
    average = (steps[400].end_s - steps[200].end_s) / 200
    # What a rhythm of several steps, begun anywhere, can be off by.
    assert predicted.step_s == pytest.approx(
        average, abs=(sum(layer_ticks) + head + sum(loads.values()) + restart * 9) / 100
    )
    assert predicted.step_s >= predicted.compute_s - 1e-9
    assert predicted.step_s == pytest.approx(predicted.compute_s + predicted.exposed_s)
    assert predicted.link_busy_share <= 1.0


@pytest.mark.parametrize("interval", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("transfer", [0.5, 1.0, 2.5, 4.0, 13.8])
def test_one_slot_is_the_closed_form_of_the_paper(interval: int, transfer: float) -> None:
    """T = L/i (t_c + max((i - 1) t_c, t_x)), without a head and for whole groups."""
    step = predict_step([1.0] * 12, 0.0, units(dict.fromkeys(interval_layout(12, interval), 1)), 1, 1 / transfer)
    assert step.step_s == pytest.approx(12 / interval * (1 + max(interval - 1, transfer)))


@pytest.mark.parametrize("num_slots", [2, 3])
@pytest.mark.parametrize("interval", [1, 2, 3])
@pytest.mark.parametrize("transfer", [0.5, 1.0, 2.5, 4.0, 13.8])
def test_two_slots_or_more_overlap_wholly(interval: int, transfer: float, num_slots: int) -> None:
    """T = L/i max(i t_c, t_x)."""
    layers = interval_layout(12, interval)
    step = predict_step([1.0] * 12, 0.0, units(dict.fromkeys(layers, 1)), num_slots, 1 / transfer)
    assert step.step_s == pytest.approx(12 / interval * max(interval, transfer))
    assert step.link_busy_share == pytest.approx(len(layers) * transfer / step.step_s)


@pytest.mark.parametrize("num_slots", [2, 3, 7])
def test_units_that_all_have_a_slot_stay_there(num_slots: int) -> None:
    step = predict_step([1.0] * 4, 0.5, units({1: 9, 3: 9}), num_slots, 0.1, restart_s=1.0)
    assert (step.step_s, step.exposed_s, step.link_busy_share) == (4.5, 0.0, 0.0)


def test_the_link_works_during_the_head() -> None:
    """One slot, the third and sixth of six layers: one copy has two layers to hide in, the other the head besides."""
    two = units({2: 1, 5: 1})
    assert predict_step([1.0] * 6, 3.0, two, 1, 1 / 2.0).exposed_s == 0.0
    assert predict_step([1.0] * 6, 3.0, two, 1, 1 / 4.5).exposed_s == pytest.approx(2.5)
    assert predict_step([1.0] * 6, 0.0, two, 1, 1 / 4.5).exposed_s == pytest.approx(5.0)


def test_what_a_step_takes_besides_hides_copies_too() -> None:
    assert predict_step([1.0] * 6, 1.0, units({2: 1, 5: 1}), 1, 1 / 4.5, fixed_s=2.0).exposed_s == pytest.approx(2.5)


def test_a_load_that_waited_for_its_slot_restarts() -> None:
    """One slot: each load waits. Two: when link-bound none does."""
    arguments = ([1.0] * 6, 0.0, units({1: 1, 3: 1, 5: 1}))
    assert predict_step(*arguments, 1, 1 / 4.0, restart_s=0.5).step_s == pytest.approx(3 * (1 + 4.5))
    assert predict_step(*arguments, 2, 1 / 4.0, restart_s=0.5).step_s == pytest.approx(12.0)


def test_adjacent_streamed_layers_hide_less_than_those_apart() -> None:
    """Three of nine layers; a copy takes as long as two layers."""
    together, apart = units({6: 1, 7: 1, 8: 1}), units({2: 1, 5: 1, 8: 1})
    assert predict_step([1.0] * 9, 0.0, apart, 1, 1 / 2.0).exposed_s == 0.0
    assert predict_step([1.0] * 9, 0.0, together, 1, 1 / 2.0).exposed_s == pytest.approx(4.0)
    assert predict_step([1.0] * 9, 0.0, together, 2, 1 / 2.0).exposed_s == pytest.approx(1.0)


def test_a_part_of_every_layer_hides_as_well_as_whole_layers_with_less_slot() -> None:
    whole = predict_step([1.0] * 12, 0.0, units(dict.fromkeys(interval_layout(12, 4), 8)), 2, 2.0)
    parts = predict_step([1.0] * 12, 0.0, units(dict.fromkeys(range(12), 2)), 2, 2.0)
    assert whole.step_s == parts.step_s == 12.0


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 24), st.floats(0.1, 20), st.integers(1, 4), st.floats(0, 5), st.integers(0, 23))
def test_an_evenly_streamed_layer_more_is_not_faster(
    num_layers: int, transfer: float, num_slots: int, head: float, k: int
) -> None:
    order = ResidencyOrder.spread(num_layers)
    k = min(k, num_layers - 1)
    fewer, more = (
        predict_step(
            [1.0] * num_layers, head, units(dict.fromkeys(order.streamed(n), 1)), num_slots, 1 / transfer
        ).step_s
        for n in (k, k + 1)
    )
    assert more >= fewer * (1 - 0.02)


def test_nothing_streamed_is_computing_alone() -> None:
    step = predict_step([1.0, 2.0], 0.5, [], 0, 0.0, fixed_s=0.25)
    assert (step.step_s, step.compute_s, step.exposed_s, step.link_busy_share) == (3.75, 3.75, 0.0, 0.0)


@pytest.mark.parametrize(
    ("layers", "num_slots", "rate", "message"),
    [
        ([0, 0], 1, 1.0, "different ones of the 2 layers"),
        ([2], 1, 1.0, "different ones of the 2 layers"),
        ([0], 0, 1.0, "at least 1"),
        ([0], 1, 0.0, "must move some"),
    ],
)
def test_impossible_arguments_are_named(layers: list[int], num_slots: int, rate: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict_step([1.0, 1.0], 0.0, [StreamedUnit(layer, 1) for layer in layers], num_slots, rate)


@pytest.mark.parametrize("transfer", [0.4, 1.0, 3.5, 13.8])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_the_hidden_interval_hides_and_the_next_smaller_one_does_not(transfer: float, num_slots: int) -> None:
    interval = hidden_interval(1.0, transfer, num_slots)
    num_layers = interval * max(1, interval - 1) * 4

    def exposed(i: int) -> float:
        layers = units(dict.fromkeys(interval_layout(num_layers, i), 1))
        return predict_step([1.0] * num_layers, 0.0, layers, num_slots, 1 / transfer).exposed_s

    assert exposed(interval) == pytest.approx(0.0, abs=1e-6)
    assert interval == 1 or exposed(interval - 1) > 1e-3


def test_smallest_interval_is_none_where_even_one_layer_is_too_much() -> None:
    assert smallest_interval([1.0] * 8, 0.0, 20.0, 2, 7.9) is None
    assert smallest_interval([1.0] * 8, 0.0, 20.0, 1, 8.0) == 5  # then one layer, which stays in the one slot
    assert smallest_interval([1.0] * 12, 0.0, 5.0, 1, 24.0) == 3
