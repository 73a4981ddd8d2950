"""The vectorised sampler against a slow one that is written from the definitions, one row and one token at a time."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.sampler import LOGPROB_FLOOR, Sampler
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from kernels.native.row_sampling import NativeRowSampling
from kernels.native_library import NativeLibrary

VOCAB_SIZE = 13
MARGIN = 1e-5
"""How far from a boundary a case must be for float32 and float64 to agree."""


def slow_uniform(seed: int, choice: int, index: int) -> float:
    """Philox4x32-10 with Python integers; the first 27 and 26 bits of its first two words."""
    low = 0xFFFFFFFF
    counter, key = [index, choice, 0, 0], [seed & low, (seed >> 32) & low]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(right >> 32) ^ counter[1] ^ key[0], right & low, (left >> 32) ^ counter[3] ^ key[1], left & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return ((counter[0] >> 5) * 2**26 + (counter[1] >> 6)) / 2**53


def softmax(values: list[float]) -> list[float]:
    peak = max(values)
    weights = [math.exp(value - peak) for value in values]
    return [weight / sum(weights) for weight in weights]


def adjusted(logits: list[float], sequence: Sequence) -> list[float]:
    """min_tokens, logit_bias, then the penalties."""
    sampling = sequence.sampling
    prompt = sequence.token_ids[: sequence.num_prompt_tokens].tolist()
    output = sequence.output_token_ids.tolist()
    values = []
    for token, logit in enumerate(logits):
        value = logit
        if len(output) < sampling.min_tokens and token in sequence.stop_token_ids:
            value = -math.inf
        value += sampling.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        value -= sampling.frequency_penalty * output.count(token)
        value -= sampling.presence_penalty if token in output else 0.0
        values.append(value)
    return values


def filtered(values: list[float], sampling: SamplingParams) -> list[float]:
    """Probabilities after temperature, min_p, top_k and top_p; ties with the last kept token are kept."""
    peak = max(values)
    cold = [(value - peak) / sampling.temperature for value in values]
    if sampling.min_p > 0:
        ratios = [math.exp(value) for value in cold]
        assume(all(abs(ratio - sampling.min_p) > MARGIN for ratio in ratios))
        cold = [value if ratio >= sampling.min_p else -math.inf for value, ratio in zip(cold, ratios, strict=True)]
    if 0 < sampling.top_k < len(values):
        limit = sorted(values, reverse=True)[sampling.top_k - 1]
        cold = [value if original >= limit else -math.inf for value, original in zip(cold, values, strict=True)]
    probabilities = softmax(cold)
    if sampling.top_p < 1:
        mass, limit = 0.0, 0.0
        for probability in sorted(probabilities, reverse=True):
            mass += probability
            assume(abs(mass - sampling.top_p) > MARGIN)
            if mass >= sampling.top_p:
                limit = probability
                break
        # Equal logits have equal probabilities up to rounding.
        probabilities = [p if p >= limit * (1 - 1e-12) else 0.0 for p in probabilities]
    return probabilities


def slow_token(logits: list[float], sequence: Sequence) -> int:
    sampling = sequence.sampling
    values = adjusted(logits, sequence)
    if sampling.temperature == 0:
        best = max(values)
        assume(all(value == best or best - value > MARGIN for value in values))
        assume(values.count(best) == 1)
        return values.index(best)
    probabilities = filtered(values, sampling)
    target = slow_uniform(sampling.seed, sequence.choice, sequence.num_output_tokens) * sum(probabilities)
    mass = 0.0
    for token, probability in enumerate(probabilities):
        assume(probability == 0 or abs(mass + probability - target) > MARGIN)
        mass += probability
        if mass > target:
            return token
    raise AssertionError("no token")


# Multiples of 1/4 make ties common and keep sums exact.
quarters = st.integers(-20, 20).map(lambda value: value / 4)
tokens = st.integers(0, VOCAB_SIZE - 1)


def off_or(values: st.SearchStrategy[Any], off: float) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(off), values)


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[float], Sequence]:
    logits = draw(st.lists(st.one_of(quarters, quarters, st.just(-math.inf)), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE))
    assume(max(logits) > -math.inf)
    prompt = tuple(draw(st.lists(tokens, min_size=1, max_size=6)))
    output = draw(st.lists(tokens, max_size=6))
    sampling = SamplingParams(
        max_tokens=8,
        min_tokens=draw(st.integers(0, 7)),
        temperature=draw(off_or(st.sampled_from([0.1, 0.5, 1.0, 2.0, 50.0]), 0.0)),
        top_p=draw(off_or(st.floats(0.0, 1.0), 1.0)),
        top_k=draw(off_or(st.integers(1, VOCAB_SIZE + 3), 0)),
        min_p=draw(off_or(st.floats(0.0, 1.0), 0.0)),
        presence_penalty=draw(off_or(quarters.filter(lambda value: abs(value) <= 2), 0.0)),
        frequency_penalty=draw(off_or(quarters.filter(lambda value: abs(value) <= 2), 0.0)),
        repetition_penalty=draw(off_or(st.sampled_from([0.5, 1.25, 2.0]), 1.0)),
        logit_bias=draw(st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.25, 100.0]), max_size=3)),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        num_logprobs=draw(st.one_of(st.none(), st.integers(0, VOCAB_SIZE))),
    )
    stop = frozenset(draw(st.lists(tokens, max_size=3)))
    sequence = Sequence("r", draw(st.integers(0, 5)), prompt, sampling, stop, block_size=4)
    for token in output:
        sequence.append(token)
    assume(max(adjusted(logits, sequence)) > -math.inf)
    return logits, sequence


@settings(max_examples=250, deadline=None, derandomize=True)
@given(batch=st.lists(rows(), min_size=1, max_size=4), order=st.randoms(use_true_random=False))
def test_every_row_is_what_the_definitions_say(
    library: NativeLibrary | None, batch: list[tuple[list[float], Sequence]], order: random.Random
) -> None:
    expected = [slow_token(logits, sequence) for logits, sequence in batch]
    sampler = Sampler(8, None if library is None else NativeRowSampling(library))
    places = list(range(8))
    order.shuffle(places)
    for place, (_, sequence) in zip(places, batch, strict=False):
        sampler.assign(place, sequence)
    matrix = torch.tensor([logits for logits, _ in batch], dtype=torch.float32)
    sampled = sampler.sample(matrix.clone(), np.array(places[: len(batch)]), [sequence for _, sequence in batch])
    assert sampled.errors == {}
    assert sampled.token_ids == expected
    for (logits, sequence), token, record in zip(batch, expected, sampled.logprobs, strict=True):
        count = sequence.sampling.num_logprobs
        if count is None:
            assert record is None
            continue
        assert record is not None and record.token_id == token
        logprobs = [math.log(p) if p > 0 else LOGPROB_FLOOR for p in softmax(logits)]
        assert math.isclose(record.logprob, logprobs[token], abs_tol=1e-4)
        assert len(record.top_token_ids) == len(record.top_logprobs) == count
        best = sorted(logprobs, reverse=True)[:count]
        assert np.allclose(record.top_logprobs, best, atol=1e-4)
        assert np.allclose([logprobs[token] for token in record.top_token_ids], best, atol=1e-4)
