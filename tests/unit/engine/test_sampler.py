"""The sampler over mixed batches: independence, errors, penalties that follow the output."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.sampler import LOGPROB_FLOOR, NON_FINITE_LOGITS, NOTHING_LEFT, SampledTokens, Sampler
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from kernels.native.row_sampling import NativeRowSampling
from kernels.native_library import NativeLibrary
from kernels.row_sampling import RowSampling, TorchRowSampling

VOCAB_SIZE = 3001


def make_sequence(
    *, prompt: tuple[int, ...] = (1, 2, 3), choice: int = 0, stop: frozenset[int] = frozenset(), **options: Any
) -> Sequence:
    sampling = SamplingParams(**({"max_tokens": 16} | options))
    return Sequence("r", choice, prompt, sampling, stop, block_size=4)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Samples with a new sampler whose rows are in reverse order of the batch."""

    kernels: RowSampling

    def __call__(self, logits: torch.Tensor, *sequences: Sequence) -> SampledTokens:
        sampler = Sampler(len(sequences), self.kernels)
        rows = np.arange(len(sequences))[::-1].copy()
        for row, sequence in zip(rows.tolist(), sequences, strict=True):
            sampler.assign(row, sequence)
        return sampler.sample(logits.clone(), rows, list(sequences))


@pytest.fixture
def sample(library: NativeLibrary | None) -> Sample:
    return Sample(TorchRowSampling() if library is None else NativeRowSampling(library))


def random_logits(rows: int, *, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * scale


def mixed_sequences(count: int) -> list[Sequence]:
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "num_logprobs": 3},
        {"temperature": 0.0, "repetition_penalty": 1.3, "logit_bias": {5: 4.0}},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "num_logprobs": 5},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"temperature": 0.9, "top_k": 2000, "top_p": 0.99, "num_logprobs": 0},
    ]
    sequences = []
    for index in range(count):
        sequence = make_sequence(choice=index % 3, seed=index * 977, prompt=(index, 2 * index), **options[index % 8])
        for token in range(index % 5):
            sequence.append(token)
        sequences.append(sequence)
    return sequences


def test_a_row_is_sampled_alike_in_every_batch_and_order(sample: Sample) -> None:
    count = 40
    logits, sequences = random_logits(count), mixed_sequences(count)
    together = sample(logits, *sequences)
    order = np.random.default_rng(1)
    for size in (1, 2, 5, 33):
        for _ in range(3):
            part = order.permutation(count)[:size].tolist()
            some = sample(logits[part], *[sequences[index] for index in part])
            assert some.token_ids == [together.token_ids[index] for index in part]
            assert some.logprobs == [together.logprobs[index] for index in part]


def test_choices_and_positions_use_their_own_random_numbers(sample: Sample) -> None:
    flat = torch.zeros(64, VOCAB_SIZE)
    choices = sample(flat, *[make_sequence(seed=7, choice=choice) for choice in range(64)]).token_ids
    grown = []
    sequence = make_sequence(seed=7, max_tokens=64)
    for _ in range(64):
        grown.append(sample(flat[:1], sequence).token_ids[0])
        sequence.append(grown[-1])
    assert grown[0] == choices[0]
    assert len(set(choices)) > 55 and len(set(grown)) > 55
    assert sum(a == b for a, b in zip(choices, grown, strict=True)) <= 3


def test_a_seed_repeats_its_tokens_after_a_restart(sample: Sample) -> None:
    logits = random_logits(1)
    first, second = make_sequence(seed=-5), make_sequence(seed=-5)
    for token in (4, 9, 9):
        first.append(token)
        second.append(token)
    assert sample(logits, first).token_ids == sample(logits, second).token_ids


def test_logit_bias_of_a_hundred_forces_and_forbids(sample: Sample) -> None:
    logits = random_logits(4)
    best = int(logits[1].argmax())
    sampled = sample(
        logits,
        make_sequence(temperature=1.0, logit_bias={17: 100.0}),
        make_sequence(temperature=0.0, logit_bias={best: -100.0}),
        make_sequence(temperature=0.0, logit_bias={17: 100.0, 18: 101.0}),
        make_sequence(temperature=0.0),
    )
    assert sampled.token_ids[0] == 17
    assert sampled.token_ids[1] == int(logits[1].topk(2).indices[1])
    assert sampled.token_ids[2] == int(logits[2, [17, 18]].add(torch.tensor([100.0, 101.0])).argmax()) + 17
    assert sampled.token_ids[3] == int(logits[3].argmax())


def test_stop_tokens_are_masked_until_min_tokens(sample: Sample) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 2], logits[0, 8] = 9.0, 5.0
    sequence = make_sequence(temperature=0.0, min_tokens=2, stop=frozenset({2}), logit_bias={2: 100.0})
    tokens = []
    for _ in range(3):
        tokens += sample(logits, sequence).token_ids
        sequence.append(tokens[-1])
    assert tokens == [8, 8, 2]


def test_penalties_follow_the_output_as_it_grows(sample: Sample) -> None:
    """One sampler over many steps counts each new token once."""
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 10:14] = torch.tensor([1.0, 0.9, 0.8, 0.7])
    sequence = make_sequence(temperature=0.0, frequency_penalty=0.15, presence_penalty=0.01)
    sampler = Sampler(1, sample.kernels)
    sampler.assign(0, sequence)
    values, expected, tokens = {token: float(logits[0, token]) for token in range(10, 14)}, [], []
    for _ in range(12):
        tokens += sampler.sample(logits.clone(), np.array([0]), [sequence]).token_ids
        sequence.append(tokens[-1])
        best = max(values, key=lambda token: values[token])
        values[best] -= 0.15 + (0.01 if best not in expected else 0.0)
        expected.append(best)
    assert tokens == expected


