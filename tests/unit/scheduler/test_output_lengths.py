"""Lengths of answers by class, and the peak of the memory that they come to."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.output_lengths import MIN_ANSWERS, PRIOR_TOKENS, WINDOW, OutputLengths, future_peak_blocks


def test_until_some_answers_have_ended_a_prior_stands() -> None:
    lengths = OutputLengths(("a", "b"))
    assert lengths.remaining("a", 0, 100) == 100
    assert lengths.remaining("a", 0, 10_000) == PRIOR_TOKENS
    assert lengths.remaining("a", PRIOR_TOKENS - 4, 10_000) == PRIOR_TOKENS // 2 - 2
    for _ in range(MIN_ANSWERS):
        lengths.observe("a", 20)
    assert lengths.remaining("a", 0, 10_000) == 20
    assert lengths.remaining("b", 0, 10_000) == PRIOR_TOKENS, "another class"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=MIN_ANSWERS, max_size=400), st.integers(0, 450), st.integers(0, 600))
def test_the_rest_is_a_quantile_of_the_answers_that_were_longer(
    answers: list[int], num_tokens: int, num_left: int
) -> None:
    lengths = OutputLengths(("a",))
    for answer in answers:
        lengths.observe("a", answer)
    lengths.check()
    longer = sorted(a for a in answers[-WINDOW:] if a > num_tokens)
    found = lengths.remaining("a", num_tokens, num_tokens + num_left)
    if longer:
        expected = longer[math.ceil(0.9 * len(longer)) - 1] - num_tokens
        assert sum(a <= num_tokens + expected for a in longer) >= 0.9 * len(longer)
    else:
        expected = max(num_tokens // 2, 16)
    assert found == min(expected, num_left)


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_is_that_of_growing_token_by_token(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        size = rng.choice((1, 4, 16))
        lives = [(rng.randint(0, 60), rng.randint(1, 20)) for _ in range(rng.randint(1, 12))]
        peak = 0
        for step in range(max(remaining for remaining, _ in lives) + 1):
            growing = [(r, held) for r, held in lives if r >= step]
            peak = max(peak, sum(held + math.ceil(step / size) for _, held in growing))
        assert future_peak_blocks(lives, size) == peak
    assert future_peak_blocks((), 4) == 0


def test_what_ends_soon_makes_room_for_what_stays() -> None:
    assert future_peak_blocks([(4, 10), (40, 1)], 4) == 13, "11 blocks, and one more each until the first ends"
    assert future_peak_blocks([(100, 1), (100, 1)], 4) == 52
