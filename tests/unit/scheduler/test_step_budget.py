"""One step's time: what bounds it, what does not any more, and what is computed whatever it says."""

from __future__ import annotations

import pytest

from scheduler.chunk_tile import ChunkTile
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from scheduler.ramp import Ramp
from scheduler.step_budget import BudgetLimits, StepBudget
from tests.budget_builders import make_decode, make_prefill
from tests.latency_builders import decodes, make_coefficients

BLOCK_SIZE = 16
EXACT = LatencyModel(make_coefficients(p95_factors=(1.0, 1.0, 1.0)))
"""A step of one decode takes 24 ms, 128 more tokens 117 ms."""
SLOW_LINK = LinkSnapshot(h2d=LinkDirection(1e9, 1e9), num_streamed_layers=100)
"""200 ms of copies a step."""


def make_budget(
    model: LatencyModel | None = EXACT,
    *,
    link: LinkSnapshot = NO_LINK,
    start_s: float = 0.0,
    floor_s: float = 0.0,
    max_s: float = 0.2,
    long_prompt_tokens: int = 8192,
) -> StepBudget:
    limits = BudgetLimits(floor_s, max_s, long_prompt_tokens)
    return StepBudget(model, link, start_s, limits, ChunkTile(model, BLOCK_SIZE, 512))


def test_the_smallest_slack_of_protected_decodes_is_the_budget() -> None:
    budget = make_budget(start_s=1.0)
    requests = [make_decode("a", due_s=1.15), make_decode("b", due_s=1.09), make_decode("c", due_s=1.12)]
    assert not budget.choose_decodes(requests, may_skip=True)
    assert budget.budget_s == pytest.approx(0.09)
    budget.check()


def test_those_that_are_not_protected_or_are_lost_do_not_bound_it() -> None:
    requests = [
        make_decode("batch", due_s=0.04, is_protected=False),
        make_decode("lost", due_s=0.04, is_lost=True),
        make_decode("a", due_s=0.12),
    ]
    budget = make_budget()
    budget.choose_decodes(requests, may_skip=False)
    assert budget.budget_s == pytest.approx(0.12)
    budget = make_budget()
    budget.choose_decodes(requests[:2], may_skip=False)
    assert budget.budget_s == 0.2
    assert make_budget(max_s=0.3).budget_s == 0.3


def test_it_lies_between_its_limits() -> None:
    for due_s, expected_s in ((0.05, 0.06), (0.07, 0.07), (0.5, 0.1)):
        budget = make_budget(floor_s=0.06, max_s=0.1)
        budget.choose_decodes([make_decode("a", due_s=due_s)], may_skip=False)
        assert budget.budget_s == pytest.approx(expected_s)


def test_one_that_cannot_be_saved_among_many_is_put_off_and_forgotten() -> None:
    late = make_decode("late", due_s=-0.3)
    others = [make_decode(f"r{i}", due_s=0.1 + i / 100) for i in range(8)]
    budget = make_budget()
    budget.choose_decodes([*others[:4], late, *others[4:]], may_skip=True)
    assert budget.budget_s == pytest.approx(0.1)
    assert budget.reasons == ["deadline_lost"]
    alone_s = EXACT.mean_s(decodes(*[101] * 9), NO_LINK)
    assert late.deadlines.next_s == pytest.approx(alone_s) and late.deadlines.num_misses == 1
    assert all(request.deadlines.num_misses == 0 for request in others)


def test_a_step_of_protected_decodes_alone_decides_who_cannot_be_saved() -> None:
    alone_s = EXACT.mean_s(decodes(101), NO_LINK)
    batch = [make_decode(f"b{i}", due_s=9.0, is_protected=False) for i in range(200)]
    tight = make_decode("a", due_s=alone_s + 1e-6)
    budget = make_budget()
    left_out = budget.choose_decodes([*batch, tight], may_skip=True)
    assert tight.deadlines.num_misses == 0 and budget.budget_s == pytest.approx(alone_s + 1e-6)
    assert left_out == set(batch)
    assert budget.reasons == ["decode_skipped"]


def test_a_stream_that_is_always_too_slow_neither_stops_prefill_nor_bounds_steps() -> None:
    streams = [make_decode(f"r{i}", due_s=0.01, tpot_s=0.01) for i in range(3)]
    now_s, chunks = 0.0, []
    for _ in range(12):
        budget = make_budget(start_s=now_s)
        assert not budget.choose_decodes(streams, may_skip=True)
        assert budget.budget_s == 0.2
        chunks.append(budget.fit(make_prefill("p", 100_000), 100_000, 512))
        now_s += 0.2
        for stream in streams:
            stream.deadlines.emitted(now_s)
    assert min(chunks) > 100
    assert all(stream.deadlines.is_lost for stream in streams)


