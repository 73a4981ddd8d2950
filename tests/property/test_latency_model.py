"""Whatever a latency model has learned: it grows with every count, inverts exactly, and follows its history alone."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scheduler.latency_coefficients import LatencyCoefficients, StepKind
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.ramp import Ramp
from scheduler.step_features import StepFeatures
from tests.latency_builders import STREAMING, decodes, make_coefficients

_SMALL = st.floats(0.0, 1e-3)
COUNTS = st.integers(1, 1000)
LINKS = st.sampled_from([NO_LINK, STREAMING, dataclasses.replace(STREAMING, num_streamed_layers=30)])


@st.composite
def coefficients(draw: st.DrawFn) -> LatencyCoefficients:
    knots = tuple(float(knot) for knot in sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=6))))
    slopes = tuple(draw(st.lists(_SMALL, min_size=len(knots), max_size=len(knots))))
    context_s = draw(st.floats(0.0, 1e-5))
    factors = st.floats(1.0, 2.0)
    return make_coefficients(
        rows=Ramp(draw(st.floats(0.0, 0.05)), knots, slopes),
        s_per_prefill_token=draw(_SMALL),
        s_per_decode=draw(_SMALL),
        s_per_decode_context_token=context_s,
        s_per_prefill_pair=draw(st.floats(0.0, 1e-6)),
        s_per_skew_token=draw(st.floats(0.0, 2.0)) * context_s,
        decode_slowdown=draw(factors),
        prefill_slowdown=draw(factors),
        prefill_step_tokens=draw(st.integers(1, 200)),
        p95_factors=(draw(factors), draw(factors), draw(factors)),
    )


@st.composite
def steps(draw: st.DrawFn) -> StepFeatures:
    features = decodes(*draw(st.lists(st.integers(1, 2000), max_size=6)))
    for _ in range(draw(st.integers(0, 2))):
        features = features.with_chunk(
            draw(st.integers(2, 150)), draw(st.integers(0, 1000)), samples=draw(st.booleans())
        )
    return features


HISTORIES = st.lists(st.tuples(steps(), LINKS, st.floats(0.3, 3.0)), max_size=40)


class CountingModel(LatencyModel):
    num_evaluations = 0

    def _term_s(
        self, features: StepFeatures, kind: StepKind, link: LinkSnapshot, link_s: float, factor: float
    ) -> float:
        self.num_evaluations += 1
        return super()._term_s(features, kind, link, link_s, factor)


def _taught(numbers: LatencyCoefficients, history: list[tuple[StepFeatures, LinkSnapshot, float]]) -> CountingModel:
    model = CountingModel(numbers)
    for features, link, factor in history:
        if features.num_rows:
            prediction = model.begin(features, link)
            model.observe(prediction, factor * prediction.uncorrected_s)
    model.check()
    return model


@settings(max_examples=60, deadline=None)
@given(coefficients(), HISTORIES, steps(), LINKS, st.integers(1, 200), st.integers(0, 500))
def test_more_of_anything_takes_no_less(
    numbers: LatencyCoefficients,
    history: list[tuple[StepFeatures, LinkSnapshot, float]],
    base: StepFeatures,
    link: LinkSnapshot,
    num_more: int,
    prefix_tokens: int,
) -> None:
    model = _taught(numbers, history)
    longer_decodes = dataclasses.replace(
        base,
        decode_context_tokens=base.decode_context_tokens + num_more,
        max_decode_context_tokens=base.max_decode_context_tokens + num_more,
    )
    larger = [
        dataclasses.replace(base, prefill_tokens=base.prefill_tokens + num_more),
        dataclasses.replace(base, prefill_pairs=base.prefill_pairs + num_more),
        dataclasses.replace(base, num_samples=base.num_samples + 1),
        base.with_chunk(num_more, prefix_tokens, samples=False),
        *([longer_decodes] if base.num_decodes else []),
    ]
    for more in larger:
        for time_s in (model.mean_s, model.p95_s):
            assert time_s(more, link) >= time_s(base, link) * (1 - 1e-12)
    assert model.p95_s(base, link) >= model.mean_s(base, link) * (1 - 1e-12)
    slower = dataclasses.replace(link, num_streamed_layers=link.num_streamed_layers + num_more)
    assert model.mean_s(base, slower) >= model.mean_s(base, link) * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(coefficients(), st.lists(st.integers(1, 2000), min_size=1, max_size=6), COUNTS, COUNTS)
def test_a_longer_context_or_one_more_decode_takes_no_less(
    numbers: LatencyCoefficients, contexts: list[int], added: int, longer: int
) -> None:
    model = LatencyModel(numbers)
    base_s = model.mean_s(decodes(*contexts), NO_LINK)
    assert model.mean_s(decodes(*contexts, added), NO_LINK) >= base_s * (1 - 1e-12)
    for index in range(len(contexts)):
        grown = [*contexts[:index], contexts[index] + longer, *contexts[index + 1 :]]
        assert model.mean_s(decodes(*grown), NO_LINK) >= base_s * (1 - 1e-12)


@settings(max_examples=80, deadline=None)
@given(coefficients(), HISTORIES, steps(), LINKS, st.integers(0, 1000), st.integers(1, 400), st.floats(0.0, 1.2))
def test_the_inversion_is_the_largest_chunk_within_the_budget(
    numbers: LatencyCoefficients,
    history: list[tuple[StepFeatures, LinkSnapshot, float]],
    base: StepFeatures,
    link: LinkSnapshot,
    prefix_tokens: int,
    max_tokens: int,
    share: float,
) -> None:
    model = _taught(numbers, history)

    def cost_s(num_tokens: int) -> float:
        return model.p95_s(base.with_chunk(num_tokens, prefix_tokens, samples=True), link)

    budget_s = cost_s(1) * 0.99 + share * (cost_s(max_tokens) - cost_s(1) * 0.99)
    brute = max((n for n in range(1, max_tokens + 1) if cost_s(n) <= budget_s), default=0)
    model.num_evaluations = 0
    assert model.max_chunk_tokens(base, prefix_tokens, max_tokens, budget_s, link) == brute
    assert 0 < model.num_evaluations <= 2 * (len(numbers.rows.knots) + 8), "it was searched for, not computed"


@settings(max_examples=30, deadline=None)
@given(steps().filter(lambda features: features.num_rows > 0), st.floats(0.4, 2.5))
def test_the_correction_converges(features: StepFeatures, factor: float) -> None:
    model = _taught(make_coefficients(), [(features, NO_LINK, factor)] * 80)
    prediction = model.predict(features, NO_LINK)
    truth_s = factor * prediction.uncorrected_s
    others_s = LatencyModel(make_coefficients()).mean_s(features, NO_LINK)  # a part of a lower kind may count
    assert prediction.mean_s >= truth_s * 0.99
    assert prediction.mean_s == pytest.approx(truth_s, rel=0.01) or prediction.mean_s <= others_s


@settings(max_examples=30, deadline=None)
@given(coefficients(), HISTORIES, steps(), LINKS)
def test_equal_histories_give_equal_predictions(
    numbers: LatencyCoefficients,
    history: list[tuple[StepFeatures, LinkSnapshot, float]],
    features: StepFeatures,
    link: LinkSnapshot,
) -> None:
    assert _taught(numbers, history).predict(features, link) == _taught(numbers, history).predict(features, link)
