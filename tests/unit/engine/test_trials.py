"""Repetitions in turn, within a time, on a clock that the trials themselves move."""

from __future__ import annotations

import dataclasses

import pytest

from engine.trials import FEWEST_REPEATS, MAX_REPEATS, MIN_REPEATS, repeat_in_turn, without_outliers


@dataclasses.dataclass
class Workshop:
    """Trials of known cost."""

    costs_s: list[float]
    now_s: float = 0.0
    order: list[int] = dataclasses.field(default_factory=list)

    def run(self, index: int) -> float:
        self.now_s += self.costs_s[index]
        self.order.append(index)
        return self.costs_s[index]

    def repeat(self, budget_s: float) -> tuple[list[int], list[float]]:
        """How often each ran, and the progress that was told."""
        told: list[float] = []
        trials = [lambda index=index: self.run(index) for index in range(len(self.costs_s))]
        samples = repeat_in_turn(trials, budget_s, lambda: self.now_s, told.append)
        assert samples == [
            [cost] * self.order.count(index) for index, cost in enumerate(self.costs_s)
        ]  # each its own samples
        return [len(taken) for taken in samples], told


def test_the_time_is_shared_out_and_short_trials_run_more_often() -> None:
    workshop = Workshop([0.01, 0.1, 1.0])
    counts, told = workshop.repeat(budget_s=10.0)
    assert counts[0] == MAX_REPEATS and MIN_REPEATS <= counts[2] < counts[1]
    assert workshop.now_s <= 10.0
    assert told == sorted(told) and told[-1] == 1.0


def test_the_fewest_repetitions_are_made_whatever_they_take() -> None:
    workshop = Workshop([1.0, 2.0])
    assert workshop.repeat(budget_s=0.5)[0] == [FEWEST_REPEATS] * 2


def test_trials_that_turn_slow_end_with_the_time() -> None:
    workshop = Workshop([0.1] * 4)
    trials = [lambda index=index: workshop.run(index) for index in range(4)]

    def slow() -> float:
        workshop.costs_s[3] = 1.0
        return workshop.run(3)

    trials[3] = slow
    samples = repeat_in_turn(trials, 4.0, lambda: workshop.now_s, lambda _: None)
    assert min(map(len, samples)) >= FEWEST_REPEATS
    assert workshop.now_s < 4.0 + 1.0 + 0.4


def test_repetitions_are_in_turn_and_not_in_the_same_order() -> None:
    workshop = Workshop([0.1] * 5)
    workshop.repeat(budget_s=5 * 0.1 * MIN_REPEATS + 0.01)
    rounds = [workshop.order[start : start + 5] for start in range(0, len(workshop.order), 5)]
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_what_was_disturbed_is_left_out_and_counted() -> None:
    assert without_outliers([1.0, 1.1, 0.9, 2.5, 1.9]) == ((1.0, 1.1, 0.9, 1.9), 1)
    assert without_outliers([3.0]) == ((3.0,), 0)


def test_no_trials_take_no_time() -> None:
    told: list[float] = []
    assert repeat_in_turn([], 1.0, lambda: 0.0, told.append) == []
    assert told == [pytest.approx(1.0)]
