"""The decoders against transformers, on tiny random models of every option, in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from tests.paged_decoding import PagedDecoding
from tests.tiny_model import VOCAB_SIZE, make_llama_model

TOLERANCE = 1e-4
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama2_mha": {"num_key_value_heads": 4},
    "llama3_gqa_rope": {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE},
    "tied": {"tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "wide_heads": {"head_dim": 24},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and what transformers makes of three prompts."""

    decoder: Decoder | NativeDecoder
    prompts: tuple[tuple[int, ...], ...]
    expected: tuple[Tensor, ...]
    """[prompt, vocab] each."""


@pytest.fixture(scope="module", params=["torch", "native"])
def library(request: pytest.FixtureRequest) -> NativeLibrary | None:
    """Of the decoder that is tested; None: on PyTorch's operators."""
    return request.getfixturevalue("native_library") if request.param == "native" else None


@pytest.fixture(scope="module")
def make_case(library: NativeLibrary | None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def make(variant: str) -> Case:
        if variant not in made:
            model = make_llama_model(seed=1, **VARIANTS[variant])
            directory = tmp_path_factory.mktemp(variant)
            model.save_pretrained(directory)
            generator = torch.Generator().manual_seed(5)
            prompts = tuple(
                tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()) for length in (101, 17, 64)
            )
            with torch.inference_mode():
                expected = tuple(model(torch.tensor([prompt])).logits[0] for prompt in prompts)
            decoder = load_model(str(directory), "float32", lambda _: None, library=library).decoder
            made[variant] = Case(decoder, prompts, expected)
        return made[variant]

    return make


def feed(case: Case, order: Sequence[Sequence[tuple[int, int]]], block_size: int) -> list[Tensor]:
    """Logits of every prompt, computed in steps of (prompt, number of tokens)."""
    num_blocks = sum(-(-len(prompt) // block_size) for prompt in case.prompts) + 3
    decoding = PagedDecoding(case.decoder, num_blocks, block_size)
    parts: list[list[Tensor]] = [[] for _ in case.prompts]
    done = [0] * len(case.prompts)
    for step in order:
        tokens = {index: case.prompts[index][done[index] : done[index] + count] for index, count in step}
        for index, logits in decoding.logits(tokens).items():
            parts[index].append(logits)
            done[index] += len(logits)
    assert done == [len(prompt) for prompt in case.prompts]
    return [torch.cat(part) for part in parts]


def assert_as_expected(case: Case, logits: Sequence[Tensor]) -> None:
    for actual, expected in zip(logits, case.expected, strict=True):
        assert actual.dtype == torch.float32
        assert expected.std() > 0.5, "flat logits prove nothing"
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_whole_prefill_of_several_prompts_is_transformers(make_case: Callable[[str], Case], variant: str) -> None:
    case = make_case(variant)
    everything = [(index, len(prompt)) for index, prompt in enumerate(case.prompts)]
    assert_as_expected(case, feed(case, [everything], block_size=16))


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_token_by_token_in_one_batch_is_transformers(make_case: Callable[[str], Case], variant: str) -> None:
    case = make_case(variant)
    order = [[(index, len(prompt) - 12) for index, prompt in enumerate(case.prompts)]]
    order += [[(2, 1), (0, 1), (1, 1)]] * 12
    assert_as_expected(case, feed(case, order, block_size=4))


@pytest.mark.parametrize("variant", VARIANTS)
@given(data=st.data())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_any_chunks_in_any_company_are_transformers(
    make_case: Callable[[str], Case], variant: str, data: st.DataObject
) -> None:
    case = make_case(variant)
    left = {index: len(prompt) for index, prompt in enumerate(case.prompts)}
    order = []
    while left:
        chosen = data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True))
        step = [(index, data.draw(st.integers(1, left[index]))) for index in chosen]
        for index, count in step:
            left[index] -= count
            if not left[index]:
                del left[index]
        order.append(step)
    assert_as_expected(case, feed(case, order, data.draw(st.sampled_from([1, 5, 16]))))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(
    make_case: Callable[[str], Case], library: NativeLibrary | None, tmp_path: Path, dtype: str
) -> None:
    case = make_case("llama3_gqa_rope")
    make_llama_model(seed=1, **VARIANTS["llama3_gqa_rope"]).save_pretrained(tmp_path)
    half = dataclasses.replace(case, decoder=load_model(str(tmp_path), dtype, lambda _: None, library=library).decoder)
    logits = feed(half, [[(index, len(prompt)) for index, prompt in enumerate(case.prompts)]], block_size=16)
    for actual, expected in zip(logits, case.expected, strict=True):
        error = (actual - expected).abs().mean() / expected.std()
        assert error < (0.03 if dtype == "bfloat16" else 0.005)
