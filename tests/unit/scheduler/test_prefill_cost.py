"""What prompts cost beside decodes: the closed form against steps that are put together one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import SchedulerConfig
from scheduler.demand_curve import Work
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.prefill_cost import PrefillCost
from scheduler.step_features import StepFeatures
from tests.latency_builders import decodes
from tests.promise_rig import EXACT

CONFIG = SchedulerConfig(max_num_batched_tokens=1024, max_num_seqs=64)


def stepwise_s(model: LatencyModel, running: StepFeatures, budget_s: float, prompts: list[int]) -> float:
    """One prompt after the other, several in a step where they fit."""
    total_s, left = 0.0, list(prompts)
    while left:
        features = running
        while left:
            whole, room = prompts[-len(left)], CONFIG.max_num_batched_tokens - features.num_rows
            prefix = whole - left[0]
            chunk = min(model.max_chunk_tokens(features, prefix, min(left[0], room), budget_s, NO_LINK), left[0])
            if chunk < left[0]:
                chunk -= chunk % CONFIG.block_size
            if chunk < 1:
                break
            features = features.with_chunk(chunk, prefix, samples=chunk == left[0])
            left[0] -= chunk
            if left[0]:
                break
            del left[0]
        assert features is not running, "no step computes anything"
        total_s += model.mean_s(features, NO_LINK)
    return total_s


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(16, 4000), min_size=1, max_size=12), st.integers(0, 40), st.floats(0.020, 0.2))
def test_prompts_take_no_longer_than_the_quote_and_not_much_less(
    prompts: list[int], num_decodes: int, budget_s: float
) -> None:
    model = LatencyModel(EXACT)
    running = decodes(*[500] * num_decodes)
    quote = PrefillCost(model, CONFIG, 8192).beside(running, budget_s, sum(prompts), NO_LINK)
    assert quote is not None
    work = sum((Work.between(0, prompt) for prompt in prompts), Work())
    quoted_s = quote.cost.seconds(work.num_tokens, work.num_pairs)
    took_s = stepwise_s(model, running, budget_s, prompts)
    logits_s = len(prompts) * EXACT.samples.slopes_s[0]  # a row each, which the quote leaves to the margin
    assert took_s <= quoted_s + quote.last_step_s + logits_s
    assert quoted_s <= 1.5 * took_s


def test_no_quote_where_decodes_take_the_whole_budget() -> None:
    prefills = PrefillCost(LatencyModel(EXACT), CONFIG, 8192)
    assert prefills.beside(decodes(*[100] * 400), 0.010, 100, NO_LINK) is None
    assert prefills.beside(decodes(*[100] * 1024), 1.0, 100, NO_LINK) is None, "no rows are left"


def test_a_short_prompt_alone_takes_one_step() -> None:
    model = LatencyModel(EXACT)
    alone_s = PrefillCost(model, CONFIG, 8192).alone_s(100, 600, NO_LINK)
    assert alone_s == pytest.approx(model.mean_s(StepFeatures().with_chunk(500, 100, samples=True), NO_LINK))


@pytest.mark.parametrize("prompt", [1025, 3000, 10_000, 32_000])
def test_a_long_prompt_alone_takes_about_as_long_as_its_steps(prompt: int) -> None:
    model = LatencyModel(EXACT)
    alone_s = PrefillCost(model, CONFIG, 32_768).alone_s(0, prompt, NO_LINK)
    took_s = stepwise_s(model, StepFeatures(), CONFIG.max_step_s, [prompt])
    assert 0.9 * took_s <= alone_s <= 1.01 * took_s
