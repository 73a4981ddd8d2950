from __future__ import annotations

from engine.contradictions import believable, find_contradicted
from offload.step_load import StepLoad

LOADS = [StepLoad.decode(1, 64), StepLoad.decode(2, 64), StepLoad.decode(4, 64), StepLoad(64, 1, 64)]


def test_steps_that_grow_contradict_nothing() -> None:
    assert find_contradicted(LOADS, [1.0, 1.0, 1.5, 9.0]) == {}
    assert find_contradicted(LOADS, [1.4, 1.0, 1.0, 1.0]) == {}  # tiles


def test_a_step_slower_than_a_larger_one_is_bound_by_the_fastest_of_these() -> None:
    assert find_contradicted(LOADS, [5.0, 4.0, 2.0, 3.0]) == {0: 2.0, 1: 2.0}
    # A prompt of one sequence says nothing of a decode of two.
    assert find_contradicted(LOADS, [1.0, 5.0, 5.0, 1.0]) == {}


def test_what_is_left_out_is_far_above_the_bound() -> None:
    assert believable([5.0, 1.5, 2.1, 1.0], 1.0) == [1.5, 1.0]
    assert believable([5.0, 6.0], 1.0) == [5.0, 6.0]
