"""Which steps bear waiting for a load, by hand: 1 ms a token of prefill, decodes free, 200 ms at most."""

from __future__ import annotations

import pytest

from scheduler.chunk_tile import ChunkTile
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.request import Request
from scheduler.step_budget import BudgetLimits, StepBudget
from tests.budget_builders import make_decode, make_prefill
from tests.kv_tier_builders import make_latency

LATENCY = make_latency()


def make_budget(*decodes: Request, model: LatencyModel | None = LATENCY) -> StepBudget:
    budget = StepBudget(model, NO_LINK, 0.0, BudgetLimits(max_s=0.2), ChunkTile(model, 4, 512))
    budget.choose_decodes(decodes, may_skip=False)
    return budget


def bears(budget: StepBudget, num_tokens: int, wait_s: float, num_parts: int) -> bool:
    return budget.bears(make_prefill("loading", num_tokens + 8, num_computed_tokens=8), num_tokens, wait_s, num_parts)


@pytest.mark.parametrize(
    ("num_tokens", "wait_s", "num_parts", "step_s"),
    [
        (100, 0.06, 4, 0.115),  # all but the first part hides under computing
        (100, 0.06, 8, 0.1075),
        (100, 0.06, 1, 0.160),  # nothing can be computed before all of it is there
        (100, 0.10, 4, 0.125),  # as fast as computing: the first part in front, or the last part of computing behind
        (100, 0.14, 4, 0.165),  # computing hides but for its last part
        (40, 0.18, 4, 0.190),
        (100, 0.0, 4, 0.100),
    ],
)
def test_a_step_and_its_load_overlap_but_for_one_part(
    num_tokens: int, wait_s: float, num_parts: int, step_s: float
) -> None:
    """A decode that is due just after such a step bears it, and one that is due just before does not."""
    for due_s, expected in ((step_s + 1e-4, True), (step_s - 1e-4, False)):
        budget = make_budget(make_decode("d", due_s=due_s))
        assert bears(budget, num_tokens, wait_s, num_parts) is expected
        budget.check()


def test_no_step_is_longer_than_the_largest_for_a_load() -> None:
    assert bears(make_budget(), 100, 0.174, 4)
    assert not bears(make_budget(), 100, 0.176, 4)
    assert bears(make_budget(make_decode("d", due_s=9.0)), 100, 0.174, 4)
    assert not bears(make_budget(make_decode("d", due_s=9.0)), 100, 0.176, 4)


def test_decodes_that_are_not_protected_bear_what_the_largest_step_does() -> None:
    budget = make_budget(make_decode("d", due_s=0.01, is_protected=False))
    assert bears(budget, 100, 0.14, 4)


def test_what_was_computed_in_the_step_already_hides_a_load_too() -> None:
    for due_s, expected in ((0.126, True), (0.124, False)):
        budget = make_budget(make_decode("d", due_s=due_s))
        budget.add(make_prefill("p", 100), 90)
        assert bears(budget, 10, 0.1, 4) is expected, "100 ms of computing, 25 of waiting"


def test_prefill_behind_it_finds_less_room_by_the_waiting() -> None:
    """100 tokens and 15 ms of waiting leave 85 ms."""
    for num_tokens, expected in ((84, 84), (86, 84)):
        budget = make_budget()
        assert bears(budget, 100, 0.06, 4)
        budget.add(make_prefill("loading", 108, num_computed_tokens=8), 100)
        assert budget.fit(make_prefill("p", num_tokens), num_tokens, 512) == expected
    budget = make_budget()
    budget.add(make_prefill("loading", 108, num_computed_tokens=8), 100)
    assert budget.fit(make_prefill("p", 86), 86, 512) == 86, "without it there is room"


def test_two_loads_wait_side_by_side() -> None:
    """The longer one counts: 25 and 15 ms of waiting are 25."""
    budget = make_budget(make_decode("d", due_s=0.155))
    assert bears(budget, 60, 0.1, 4), "60 + 55 ms"
    budget.add(make_prefill("loading", 68, num_computed_tokens=8), 60)
    assert bears(budget, 39, 0.06, 4), "99 + 55 ms"
    assert not bears(budget, 41, 0.06, 4), "101 + 55 ms"
    budget = make_budget()
    for num_tokens, wait_s in ((60, 0.1), (39, 0.06)):
        assert bears(budget, num_tokens, wait_s, 4)
        budget.add(make_prefill("loading", num_tokens + 8, num_computed_tokens=8), num_tokens)
    assert budget.fit(make_prefill("p", 44), 44, 512) == 44, "99 + 55 ms leave 46"
    assert budget.fit(make_prefill("p", 48), 48, 512) == 44


def test_a_load_that_is_waited_for_whatever_is_due_counts_for_those_who_come_to_it() -> None:
    """One token behind 190 ms of loading; 100 tokens and 150 ms would take 175 ms without it."""
    assert bears(make_budget(), 100, 0.15, 4)
    budget = make_budget()
    budget.wait_for(make_prefill("first", 9, num_computed_tokens=8), 1, 0.19, 4)
    assert budget.stall_s == pytest.approx(0.19)
    assert not bears(budget, 100, 0.15, 4)
    assert budget.fit(make_prefill("p", 100), 100, 512) == 8, "10 ms are left; whole blocks of 4"


@pytest.mark.parametrize(("num_tokens", "stall_s"), [(1, 0.1), (40, 0.07), (100, 0.025), (400, 0.025)])
def test_what_a_step_is_longer_by(num_tokens: int, stall_s: float) -> None:
    budget = make_budget()
    budget.wait_for(make_prefill("loading", num_tokens + 8, num_computed_tokens=8), num_tokens, 0.1, 4)
    assert budget.stall_s == pytest.approx(stall_s)
    unknown = make_budget(model=None)
    unknown.wait_for(make_prefill("loading", num_tokens + 8, num_computed_tokens=8), num_tokens, 0.1, 4)
    assert unknown.stall_s == pytest.approx(0.1), "nobody knows what it hides under"


def test_one_that_is_refused_leaves_the_step_as_it_was() -> None:
    budget = make_budget(make_decode("d", due_s=0.1))
    assert not bears(budget, 50, 0.9, 4)
    assert budget.fit(make_prefill("p", 96), 96, 512) == 96
    assert bears(budget, 50, 0.04, 4), "50 ms and 10"


def test_without_a_model_nobody_knows_what_a_load_would_hide_under() -> None:
    assert not bears(make_budget(model=None), 100, 0.0, 4)
