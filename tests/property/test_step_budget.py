"""Steps against brute force: who is left out, how much is computed, and that nobody is late for it."""

from __future__ import annotations

import dataclasses
import itertools
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler.chunk_tile import ChunkTile
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.output import ScheduledRequest
from scheduler.ramp import Ramp
from scheduler.request import Request
from scheduler.step_budget import BudgetLimits, StepBudget
from scheduler.step_features import StepFeatures
from scheduler.token_deadlines import TokenDeadlines
from tests.budget_builders import make_decode, make_prefill
from tests.latency_builders import STREAMING, decodes, make_coefficients

MODELS = tuple(
    LatencyModel(make_coefficients(rows=Ramp(start_s, (8.0, 64.0), (5e-4, slope_s)), p95_factors=factors))
    for start_s, slope_s, factors in (
        (0.02, 1e-3, (1.1, 1.2, 1.3)),
        (0.001, 2e-3, (1.0, 1.0, 1.0)),
        (0.15, 0.0, (1.3, 1.1, 1.0)),
    )
)
LINKS = st.sampled_from([NO_LINK, STREAMING, dataclasses.replace(STREAMING, num_streamed_layers=60)])
LIMITS = st.builds(
    BudgetLimits,
    floor_s=st.sampled_from([0.0, 0.02]),
    max_s=st.sampled_from([0.05, 0.2]),
    long_prompt_tokens=st.sampled_from([300, 8192]),
)
BLOCK_SIZE = 8


@dataclasses.dataclass
class Step:
    """What one step is put together from."""

    model: LatencyModel
    link: LinkSnapshot
    limits: BudgetLimits
    start_s: float
    decodes: list[Request]
    slacks: dict[Request, float]
    """As drawn, before anything is put off."""

    def budget(self) -> StepBudget:
        return StepBudget(self.model, self.link, self.start_s, self.limits, ChunkTile(self.model, BLOCK_SIZE, 256))

    def p95_s(self, chosen: list[Request]) -> float:
        return self.model.p95_s(decodes(*(r.num_computed_tokens + 1 for r in chosen)), self.link)

    def protected(self) -> list[Request]:
        return [r for r in self.decodes if r.is_protected and not r.deadlines.is_lost]


@st.composite
def steps(draw: st.DrawFn, min_decodes: int = 0) -> Step:
    start_s = draw(st.sampled_from([0.0, 3.0]))
    requests, slacks = [], {}
    kinds = st.sampled_from(["protected", "protected", "batch", "lost"])
    for index in range(draw(st.integers(min_decodes, 14))):
        slack_s = draw(st.floats(-0.1, 0.6))
        kind = draw(kinds)
        request = make_decode(
            f"r{index}",
            context=draw(st.integers(1, 3000)),
            due_s=start_s + slack_s,
            is_protected=kind != "batch",
            is_lost=kind == "lost",
        )
        requests.append(request)
        slacks[request] = request.deadlines.next_s - start_s
    return Step(draw(st.sampled_from(MODELS)), draw(LINKS), draw(LIMITS), start_s, requests, slacks)


@settings(max_examples=200, deadline=None)
@given(steps(min_decodes=1), st.booleans())
def test_the_budget_is_the_smallest_slack_that_can_still_be_kept(step: Step, may_skip: bool) -> None:
    """Invariant 9: the lost do not shrink it, and only those that are late by all means are put off."""
    protected = step.protected()
    lengths = [r.num_computed_tokens + 1 for r in protected]
    alone_s = step.model.mean_s(decodes(*lengths), step.link)
    saved = [r for r in protected if step.slacks[r] >= alone_s + 1e-9]
    cannot = [r for r in protected if step.slacks[r] < alone_s - 1e-9]
    smallest_s = min((step.slacks[r] for r in saved), default=math.inf)
    budget = step.budget()
    budget.choose_decodes(step.decodes, may_skip=may_skip)
    expected_s = max(step.limits.floor_s, min(smallest_s, step.limits.max_s))
    assert budget.budget_s == pytest.approx(expected_s)
    for request in step.decodes:
        assert request.deadlines.num_misses == (request in cannot)
        due_s = step.start_s + (alone_s if request in cannot else step.slacks[request])
        assert request.deadlines.next_s == pytest.approx(due_s)
    budget.check()
    rest = [r for r in step.decodes if r not in cannot and (r.is_protected and not r.deadlines.is_lost)]
    if rest:
        again = step.budget()
        again.choose_decodes(rest, may_skip=False)
        assert again.budget_s == pytest.approx(expected_s), "without the lost it would be another one"


