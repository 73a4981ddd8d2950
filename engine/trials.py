"""Repeating measurements fairly: in turn rather than one after the other, within a time, without what was disturbed.

Repetitions of one thing in a row share whatever the machine does in that moment; spread over the whole time, a slow
second costs every point one repetition and its median none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from offload.measurements import median

Trial = Callable[[], float]
"""Measures once: seconds."""

MIN_REPEATS = 5
FEWEST_REPEATS = 3
"""Where `MIN_REPEATS` do not fit the time."""
MAX_REPEATS = 15
OUTLIER_FACTOR = 2.0
"""More than that times the median is another process's doing."""


def repeat_in_turn(
    trials: Sequence[Trial], budget_s: float, now_s: Callable[[], float], progress: Callable[[float], None]
) -> list[list[float]]:
    """Run every trial several times, in rounds of changing order.

    Each runs at least `FEWEST_REPEATS` times, whatever it takes; the rest of the time is shared out equally, so that
    short trials run more often than long ones.

    Args:
        budget_s: for all.
        now_s: clock.
        progress: told the share done, 0..1.

    Returns:
        The samples of each trial.
    """
    started_s = now_s()
    samples: list[list[float]] = [[] for _ in trials]
    costs_s: list[float] = []
    for trial, taken in zip(trials, samples, strict=True):
        before_s = now_s()
        taken.append(trial())
        costs_s.append(max(now_s() - before_s, 1e-9))
    targets = repeats(costs_s, budget_s, MIN_REPEATS if MIN_REPEATS * sum(costs_s) <= budget_s else FEWEST_REPEATS)
    total_s = sum(cost * target for cost, target in zip(costs_s, targets, strict=True))
    done_s = sum(costs_s)
    for repeat, index in further_rounds(targets):
        if repeat >= FEWEST_REPEATS and now_s() - started_s > budget_s:
            continue
        samples[index].append(trials[index]())
        done_s += costs_s[index]
        progress(min(1.0, done_s / total_s))
    progress(1.0)
    return samples


def repeats(costs_s: Sequence[float], budget_s: float, least: int) -> list[int]:
    """How often each trial runs: `least` times, and more within an equal share of what the budget then has left."""
    spare_s = max(0.0, budget_s - least * sum(costs_s)) / max(1, len(costs_s))
    return [min(MAX_REPEATS, least + int(spare_s / cost)) for cost in costs_s]


def further_rounds(targets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(repetition, index) of all but the first run of each trial, in rounds of changing order."""
    order = random.Random(0)
    for repeat in range(1, max(targets, default=0)):
        due = [index for index, target in enumerate(targets) if repeat < target]
        order.shuffle(due)
        for index in due:
            yield repeat, index


def without_outliers(samples: Sequence[float]) -> tuple[tuple[float, ...], int]:
    """Those within `OUTLIER_FACTOR` of the median, and how many were not."""
    limit = OUTLIER_FACTOR * median(samples)
    kept = tuple(sample for sample in samples if sample <= limit)
    return kept, len(samples) - len(kept)