def test_repetition_penalty_covers_the_prompt_and_both_signs(sample: Sample) -> None:
    logits = torch.full((2, VOCAB_SIZE), -5.0)
    logits[0, [3, 4]] = torch.tensor([2.0, 1.5])
    logits[1, [3, 4]] = torch.tensor([-1.0, -1.5])
    penalized = [make_sequence(prompt=(3,), temperature=0.0, repetition_penalty=2.0) for _ in range(2)]
    assert sample(logits, *penalized).token_ids == [4, 4]


def test_logits_that_are_not_finite_fail_their_row_alone(sample: Sample) -> None:
    logits = random_logits(6)
    clean = sample(logits, *mixed_sequences(6))
    logits[1, 7] = torch.nan
    logits[3] = torch.nan
    logits[4, 0] = torch.inf
    spoilt = sample(logits, *mixed_sequences(6))
    assert spoilt.errors == dict.fromkeys((1, 3, 4), NON_FINITE_LOGITS)
    for index in (0, 2, 5):
        assert spoilt.token_ids[index] == clean.token_ids[index]
        assert spoilt.logprobs[index] == clean.logprobs[index]


def test_masking_every_token_is_an_error_of_that_row(sample: Sample) -> None:
    everything = make_sequence(min_tokens=1, stop=frozenset(range(VOCAB_SIZE)))
    sampled = sample(random_logits(2), everything, make_sequence(temperature=0.0))
    assert sampled.errors == {0: NOTHING_LEFT}


def test_log_probabilities_are_floored_and_finite(sample: Sample) -> None:
    logits = torch.full((2, VOCAB_SIZE), -torch.inf)
    logits[0, 5], logits[1, 5] = 0.0, 1e30
    logits[1, 6] = -1e30
    sequences = [make_sequence(temperature=temperature, num_logprobs=3) for temperature in (0.0, 1.0)]
    for record in sample(logits, *sequences).logprobs:
        assert record is not None
        assert record.token_id == 5 and record.logprob == 0.0
        assert record.top_token_ids[0] == 5 and record.top_logprobs == (0.0, LOGPROB_FLOOR, LOGPROB_FLOOR)
        assert all(math.isfinite(value) for value in record.top_logprobs)


def test_log_probabilities_ignore_bias_temperature_and_filters(sample: Sample) -> None:
    logits = random_logits(1)
    sequence = make_sequence(temperature=0.1, top_k=1, logit_bias={99: 100.0}, num_logprobs=1)
    (record,) = sample(logits, sequence).logprobs
    raw = torch.log_softmax(logits, 1)[0]
    assert record is not None
    assert record.token_id == 99 and record.logprob == pytest.approx(float(raw[99]), abs=1e-5)
    assert record.top_token_ids == (int(raw.argmax()),)
    assert record.top_logprobs == pytest.approx((float(raw.max()),), abs=1e-5)


def test_extreme_temperatures_do_not_overflow(sample: Sample) -> None:
    logits = random_logits(4, scale=30.0)
    temperatures = (1e-300, 1e-6, 1e15, 1e300)
    sampled = sample(logits, *[make_sequence(temperature=temperature, seed=3) for temperature in temperatures])
    assert sampled.errors == {}
    assert sampled.token_ids[:2] == logits[:2].argmax(1).tolist()
    assert sampled.token_ids[2] == sampled.token_ids[3]  # both uniform, same random number


def test_a_reassigned_row_keeps_nothing_of_its_last_sequence(sample: Sample) -> None:
    logits = random_logits(1)
    sampler = Sampler(1, sample.kernels)
    heavy = make_sequence(temperature=2.0, top_k=5, min_p=0.5, top_p=0.1, logit_bias={1: 100.0}, num_logprobs=2)
    sampler.assign(0, heavy)
    sampler.sample(logits.clone(), np.array([0]), [heavy])
    sampler.release(0)
    greedy = make_sequence(temperature=0.0)
    sampler.assign(0, greedy)
    sampled = sampler.sample(logits.clone(), np.array([0]), [greedy])
    assert sampled.token_ids == [int(logits.argmax())] and sampled.logprobs == [None]


def test_native_kernels_choose_as_pytorch_does(native_library: NativeLibrary) -> None:
    """Every option, adjusted rows with and without log-probabilities among them; equal up to rounding."""
    logits, sequences = random_logits(64, seed=3), mixed_sequences(64)
    sequences[2:4] = [make_sequence(temperature=0.8, logit_bias={9: 3.0}, num_logprobs=count) for count in (4, 0)]
    ours = Sample(NativeRowSampling(native_library))(logits, *sequences)
    theirs = Sample(TorchRowSampling())(logits, *sequences)
    assert ours.token_ids == theirs.token_ids and ours.errors == theirs.errors == {}
    for actual, expected in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None and expected is not None:
            assert (actual.token_id, actual.top_token_ids) == (expected.token_id, expected.top_token_ids)
            assert actual.logprob == pytest.approx(expected.logprob, abs=1e-5)
            assert actual.top_logprobs == pytest.approx(expected.top_logprobs, abs=1e-5)
