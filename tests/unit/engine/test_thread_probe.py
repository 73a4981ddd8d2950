"""How many threads compute: the candidates, the choice, and the measurement of a loaded model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.native_decoder import NativeDecoder
from engine.thread_probe import (
    MAX_ROUNDS,
    PAUSE_S,
    TOLERANCE,
    Neighbour,
    candidates,
    choose,
    measure,
    probe_threads,
    settle,
)
from engine.weights import load_model
from kernels.native_library import NativeLibrary


class HandClock:
    """Moves when a step says how long it took."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_steps: dict[int, int] = {}

    def __call__(self) -> float:
        return self.now_s

    def step(self, threads: int, taken_s: Callable[[], float]) -> Callable[[], None]:
        def run() -> None:
            self.num_steps[threads] = self.num_steps.get(threads, 0) + 1
            self.now_s += taken_s()

        return run


@pytest.mark.parametrize(
    ("most", "expected"), [(1, (1,)), (2, (2, 1)), (3, (3, 2, 1)), (4, (4, 3, 2, 1)), (64, (64, 63, 32, 16))]
)
def test_candidates_are_all_one_less_half_and_a_quarter(most: int, expected: tuple[int, ...]) -> None:
    assert candidates(most) == expected


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1.0), min_size=1))
def test_nobody_with_fewer_threads_is_as_good_and_nobody_is_much_better(step_s: dict[int, float]) -> None:
    chosen = choose(step_s).num_threads
    best_s = min(step_s.values())
    assert step_s[chosen] <= best_s * (1.0 + TOLERANCE)
    assert all(taken_s > best_s * (1.0 + TOLERANCE) for threads, taken_s in step_s.items() if threads < chosen)


def test_the_candidates_take_turns_and_a_moments_disturbance_does_not_count() -> None:
    clock = HandClock()
    times_s = iter([0.001] * 20 + [5.0] + [0.001] * 1000)
    steps = {2: clock.step(2, lambda: next(times_s)), 1: clock.step(1, lambda: 0.0015)}
    measured = measure(steps, round_s=5.2, clock=clock)
    assert measured == {2: pytest.approx(0.001), 1: pytest.approx(0.0015)}
    assert clock.num_steps[2] > 40 and clock.num_steps[1] > 30


def test_a_step_longer_than_the_time_is_measured_once() -> None:
    clock = HandClock()
    steps = {4: clock.step(4, lambda: 2.0), 2: clock.step(2, lambda: 4.0)}
    assert measure(steps, round_s=0.1, clock=clock) == {4: 2.0, 2: 4.0}
    assert clock.num_steps == {4: 2, 2: 2}  # the first is not counted


ALL_WIN, FEWER_WIN = {2: 0.010, 1: 0.019}, {2: 0.020, 1: 0.017}


@pytest.mark.parametrize(
    ("rounds", "num_threads"),
    [
        pytest.param([ALL_WIN], 2, id="an idle machine needs one round"),
        pytest.param([FEWER_WIN, ALL_WIN], 2, id="a neighbour that goes away"),
        pytest.param([FEWER_WIN] * MAX_ROUNDS, 1, id="a neighbour that stays"),
    ],
)
def test_fewer_threads_must_win_every_round(rounds: list[dict[int, float]], num_threads: int) -> None:
    waiting, pauses_s = list(rounds), list[float]()
    choice = settle(lambda: waiting.pop(0), pauses_s.append)
    assert choice.num_threads == num_threads
    assert choice.step_s == (rounds[-1] if num_threads == 2 else FEWER_WIN)
    assert waiting == [] and pauses_s == [PAUSE_S] * (len(rounds) - 1)


def test_a_choice_shows_its_numbers() -> None:
    assert str(choose(ALL_WIN)) == "1: 19.00 ms, 2: 10.00 ms"


def test_a_loaded_model_is_tried_with_every_candidate_and_stays_as_it_is(
    tiny_model_path: Path, native_library: NativeLibrary
) -> None:
    decoder = load_model(str(tiny_model_path), "float32", lambda _: None, library=native_library).decoder
    assert isinstance(decoder, NativeDecoder)
    before = [layer.slab.head.clone() for layer in decoder.weights.layers]
    choice = probe_threads(decoder, native_library, round_s=0.0, pause=lambda _: None)
    assert set(choice.step_s) == {1, 2} and choice.num_threads in choice.step_s
    assert all(taken_s > 0.0 for taken_s in choice.step_s.values())
    assert all(layer.slab.head.equal(old) for layer, old in zip(decoder.weights.layers, before, strict=True))


def test_the_step_goes_through_the_layers_that_fit(tiny_model_path: Path, native_library: NativeLibrary) -> None:
    decoder = load_model(str(tiny_model_path), "float32", lambda _: None, library=native_library).decoder
    assert isinstance(decoder, NativeDecoder)
    num_layers, layer_bytes = len(decoder.weights.layers), decoder.weights.layers[0].layout.num_bytes
    assert num_layers > 1
    for max_bytes, expected in ((0, 1), (layer_bytes, 1), (2 * layer_bytes, 2), (None, num_layers)):
        assert len(decoder.with_library(native_library, max_bytes).weights.layers) == expected


def test_the_neighbour_works_and_ends_with_its_block() -> None:
    has_worked = threading.Event()
    with Neighbour(has_worked.set) as neighbour:
        assert has_worked.wait(timeout=10.0)
    assert not neighbour._thread.is_alive()
