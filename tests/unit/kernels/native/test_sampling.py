"""Native sampling chooses the tokens that kernels.sampling chooses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import sampling
from kernels.native.sampling import argmax_rows, draw, score_rows, uniforms
from kernels.native_library import NativeLibrary
from tests.strided import strided

MARGIN = 1e-6
"""The two round the probabilities differently: within it of a boundary they may fall on different sides."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Rows to draw from, with the options of each."""

    logits: Tensor
    temperatures: Tensor
    uniform: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    def options(self) -> dict[str, Tensor | None]:
        return {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}

    def defined(self, du: float = 0.0, dp: float = 0.0) -> Tensor:
        """The tokens by definition, with the uniform numbers and top_p moved a little."""
        top_p = None if self.top_p is None else torch.where(self.top_p < 1, self.top_p + dp, self.top_p).clamp(0, 1)
        uniform = (self.uniform + du).clamp(0, 1 - 2.0**-53)
        options = self.options() | {"top_p": top_p}
        return sampling.draw(self.logits.clone(), self.logits.amax(1), self.temperatures, uniform, **options)

    def native(self, library: NativeLibrary, logits: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        peaks = self.logits.amax(1)
        source = self.logits if logits is None else logits
        return draw(library, source, peaks, self.temperatures, self.uniform, rows=rows, **self.options())


@st.composite
def draws(draw_from: st.DrawFn) -> Draws:
    rows = draw_from(st.integers(1, 6))
    vocab_size = draw_from(st.one_of(st.integers(1, 200), st.integers(201, 3000)))
    generator = torch.Generator().manual_seed(draw_from(st.integers(0, 2**31)))
    logits = torch.randn(rows, vocab_size, generator=generator) * draw_from(
        st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0])
    )
    if draw_from(st.booleans()):
        logits = logits.round()  # many equal ones
    masked = torch.rand(rows, vocab_size, generator=generator) < draw_from(st.sampled_from([0.0, 0.5, 0.99]))
    masked[:, draw_from(st.integers(0, vocab_size - 1))] = False
    logits.masked_fill_(masked, -torch.inf)

    def option(values: Tensor) -> Tensor | None:
        return values if draw_from(st.booleans()) else None

    return Draws(
        logits,
        torch.rand(rows, generator=generator) * draw_from(st.sampled_from([1e-6, 2.0, 1e15])) + 1e-30,
        torch.rand(rows, dtype=torch.float64, generator=generator),
        option(torch.randint(1, vocab_size + 3, (rows,), generator=generator)),
        option(torch.rand(rows, dtype=torch.float64, generator=generator)),
        option(torch.rand(rows, generator=generator) ** 4),
    )


@given(case=draws())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_tokens_are_those_of_the_definition(library: NativeLibrary, case: Draws) -> None:
    before = case.logits.clone()
    tokens = case.native(library)
    assert torch.equal(case.logits, before)
    accepted = [case.defined(du, dp) for du in (0.0, -MARGIN, MARGIN) for dp in (0.0, -MARGIN, MARGIN)]
    assert (torch.stack(accepted) == tokens).any(dim=0).all()


def large_draws(rows: int = 40, vocab_size: int = 49_152) -> Draws:
    generator = torch.Generator().manual_seed(3)
    return Draws(
        torch.randn(rows, vocab_size, generator=generator) * torch.linspace(0.01, 6, rows)[:, None],
        torch.rand(rows, generator=generator) + 0.5,
        torch.rand(rows, dtype=torch.float64, generator=generator),
        torch.randint(1, 100_000, (rows,), generator=generator),
        torch.rand(rows, dtype=torch.float64, generator=generator),
        torch.rand(rows, generator=generator) * 0.001,
    )


@pytest.mark.parametrize("used", [(), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p", "min_p")], ids=str)
def test_tokens_of_a_large_vocabulary(library: NativeLibrary, used: tuple[str, ...]) -> None:
    case = large_draws()
    case = dataclasses.replace(case, **{name: None for name in case.options() if name not in used})
    assert torch.equal(case.native(library), case.defined())


@pytest.mark.parametrize("spread", [0.0, 0.6, 3.0])
def test_a_nucleus_keeps_what_ties_with_its_last_token(library: NativeLibrary, spread: float) -> None:
    """Few different logits, and many of each: more at the threshold than are looked at one by one."""
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(40, 5003, generator=generator) * spread).round()
    top_p = torch.linspace(0.0, 1.0, 40, dtype=torch.float64)
    uniform = torch.rand(40, dtype=torch.float64, generator=generator)
    case = Draws(logits, torch.ones(40), uniform, None, top_p, None)
    accepted = [case.defined(0.0, dp) for dp in (0.0, -MARGIN, MARGIN)]
    assert (torch.stack(accepted) == case.native(library)).any(dim=0).all()


def test_a_row_is_drawn_alike_wherever_it_lies(library: NativeLibrary) -> None:
    case = large_draws(rows=12, vocab_size=4999)
    together = case.native(library)
    padded = strided(case.logits, 3)
    assert torch.equal(case.native(library, padded), together)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    shuffled = padded.new_full((20, 5002), float("nan"))[:, :4999]
    places = torch.arange(19, 7, -1)
    shuffled[places[order]] = case.logits
    assert torch.equal(case.native(library, shuffled, rows=places[order]), together)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1.0, 1e15, 3e38])