@settings(max_examples=150, deadline=None)
@given(steps(min_decodes=1))
def test_the_loosest_are_left_out_as_far_as_they_can_spare_it(step: Step) -> None:
    """Invariant 11, and against trying every number of decodes to keep."""
    budget = step.budget()
    left_out = budget.choose_decodes(step.decodes, may_skip=True)
    assert budget.budget_s is not None
    kept = [r for r in step.decodes if r not in left_out]
    slack_s = {r: r.deadlines.next_s - step.start_s for r in step.decodes}
    all_s = step.p95_s(step.decodes)
    assert kept, "the tightest is never left out"
    if left_out:
        assert max(slack_s[r] for r in kept) <= min(slack_s[r] for r in left_out)
        this_s = max(budget.budget_s, step.p95_s(kept))
        assert min(slack_s[r] for r in left_out) >= this_s + all_s - 1e-12
    ordered = sorted(step.decodes, key=lambda r: slack_s[r])
    sizes = range(1, len(ordered) + 1)
    within = max((n for n in sizes if step.p95_s(ordered[:n]) <= budget.budget_s), default=1)

    def is_spared(num_kept: int) -> bool:
        this_s = max(budget.budget_s or 0.0, step.p95_s(ordered[:num_kept]))
        return all(slack_s[r] >= this_s + all_s for r in ordered[num_kept:])

    assert len(kept) == next(n for n in sizes if n >= within and is_spared(n))
    if all_s <= budget.budget_s:
        assert not left_out


PROMPTS = st.lists(
    st.tuples(st.integers(1, 600), st.integers(0, 500), st.sampled_from([0, 0, 0, 24])), min_size=1, max_size=4
)


@settings(max_examples=150, deadline=None)
@given(steps(), PROMPTS, st.integers(1, 300))
def test_chunks_are_the_longest_that_keep_the_budget(
    step: Step, prompts: list[tuple[int, int, int]], num_tokens_left: int
) -> None:
    """Invariants 6 and 8, against trying every length, with the whole step counted as it will be run."""
    budget = step.budget()
    left_out = budget.choose_decodes(step.decodes, may_skip=True)
    parts = [
        ScheduledRequest(r.request_id, 1, r.num_computed_tokens, 0, (), True) for r in step.decodes if r not in left_out
    ]
    tile = ChunkTile(step.model, BLOCK_SIZE, 256).tokens
    assert budget.budget_s is not None
    least = StepFeatures.of(parts) if parts else StepFeatures(1, 0, 0, 0, 0.5, 1)
    bare_s = step.model.p95_s(least, step.link)
    limit_s, fill = budget.budget_s, step.link
    if bare_s > budget.budget_s:  # copies count at their median: what is filled beside slow ones would not be free
        fill = dataclasses.replace(step.link, h2d=dataclasses.replace(step.link.h2d, p5_bytes_per_s=1e9))
        limit_s = max(limit_s, step.model.p95_s(least, fill))
    slack_s = _slack_of(step)
    num_chunks = num_long = 0
    for index, (num_tokens, position, reserved) in enumerate(prompts):
        request = make_prefill(f"p{index}", position + num_tokens, num_computed_tokens=position)
        if reserved:
            budget.reserve(reserved)
        chunk = budget.fit(request, num_tokens, num_tokens_left)
        most = min(num_tokens, num_tokens_left)
        is_long = position + num_tokens > step.limits.long_prompt_tokens
        if is_long and num_long and StepFeatures.of(parts).num_decodes:
            assert chunk == 0
            continue

        def brute(limit: float, most: int, request: Request = request, num_tokens: int = num_tokens) -> int:
            lengths = [
                n for n in range(1, most + 1) if _chunk_s(step.model, fill, parts, request, n, num_tokens) <= limit
            ]  # fmt: skip
            return _rounded(max(lengths, default=0), tile, num_tokens, most)

        expected = brute(limit_s, most)
        if not num_chunks and limit_s < slack_s and expected < min(most, tile):
            expected = max(expected, brute(slack_s, min(most, tile)))
        expected = max(expected, min(reserved, most))
        assert chunk == expected
        if chunk:
            budget.add(request, chunk)
            parts.append(_part(request, chunk))
            num_tokens_left -= chunk
            num_chunks += 1
            num_long += is_long
    step_s = step.model.p95_s(StepFeatures.of(parts), step.link) if parts else 0.0
    if not {"over_budget", "least_prefill", "share_reserved"} & set(budget.reasons):
        assert step_s <= budget.budget_s * (1 + 1e-12)
    if "share_reserved" not in budget.reasons and parts:
        filled_s = step.model.p95_s(StepFeatures.of(parts), fill)
        assert filled_s <= max(limit_s, min(slack_s, 10.0)) * (1 + 1e-12), "a protected decode is late for it"
    budget.check()


