"""The factor follows what lasts, and nothing else."""

from __future__ import annotations

import random

import pytest

from offload.compute_watch import NUM_STEPS, TOLERANCE, ComputeWatch


def feed(watch: ComputeWatch, ratio: float, num_steps: int) -> int:
    """How many of the steps changed the factor."""
    return sum(watch.observe(0.01, 0.01 * ratio) for _ in range(num_steps))


def test_steps_as_predicted_change_nothing() -> None:
    watch = ComputeWatch()
    generator = random.Random(1)
    for _ in range(500):
        assert not watch.observe(0.01, 0.01 * generator.uniform(1 - TOLERANCE, 1 + TOLERANCE))
    assert watch.factor == 1.0


@pytest.mark.parametrize("ratio", [5.0, 2.0, 0.1])
def test_a_slow_clock_or_a_wrong_record_is_known_after_a_window(ratio: float) -> None:
    watch = ComputeWatch()
    assert feed(watch, ratio, NUM_STEPS - 1) == 0
    assert feed(watch, ratio, 1) == 1
    assert watch.factor == pytest.approx(ratio)
    assert feed(watch, ratio, 10 * NUM_STEPS) == 0, "known once, it is no news"
    assert feed(watch, 1.0, NUM_STEPS) == 1
    assert watch.factor == pytest.approx(1.0)


def test_a_few_slow_steps_are_no_fact() -> None:
    watch = ComputeWatch()
    for _ in range(20):
        assert feed(watch, 5.0, NUM_STEPS // 3) + feed(watch, 1.0, NUM_STEPS) == 0


@pytest.mark.parametrize("times", [(0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_times_that_are_none_are_refused(times: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ComputeWatch().observe(*times)
