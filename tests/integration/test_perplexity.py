"""Perplexity of the default model against transformers, in float32 on the same dequantised weights.

Products with weights as stored round their activations to 8 bits. The difference of two perplexities on some 2,500
tokens is known to about 0.1 % (one standard error): a mean over tokens of something that spreads 0.06.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from engine.gguf_header import GGUFTensor
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from server.tokenizer import Tokenizer
from tests.paged_decoding import PagedDecoding
from tests.requantised_gguf import requantise
from tests.tiny_gguf import Array, gguf_name, split_pairs

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

TEXT = Path(__file__).resolve().parents[1] / "data" / "openings.txt"
WINDOW_TOKENS = 640
BOUND = 0.005
Kind = GGMLQuantizationType
LogLikelihood = Callable[[list[int]], Tensor]
"""Of each token but the first of a window, given those before it."""


def perplexity(tokens: list[int], log_likelihood: LogLikelihood) -> float:
    """Over windows that do not see each other."""
    windows = [tokens[start : start + WINDOW_TOKENS] for start in range(0, len(tokens), WINDOW_TOKENS)]
    parts = [log_likelihood(window) for window in windows if len(window) > 1]
    return math.exp(-float(torch.cat(parts).double().mean()))


def of_targets(logits: Tensor, window: list[int]) -> Tensor:
    """[T, vocab] for a window of T + 1 tokens → [T]."""
    return torch.log_softmax(logits, dim=1).gather(1, torch.tensor(window[1:])[:, None])[:, 0]


@pytest.fixture(scope="module")
def tokens(real_model_path: Path) -> list[int]:
    encoded = Tokenizer.load(str(real_model_path)).encode(
        TEXT.read_text(encoding="utf-8"), add_special_tokens=False, parse_special=False
    )
    assert len(encoded) > 2400
    return encoded


@pytest.fixture(scope="module")
def their_model(real_transformers_model: Any) -> Iterator[Any]:
    """A copy whose weights may be changed."""
    yield copy.deepcopy(real_transformers_model)


def theirs(model: Any) -> LogLikelihood:
    def log_likelihood(window: list[int]) -> Tensor:
        with torch.inference_mode():
            return of_targets(model(torch.tensor([window[:-1]])).logits[0], window)

    return log_likelihood


def ours(path: Path, library: NativeLibrary, formats: set[str]) -> LogLikelihood:
    model = load_model(str(path), "auto", lambda _: None, library=library)
    assert set(model.bytes_by_format) == formats

    def log_likelihood(window: list[int]) -> Tensor:
        decoding = PagedDecoding(model.decoder, num_blocks=WINDOW_TOKENS // 16)
        return of_targets(decoding.logits({0: window[:-1]})[0], window)

    return log_likelihood


def assert_near(actual: float, expected: float) -> None:
    assert 10 < expected < 60, "not the text or not the model that this was written for"
    assert abs(actual / expected - 1) < BOUND, f"perplexity {actual:.3f}, transformers {expected:.3f}"


def test_the_shipped_file(
    real_model_path: Path, native_library: NativeLibrary, real_transformers_model: Any, tokens: list[int]
) -> None:
    actual = perplexity(tokens, ours(real_model_path, native_library, {"Q4_1", "Q8_0"}))
    assert_near(actual, perplexity(tokens, theirs(real_transformers_model)))


def every_type(tensor: GGUFTensor) -> Kind:
    """Another type in every layer; those with blocks of 256 where rows are whole ones."""
    if not tensor.name.startswith("blk."):
        return Kind.Q8_0
    layer = int(tensor.name.split(".")[1])
    if tensor.shape[1] % 256 == 0:
        return (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)[layer % 3]
    shift = 0 if "attn_v" in tensor.name else 1
    return (Kind.Q8_0, Kind.Q4_0, Kind.Q5_0, Kind.Q5_1)[(layer + shift) % 4]


def only(kind: Kind) -> Callable[[GGUFTensor], Kind]:
    """One type where rows are whole blocks of it, Q8_0 elsewhere."""
    is_large = kind in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
    return lambda tensor: Kind.Q8_0 if is_large and tensor.shape[1] % 256 else kind


@pytest.mark.parametrize(
    "kind_of",
    [
        pytest.param(every_type, id="every_type"),
        *(
            pytest.param(only(kind), id=kind.name, marks=pytest.mark.soak)
            for kind in (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
        ),
    ],
)
def test_other_types(
    tmp_path: Path,
    real_model_path: Path,
    native_library: NativeLibrary,
    their_model: Any,
    tokens: list[int],
    kind_of: Callable[[GGUFTensor], Kind],
) -> None:
    kinds: set[str] = set()

    def chosen(tensor: GGUFTensor) -> Kind:
        kinds.add(kind_of(tensor).name)
        return kind_of(tensor)

    numbers = requantise(real_model_path, tmp_path / "model.gguf", chosen)
    their_model.load_state_dict(as_state(their_model, numbers))
    actual = perplexity(tokens, ours(tmp_path / "model.gguf", native_library, kinds))
    assert_near(actual, perplexity(tokens, theirs(their_model)))


def as_state(model: Any, numbers: dict[str, Array]) -> dict[str, Tensor]:
    """The numbers of a GGUF file in transformers' names and order of rows."""
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    state = {}
    for name in model.state_dict():
        values = numbers["token_embd.weight" if name == "lm_head.weight" else gguf_name(name)]
        count = heads.get(name.split(".")[-2])
        state[name] = torch.from_numpy(np.array(values if count is None else split_pairs(values, count)))
    return state