def _slack_of(step: Step) -> float:
    """Of the protected decodes as they are now, those that were put off left aside."""
    kept = [r for r in step.protected() if not r.deadlines.num_misses]
    return min((r.deadlines.next_s - step.start_s for r in kept), default=math.inf)


def _part(request: Request, num_tokens: int) -> ScheduledRequest:
    position = request.num_computed_tokens
    samples = position + num_tokens == request.spec.num_prompt_tokens
    return ScheduledRequest(request.request_id, num_tokens, position, 0, (), samples)


def _chunk_s(
    model: LatencyModel,
    link: LinkSnapshot,
    parts: list[ScheduledRequest],
    request: Request,
    num_tokens: int,
    num_left: int,
) -> float:
    """Of the step with a chunk; one that is not the last counts as one that samples, as it might be."""
    part = _part(request, num_tokens)
    features = StepFeatures.of([*parts, part])
    if not part.samples:
        features = dataclasses.replace(features, num_samples=features.num_samples + 1)
    if num_tokens == 1 and num_left > 1:
        features = StepFeatures.of(parts).with_chunk(1, request.num_computed_tokens, samples=True)
    return model.p95_s(features, link)


def _rounded(num_tokens: int, tile: int, num_left: int, most: int) -> int:
    if num_tokens == num_left or (num_tokens == most and most < BLOCK_SIZE):
        return num_tokens
    unit = tile if num_tokens >= tile else BLOCK_SIZE
    return num_tokens // unit * unit


@dataclasses.dataclass
class Stream:
    """A decode in virtual time."""

    request: Request
    tpot_s: float
    max_stall_s: float
    times: list[float]


def _stream(name: str, now_s: float, tpot_s: float, max_stall_s: float, context: int) -> Stream:
    request = make_decode(name, context=context)
    request.deadlines = TokenDeadlines(now_s, tpot_s, max_stall_s, 0.0)
    request.deadlines.emitted(now_s)
    return Stream(request, tpot_s, max_stall_s, [now_s])


TARGETS = st.tuples(st.floats(0.02, 0.2), st.floats(1.0, 4.0), st.integers(1, 2000))


@settings(max_examples=40, deadline=None)
@given(st.lists(TARGETS, min_size=1, max_size=10), st.integers(0, 9), st.booleans())
def test_with_an_exact_model_nobody_whose_decodes_fit_is_late(
    targets: list[tuple[float, float, int]], num_late_starts: int, may_skip: bool
) -> None:
    """Invariant 12, closed: prompts without end wait, and every step takes exactly what was predicted."""
    model = LatencyModel(make_coefficients(p95_factors=(1.0, 1.0, 1.0)))
    tile = ChunkTile(model, BLOCK_SIZE, 256)
    streams, now_s, num_prefilled = [], 0.0, 0
    coming = [_stream(f"r{i}", 0.0, t, t * stall, context) for i, (t, stall, context) in enumerate(targets)]
    fits = model.p95_s(decodes(*(s.request.num_computed_tokens + 62 for s in coming)), NO_LINK) <= min(
        s.tpot_s for s in coming
    )
    for index in range(60):
        if coming and (index >= num_late_starts or len(coming) > num_late_starts):
            first = coming.pop()
            started = _stream(
                first.request.request_id, now_s, first.tpot_s, first.max_stall_s, first.request.num_computed_tokens
            )
            streams.append(started)
        budget = StepBudget(model, NO_LINK, now_s, BudgetLimits(), tile)
        left_out = budget.choose_decodes([s.request for s in streams], may_skip=may_skip)
        kept = [s for s in streams if s.request not in left_out]
        prompt = make_prefill("p", 5000)
        chunk = budget.fit(prompt, 5000, 256)
        features = decodes(*(s.request.num_computed_tokens + 1 for s in kept))
        if chunk:
            features = features.with_chunk(chunk, 0, samples=False)
        now_s += model.mean_s(features, NO_LINK)
        num_prefilled += chunk
        for stream in kept:
            stream.request.deadlines.emitted(now_s)
            stream.request.num_computed_tokens += 1
            stream.times.append(now_s)
    for stream in streams:
        deadlines = stream.request.deadlines
        deadlines.check()
        if fits:
            assert deadlines.num_misses == 0
        if deadlines.num_misses or len(stream.times) < 2:
            continue
        gaps = [b - a for a, b in itertools.pairwise(stream.times)]
        assert (stream.times[-1] - stream.times[0]) / len(gaps) <= stream.tpot_s * (1 + 1e-9)
        assert max(gaps) <= stream.max_stall_s * (1 + 1e-9)
    if all(s.request.deadlines.is_lost for s in streams):
        assert num_prefilled > 0
