"""Deficits of step time against all windows, and what no arrivals can do to a class that is served when it is owed."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler.class_shares import ClassShares

SHARES = {"realtime": 0.3, "interactive": 0.3, "standard": 0.25, "batch": 0.1}
MAX_STEP_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    duration_s: float
    tokens: dict[str, int]
    backlogged: frozenset[str]


STEPS = st.builds(
    Step,
    st.floats(0.0, MAX_STEP_S),
    st.dictionaries(st.sampled_from(list(SHARES)), st.integers(0, 500)),
    st.frozensets(st.sampled_from(list(SHARES))),
)


def windows(lengths_s: st.SearchStrategy[float]) -> st.SearchStrategy[dict[str, float]]:
    """By class; of each class its own."""
    return st.fixed_dictionaries(dict.fromkeys(SHARES, lengths_s))


def got_s(step: Step, name: str) -> float:
    """The class's part of a step, by its tokens."""
    num_tokens = sum(step.tokens.values())
    return step.duration_s * step.tokens.get(name, 0) / num_tokens if num_tokens else 0.0


def most_missing_s(steps: list[Step], name: str) -> float:
    """By how much a class fell short of its share, in the worst window that ends now and saw it backlogged."""
    worst = 0.0
    for first in range(len(steps)):
        window = steps[first:]
        if all(name in step.backlogged for step in window):
            time_s = sum(step.duration_s for step in window)
            worst = max(worst, SHARES[name] * time_s - sum(got_s(step, name) for step in window))
    return worst


@settings(max_examples=80, deadline=None)
@given(st.lists(STEPS, max_size=25), windows(st.floats(0.05, 1.0)))
def test_a_deficit_is_that_of_the_worst_window(steps: list[Step], windows_s: dict[str, float]) -> None:
    shares = ClassShares(SHARES, windows_s)
    for i, step in enumerate(steps):
        shares.observe(step.duration_s, step.tokens, step.backlogged)
        shares.check()
        missing_s = {name: most_missing_s(steps[: i + 1], name) for name in SHARES}
        assert {name: shares.deficit_s(name) for name in SHARES} == pytest.approx(missing_s, abs=1e-9)
        num_windows = {name: missing_s[name] / SHARES[name] / windows_s[name] for name in SHARES}
        owed = shares.owed()
        if owed is None:
            assert max(num_windows.values()) <= 1 + 1e-6
        else:
            assert num_windows[owed] >= max(1, *num_windows.values()) - 1e-6


def bound_s(name: str, window_s: float) -> float:
    return SHARES[name] * (window_s + MAX_STEP_S) + (len(SHARES) - 1) * MAX_STEP_S


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=20), st.integers(1, 40), windows(st.floats(2.0, 9.0)))
def test_whatever_arrives_a_class_that_is_served_when_owed_keeps_its_share(
    steps: list[Step], num_repeats: int, windows_s: dict[str, float]
) -> None:
    """Invariant 15. The steps are the adversary's, again and again, but for those that are owed to somebody."""
    shares = ClassShares(SHARES, windows_s)
    for step in steps * num_repeats:
        owed = shares.owed()
        # Who is owed may have left meanwhile; then its step is not needed.
        serves_owed = owed is not None and owed in step.backlogged
        tokens = {owed: 100} if serves_owed and owed is not None else step.tokens
        shares.observe(step.duration_s, tokens, step.backlogged)
        for name in SHARES:
            assert shares.deficit_s(name) <= bound_s(name, windows_s[name]) + 1e-9


@pytest.mark.parametrize("served", list(SHARES))
def test_a_class_that_takes_all_it_can_gets_the_rest_and_no_more(served: str) -> None:
    """All are backlogged for long: each gets its share, who is served unless another is owed gets what is left."""
    window_s, step_s, num_steps = 2.0, 0.1, 4000
    shares = ClassShares(SHARES, dict.fromkeys(SHARES, window_s))
    total_s = dict.fromkeys(SHARES, 0.0)
    for _ in range(num_steps):
        name = shares.owed() or served
        total_s[name] += step_s
        shares.observe(step_s, {name: 7}, SHARES.keys())
    time_s = num_steps * step_s
    for name, share in SHARES.items():
        assert total_s[name] >= share * time_s - bound_s(name, window_s)
    left = 1.0 - sum(share for name, share in SHARES.items() if name != served)
    assert total_s[served] == pytest.approx(left * time_s, rel=0.05)


def test_a_class_with_nothing_to_do_earns_nothing_and_owes_nothing() -> None:
    shares = ClassShares({"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 1.0})
    for _ in range(100):
        shares.observe(1.0, {"b": 10}, {"b"})
    assert shares.owed() is None and shares.deficit_s("a") == shares.deficit_s("b") == 0.0
    shares.observe(1.0, {"a": 10}, {"a", "b"})  # what "b" had alone is not held against it
    assert shares.deficit_s("b") == 0.5
    shares.observe(1.0, {"a": 10}, {"a"})
    assert shares.deficit_s("b") == 0.0


def test_the_one_furthest_behind_its_share_is_owed_first() -> None:
    shares = ClassShares({"large": 0.6, "small": 0.1, "none": 0.0}, {"large": 1.0, "small": 1.0, "none": 1.0})
    shares.observe(0.9, {"other": 1}, {"large", "small", "none"})
    assert shares.owed() is None
    shares.observe(0.2, {"large": 1, "other": 1}, {"large", "small", "none"})
    assert shares.owed() == "small", "large got 0.1 s of the 0.66 s that are its share; small nothing of 0.11 s"
    shares.observe(1.0, {"small": 1}, {"large", "small"})
    assert shares.owed() == "large"


@pytest.mark.parametrize(
    ("shares", "window_s", "message"),
    [
        ({"a": 1.5}, 1.0, "share is 1.5"),
        ({"a": -0.1}, 1.0, "share is -0.1"),
        ({"a": 0.6, "b": 0.6}, 1.0, "add up to 1.200"),
        ({"a": 0.6}, 0.0, "the window is 0.0 s"),
    ],
)
def test_what_cannot_be_shared_is_refused(shares: dict[str, float], window_s: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClassShares(shares, dict.fromkeys(shares, window_s))