def test_decodes_longer_than_the_largest_step_leave_prompts_a_tile() -> None:
    """Nobody is late for it, and without it prompts would wait for the last decode to finish."""
    heavy = LatencyModel(make_coefficients(rows=Ramp(0.5, (256.0,), (1e-4,)), p95_factors=(1.0, 1.0, 1.0)))
    for due_s, is_protected in ((0.0, False), (9.0, True)):
        budget = make_budget(heavy)
        budget.choose_decodes([make_decode("a", due_s=due_s, is_protected=is_protected)], may_skip=True)
        tile = ChunkTile(heavy, BLOCK_SIZE, 512).tokens
        first, second = make_prefill("p", 1000), make_prefill("q", 1000)
        assert budget.fit(first, 1000, 512) == tile
        budget.add(first, tile)
        assert budget.fit(second, 1000, 512 - tile) == 0
        assert budget.reasons == ["over_budget", "least_prefill", "no_time"]
    tight = make_decode("b", due_s=0.55)
    budget = make_budget(heavy)
    budget.choose_decodes([tight], may_skip=True)
    num_tokens = budget.fit(make_prefill("p", 1000), 1000, 512)
    step_s = heavy.p95_s(decodes(101).with_chunk(num_tokens, 0, samples=True), NO_LINK)
    assert 0 < num_tokens < tile and step_s <= 0.55


def test_without_a_model_tokens_alone_bound_the_step() -> None:
    budget = make_budget(None)
    late = make_decode("late", due_s=-1.0)
    assert not budget.choose_decodes([late, make_decode("loose", due_s=9.0)], may_skip=True)
    prefill = make_prefill("p", 1000)
    assert budget.fit(prefill, 1000, 512) == 512
    budget.add(prefill, 512)
    assert budget.fit(make_prefill("q", 30), 30, 512) == 30
    assert budget.fit(make_prefill("r", 30), 30, 0) == 0
    assert budget.budget_s is None and budget.reasons == [] and late.deadlines.num_misses == 0
    budget.check()


def test_prefill_below_the_time_of_the_copies_is_free_and_always_filled() -> None:
    budget = make_budget(link=SLOW_LINK)
    budget.choose_decodes([make_decode("a", due_s=0.21)], may_skip=True)
    bare_s = EXACT.p95_s(decodes(101), SLOW_LINK)
    assert bare_s == pytest.approx(0.201)
    budget = make_budget(link=SLOW_LINK, max_s=0.05)
    budget.choose_decodes([make_decode("a", due_s=0.21)], may_skip=True)
    assert budget.budget_s == 0.05
    prefill = make_prefill("p", 1000)
    num_tokens = budget.fit(prefill, 1000, 512)
    filled = decodes(101).with_chunk(num_tokens, 0, samples=False)
    assert num_tokens >= 128 and EXACT.p95_s(filled, SLOW_LINK) == bare_s
    more = decodes(101).with_chunk(num_tokens + ChunkTile(EXACT, BLOCK_SIZE, 512).tokens, 0, samples=False)
    assert EXACT.p95_s(more, SLOW_LINK) > bare_s
    assert budget.reasons == ["over_budget"]


def test_beside_copies_that_may_be_slow_prefill_keeps_to_their_median() -> None:
    """At the 95th percentile the copies break the budget: what fits below that would break it every time."""
    uneven = LinkSnapshot(h2d=LinkDirection(2e9, 1e9), num_streamed_layers=100)
    for max_s, limit_s in ((0.2, 0.13), (0.05, 0.101)):
        budget = make_budget(link=uneven, max_s=max_s)
        budget.choose_decodes([make_decode("a", due_s=0.13)], may_skip=True)
        num_tokens = budget.fit(make_prefill("p", 1000), 1000, 512)
        assert num_tokens > 0
        steady = LinkSnapshot(h2d=LinkDirection(2e9, 2e9), num_streamed_layers=100)
        filled = decodes(101).with_chunk(num_tokens, 0, samples=False)
        assert EXACT.p95_s(filled, steady) <= limit_s
        assert EXACT.p95_s(filled, uneven) == EXACT.p95_s(decodes(101), uneven)


def test_the_first_prompt_of_an_idle_engine_is_computed_however_slow_a_step_is() -> None:
    heavy = LatencyModel(make_coefficients(rows=Ramp(3.0, (256.0,), (1e-3,))))
    assert make_budget(heavy, max_s=0.01).fit(make_prefill("p", 1000), 1000, 512) >= BLOCK_SIZE
    assert make_budget(heavy, max_s=0.01).fit(make_prefill("p", 3), 3, 512) == 3


def test_chunks_are_whole_tiles_else_whole_blocks_else_the_last_part() -> None:
    budget = make_budget()
    tile = ChunkTile(EXACT, BLOCK_SIZE, 512).tokens
    assert tile == 48
    prefill = make_prefill("p", 1000)
    budget.choose_decodes([make_decode("a", due_s=0.13)], may_skip=True)
    room = max(n for n in range(512) if EXACT.p95_s(decodes(101).with_chunk(n, 0, samples=True), NO_LINK) <= 0.13)
    assert budget.fit(prefill, 1000, 512) == room - room % tile
    assert budget.fit(prefill, 1000, tile + 5) == tile
    assert budget.fit(prefill, 1000, tile - 5) == 32
    assert budget.fit(prefill, 1000, 5) == 5, "no more tokens are left: they are not wasted"
    assert budget.fit(make_prefill("q", room - 1), room - 1, 512) == room - 1
    tight = make_budget()
    tight.choose_decodes([make_decode("a", due_s=EXACT.p95_s(decodes(101).with_chunk(9, 0, samples=True), NO_LINK))],
                         may_skip=True)  # fmt: skip
    assert tight.fit(prefill, 1000, 512) == 0 and tight.reasons == ["no_time"]
    assert tight.fit(make_prefill("q", 9), 9, 512) == 9


