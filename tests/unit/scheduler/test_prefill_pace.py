"""How fast prompts are worked off, from the steps that left some over."""

from __future__ import annotations

import random

import pytest

from scheduler.prefill_pace import DECAY, PrefillPace


@pytest.mark.parametrize("prior_s", [None, 0.002])
def test_until_a_step_left_prompts_over_the_prior_stands(prior_s: float | None) -> None:
    pace = PrefillPace(prior_s)
    assert pace.s_per_token == prior_s
    pace.observe(0.5, 0)
    assert pace.s_per_token == prior_s, "no token was computed: nothing can be said of one"
    assert pace.seen_s_per_token is None
    pace.check()


def test_what_was_seen_is_apart_from_the_prior() -> None:
    pace = PrefillPace(0.002)
    pace.observe(0.5, 100)
    assert pace.seen_s_per_token == pace.s_per_token == pytest.approx(0.005)


def test_steps_without_a_duration_tell_nothing() -> None:
    pace = PrefillPace(0.002)
    pace.observe(0.0, 100)
    assert pace.s_per_token == 0.002


def test_all_time_counts_the_steps_without_prefill_too() -> None:
    pace = PrefillPace(None)
    pace.observe(1.0, 0)
    pace.observe(1.0, 100)
    assert pace.s_per_token == pytest.approx((DECAY + 1.0) / 100)


def test_it_is_the_mean_of_about_the_last_steps() -> None:
    pace, rng = PrefillPace(1.0), random.Random(4)
    steps = [(rng.uniform(0.01, 0.1), rng.randint(0, 64)) for _ in range(500)]
    for duration_s, num_tokens in steps:
        pace.observe(duration_s, num_tokens)
    weights = [DECAY**age for age in reversed(range(len(steps)))]
    expected = sum(w * s for w, (s, _) in zip(weights, steps, strict=True)) / sum(
        w * n for w, (_, n) in zip(weights, steps, strict=True)
    )
    assert pace.s_per_token == pytest.approx(expected)


def test_a_machine_that_slows_down_is_known_after_about_fifty_steps() -> None:
    pace = PrefillPace(None)
    for _ in range(300):
        pace.observe(0.1, 100)
    for _ in range(50):
        pace.observe(0.2, 100)
    assert pace.s_per_token is not None and 0.0016 < pace.s_per_token < 0.0017
