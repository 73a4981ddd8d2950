"""Drawing tokens: the random words, the filters and the distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.sampling import argmax_rows, draw, philox4x32, score, top_k_thresholds, top_p_thresholds, uniforms


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected) -> None:
    """Random123 1.14.0, tests/kat_vectors, rows `philox4x32 10`."""
    assert tuple(int(word[0]) for word in philox4x32(words(*counter), words(*key))) == expected


def test_uniforms_are_uniform_and_distinct_over_seeds_streams_and_counters() -> None:
    size = 20_000
    index = np.arange(size, dtype=np.uint64)
    zeros = np.zeros(size, dtype=np.uint64)
    drawn = [uniforms(index, zeros, zeros), uniforms(zeros, index, zeros), uniforms(zeros, zeros, index)]
    high_seeds = uniforms(index << np.uint64(32), zeros, zeros)
    for values in (*drawn, high_seeds):
        assert values.min() >= 0.0 and values.max() < 1.0
        counts = np.histogram(values, bins=100, range=(0, 1))[0]
        chi_square = ((counts - size / 100) ** 2 / (size / 100)).sum()
        assert chi_square < 160  # 99 degrees of freedom: beyond it with probability 1e-4
    assert len(np.unique(np.concatenate([*drawn, high_seeds]))) >= 4 * size - 4  # (0, 0, 0) is in all four


def test_a_draw_is_a_function_of_seed_stream_and_counter_alone() -> None:
    seeds, streams, counters = (np.arange(50, dtype=np.uint64) * np.uint64(factor) for factor in (7, 3, 11))
    together = uniforms(seeds, streams, counters)
    alone = [uniforms(seeds[i : i + 1], streams[i : i + 1], counters[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


def test_argmax_takes_the_first_of_equals_and_reports_nan() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -2.0, -torch.inf], [0.0, torch.nan, 9.0]])
    token_ids, peaks = argmax_rows(logits)
    assert token_ids.tolist() == [1, 1, 1]
    assert peaks[:2].tolist() == [3.0, -2.0]
    assert bool(peaks[2].isnan())


def drawn(logits: Tensor, uniform: Tensor, temperature: float = 1.0, **filters: Tensor) -> Tensor:
    rows = len(logits)
    return draw(logits.clone(), logits.amax(1), torch.full((rows,), temperature), uniform, **filters)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    size, vocab_size = 20_000, 20
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(3)) * 2
    index = np.arange(size, dtype=np.uint64)
    uniform = torch.from_numpy(uniforms(np.full_like(index, 42), np.zeros_like(index), index))
    tokens = drawn(logits.expand(size, -1).contiguous(), uniform, temperature)
    expected = torch.softmax(logits.double() / temperature, 0) * size
    counts = torch.bincount(tokens, minlength=vocab_size)
    kept = expected > 5
    chi_square = float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    assert chi_square < 55  # 19 degrees of freedom or fewer: beyond it with probability below 1e-4
    assert counts[~kept].sum() <= 30


def test_the_ends_of_the_unit_interval_never_draw_a_masked_token() -> None:
    logits = torch.full((2, 7), -torch.inf)
    logits[:, 2:5] = 0.0
    assert drawn(logits, torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)).tolist() == [2, 4]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1.0, 1e15, 3e38])
def test_one_finite_logit_is_always_drawn(temperature: float) -> None:
    logits = torch.full((3, 11), -torch.inf)
    logits[torch.arange(3), torch.tensor([0, 5, 10])] = torch.tensor([-80.0, 0.0, 90.0])
    uniform = torch.tensor([0.0, 0.5, 1.0 - 2.0**-53], dtype=torch.float64)
    assert drawn(logits, uniform, temperature).tolist() == [0, 5, 10]


def test_extreme_temperatures_tend_to_greedy_and_to_uniform() -> None:
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(1)) * 50
    uniform = torch.linspace(0, 0.999, 64, dtype=torch.float64)
    assert torch.equal(drawn(logits, uniform, 1e-6), logits.argmax(1))
    assert torch.equal(drawn(logits, uniform, 1e15), (uniform * 500).long())


def test_top_k_applies_at_a_temperature_that_flattens_everything() -> None:
    logits = torch.arange(100.0).repeat(50, 1)
    uniform = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    tokens = drawn(logits, uniform, 1e15, top_k=torch.full((50,), 3))
    assert sorted(set(tokens.tolist())) == [97, 98, 99]


def test_top_k_thresholds_are_order_statistics_row_by_row() -> None:
    values = torch.randn(5, 3000, generator=torch.Generator().manual_seed(2))
    top_k = torch.tensor([1, 7, 2999, 3000, 2**62])
    thresholds = top_k_thresholds(values, top_k).squeeze(1)
    ordered = values.sort(dim=1, descending=True).values
    assert thresholds[:3].tolist() == [ordered[0, 0], ordered[1, 6], ordered[2, 2998]]
    assert thresholds[3:].tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 10.0])
def test_top_p_thresholds_keep_the_least_mass_that_reaches_top_p(spread: float) -> None:
    """Flat rows need more than the bounded number of candidates."""
    generator = torch.Generator().manual_seed(4)
    probabilities = torch.softmax(torch.randn(6, 10_000, generator=generator) * spread, 1)
    top_p = torch.tensor([0.0, 0.1, 0.5, 0.9, 0.999, 1.0], dtype=torch.float64)
    thresholds = top_p_thresholds(probabilities, top_p)
    cases = zip(probabilities.double(), thresholds.squeeze(1).tolist(), top_p.tolist(), strict=True)
    for row, threshold, target in cases:
        mass, above = row[row >= threshold].sum(), row[row > threshold].sum()
        if target == 1.0:
            assert threshold == 0.0
        else:
            assert mass >= target - 1e-6 and (above < target + 1e-6 or above == 0.0)


def test_a_row_is_drawn_alike_in_every_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    rows, vocab_size = 33, 4999
    logits = torch.randn(rows, vocab_size, generator=generator) * torch.linspace(0.01, 5, rows)[:, None]
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    options = {
        "top_k": torch.randint(1, 6000, (rows,), generator=generator),
        "top_p": torch.rand(rows, generator=generator, dtype=torch.float64),
        "min_p": torch.rand(rows, generator=generator) * 0.01,
    }
    together = drawn(logits, uniform, 0.8, **options)
    for size in (1, 2, 3, 16):
        for _ in range(6):
            part = torch.randperm(rows, generator=generator)[:size]
            subset = {name: values[part] for name, values in options.items()}
            assert torch.equal(drawn(logits[part], uniform[part], 0.8, **subset), together[part])


def test_the_path_of_other_devices_chooses_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run here on the CPU: torch's order statistics in the place of numpy's."""
    generator = torch.Generator().manual_seed(7)
    rows, vocab_size = 24, 9000
    logits = torch.randn(rows, vocab_size, generator=generator) * torch.linspace(0.01, 5, rows)[:, None]
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    options = {
        "top_k": torch.randint(1, 10_000, (rows,), generator=generator),
        "top_p": torch.rand(rows, generator=generator, dtype=torch.float64),
        "min_p": torch.rand(rows, generator=generator) * 0.01,
    }
    with_numpy = drawn(logits, uniform, **options), argmax_rows(logits)[0], argmax_rows(logits)[1]
    monkeypatch.setattr("kernels.sampling._is_on_host", lambda values: False)
    with_torch = drawn(logits, uniform, **options), argmax_rows(logits)[0], argmax_rows(logits)[1]
    assert all(torch.equal(a, b) for a, b in zip(with_numpy, with_torch, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_probabilities_have_the_same_bits_in_every_batch(threads: int) -> None:
    """What `draw` rests on: softmax and cumulative sums that do not depend on the number of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits = torch.randn(40, 49_151, generator=torch.Generator().manual_seed(6))
        together = torch.softmax(logits, 1).cumsum(1, dtype=torch.float64)
        scored = score(logits, 3)[0]
        for first, last in ((0, 1), (7, 8), (3, 6), (11, 40)):
            part = logits[first:last].clone()
            assert torch.equal(torch.softmax(part, 1).cumsum(1, dtype=torch.float64), together[first:last])
            assert torch.equal(score(part, 3)[0], scored[first:last])
    finally:
        torch.set_num_threads(before)


def test_scores_are_log_probabilities_of_the_unmodified_logits() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -torch.inf]])
    logprobs, top_logprobs, top_ids = score(logits, 2)
    assert top_ids.tolist() == [[1, 2]]
    expected = torch.log_softmax(logits.double(), 1)
    assert torch.allclose(logprobs.double(), expected)
    assert torch.equal(top_logprobs, logprobs[:, [1, 2]])