def test_a_class_that_is_owed_its_share_gets_it_whatever_the_budget() -> None:
    budget = make_budget()
    budget.choose_decodes([make_decode("a", due_s=0.025)], may_skip=True)
    first, second = make_prefill("p", 1000), make_prefill("q", 1000)
    assert budget.fit(first, 1000, 512) == 0
    budget.reserve(64)
    assert budget.fit(first, 1000, 512) == 64
    assert "share_reserved" in budget.reasons
    budget.add(first, 64)
    assert budget.fit(second, 1000, 448) == 0, "once"
    budget.reserve(64)
    assert budget.fit(second, 1000, 20) == 20
    budget.reserve(64)
    assert budget.fit(make_prefill("r", 5), 5, 448) == 5


def test_one_long_prompt_at_a_time_unless_nothing_else_runs() -> None:
    long, other, short = make_prefill("p", 3000), make_prefill("q", 3000), make_prefill("r", 40)
    budget = make_budget(max_s=5.0, long_prompt_tokens=1000)
    budget.choose_decodes([make_decode("a", due_s=5.0)], may_skip=True)
    num_tokens = budget.fit(long, 3000, 100)
    assert num_tokens > 0
    budget.add(long, num_tokens)
    assert budget.fit(other, 3000, 512) == 0 and "long_prompt" in budget.reasons
    assert budget.fit(short, 40, 512) == 40
    idle = make_budget(max_s=5.0, long_prompt_tokens=1000)
    idle.add(long, idle.fit(long, 3000, 100))
    assert idle.fit(other, 3000, 100) > 0


def test_the_prefix_counts_and_what_is_found_in_the_cache_is_prefix() -> None:
    """A waiting request holds nothing yet: what it lacks tells where it starts."""
    model = LatencyModel(make_coefficients(s_per_prefill_pair=1e-5, p95_factors=(1.0, 1.0, 1.0)))
    at_front = make_budget(model).fit(make_prefill("p", 2000), 2000, 512)
    cached = make_budget(model).fit(make_prefill("p", 2000), 400, 512)
    computed = make_budget(model).fit(make_prefill("p", 2000, num_computed_tokens=1600), 400, 512)
    assert 0 < cached == computed < at_front


def test_the_token_of_a_stream_in_flight_is_not_due_again() -> None:
    request = make_decode("a", due_s=0.06, tpot_s=0.08)
    request.num_scheduled_tokens = request.num_pending_samples = 1
    budget = make_budget(start_s=0.025)
    budget.choose_decodes([request], may_skip=True)
    assert budget.budget_s == pytest.approx(0.06 + 0.08 - 0.025)
    budget = make_budget(start_s=0.13)
    budget.choose_decodes([request], may_skip=True)
    assert request.deadlines.num_misses == 0, "its token may be out already"
    assert budget.budget_s == 0.2 and budget.reasons == []


def test_a_last_token_counts_as_a_decode() -> None:
    request = make_prefill("p", 101, num_computed_tokens=100)
    budget = make_budget(max_s=EXACT.p95_s(decodes(101, 101), NO_LINK))
    budget.choose_decodes([make_decode("a", due_s=9.0)], may_skip=True)
    assert budget.fit(request, 1, 512) == 1
    budget.add(request, 1)
    assert budget.fit(make_prefill("q", 101, num_computed_tokens=100), 1, 512) == 0


@pytest.mark.parametrize("how", ["heeded", "relegated", "not protected", "not its end", "late anyway"])
def test_a_prompt_that_ends_in_the_step_bounds_what_is_added_behind_it(how: str) -> None:
    """Its first token is due in 80 ms: what comes behind is not to make it late, unless it is nobody's promise."""
    first, second = make_prefill("first", 32 if how != "not its end" else 64), make_prefill("second", 512)
    first.deadlines.next_s = 0.001 if how == "late anyway" else 0.080
    first.is_relegated, first.is_protected = how == "relegated", how != "not protected"
    budget = make_budget(max_s=0.2)
    assert budget.fit(first, first.num_tokens_to_compute, 512) >= 32
    budget.add(first, 32)
    behind = budget.fit(second, 512, 480)
    assert budget.budget_s == pytest.approx(0.080 if how == "heeded" else 0.2)
    budget.add(second, behind)
    features = budget.features_of(32 + behind, (how != "not its end") + (behind == 512))
    assert features is not None
    assert (EXACT.p95_s(features, NO_LINK) <= 0.080) == (how == "heeded"), f"{behind} tokens behind it"
    budget.check()