def test_one_finite_logit_is_always_drawn(library: NativeLibrary, temperature: float) -> None:
    logits = torch.full((3, 131), -torch.inf)
    logits[torch.arange(3), torch.tensor([0, 65, 130])] = torch.tensor([-80.0, 0.0, 90.0])
    uniform = torch.tensor([0.0, 0.5, 1.0 - 2.0**-53], dtype=torch.float64)
    case = Draws(logits, torch.full((3,), temperature), uniform, None, torch.tensor([0.0, 0.5, 1.0]).double(), None)
    assert case.native(library).tolist() == [0, 65, 130]


def test_the_ends_of_the_unit_interval_never_draw_a_masked_token(library: NativeLibrary) -> None:
    logits = torch.full((2, 300), -torch.inf)
    logits[:, 70:205] = 0.0
    uniform = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    assert Draws(logits, torch.ones(2), uniform, None, None, None).native(library).tolist() == [70, 204]


@given(
    rows=st.integers(0, 5),
    vocab_size=st.integers(1, 1500),
    padding=st.integers(0, 2),
    special=st.sampled_from([None, float("nan"), float("inf"), -float("inf")]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_argmax_takes_the_first_of_equals_and_reports_nan(
    library: NativeLibrary, rows: int, vocab_size: int, padding: int, special: float | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab_size, generator=generator) * 2 - 3).round()  # equal ones, often all negative
    if special is not None:
        logits[torch.rand(rows, vocab_size, generator=generator) < 0.3] = special
    token_ids, peaks = argmax_rows(library, strided(logits, padding))
    expected_ids, expected_peaks = sampling.argmax_rows(logits)
    assert torch.equal(token_ids, expected_ids)
    torch.testing.assert_close(peaks, expected_peaks, rtol=0, atol=0, equal_nan=True)


@given(
    rows=st.integers(1, 4),
    vocab_size=st.integers(1, 3000),
    num_top=st.one_of(st.integers(0, 6), st.integers(7, 4000)),
    spread=st.sampled_from([0.1, 3.0, 100.0]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_scores_are_log_probabilities(
    library: NativeLibrary, rows: int, vocab_size: int, num_top: int, spread: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab_size, generator=generator) * spread
    logits[torch.rand(rows, vocab_size, generator=generator) < 0.2] = -torch.inf
    logits[:, 0] = 1.0
    scores = score_rows(library, logits, num_top)
    expected = torch.log_softmax(logits.double(), 1)
    logprobs = logits - scores.peaks[:, None] - scores.log_sums[:, None]
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-6, atol=1e-5)
    count = min(num_top, vocab_size)
    ordered = logits.sort(dim=1, descending=True, stable=True)
    assert torch.equal(scores.top_ids, ordered.indices[:, :count])
    assert torch.equal(scores.top_logprobs, logprobs.gather(1, scores.top_ids))


def test_scores_of_chosen_rows_and_of_a_row_with_nan(library: NativeLibrary) -> None:
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(2))
    logits[3, 40] = float("nan")
    scores = score_rows(library, logits, 3, rows=torch.tensor([4, 3, 0]))
    alone = score_rows(library, logits[4:5], 3)
    assert torch.equal(scores.top_ids[0], alone.top_ids[0]) and torch.equal(scores.log_sums[0], alone.log_sums[0])
    assert scores.peaks[1].isnan() and scores.top_logprobs[1].isnan().all() and scores.top_ids[1].max() < 100
    assert torch.equal(scores.top_ids[2], logits[0].topk(3).indices)


def test_uniforms_have_the_bits_of_the_definition(library: NativeLibrary) -> None:
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, 2**64, 500, dtype=np.uint64)
    streams, counters = (generator.integers(0, 2**32, 500, dtype=np.uint64) for _ in range(2))
    expected = sampling.uniforms(seeds, streams, counters)
    assert uniforms(library, seeds, streams, counters).numpy().tolist() == expected.tolist()


def test_what_does_not_fit_is_refused(library: NativeLibrary) -> None:
    logits, one = torch.zeros(2, 5), torch.ones(2)
    uniform = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"logits is torch\.float64"):
        argmax_rows(library, logits.double())
    with pytest.raises(ValueError, match="expected \\[rows, vocabulary\\]"):
        argmax_rows(library, logits[:, :0])
    with pytest.raises(ValueError, match=r"uniform is torch\.float32"):
        draw(library, logits, one, one, one)
    with pytest.raises(ValueError, match="top_k is 0"):
        draw(library, logits, one, one, uniform, top_k=torch.tensor([3, 0]))
    with pytest.raises(ValueError, match="rows 0 to 2 are wanted, the logits have 2"):
        draw(library, logits, one, one, uniform, rows=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"temperatures has shape \(1,\)"):
        draw(library, logits, one, one[:1], uniform)
    with pytest.raises(ValueError, match="2 seeds, 1 streams"):
        words = np.zeros(2, dtype=np.uint64)
        uniforms(library, words, words[:1], words)
