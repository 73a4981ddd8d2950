"""A step whose keys and values arrive by layers, while it computes, gives the bits of one that had them before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.layers.layer_gate import OPEN_GATE
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from tests.paged_decoding import PagedDecoding
from tests.streamed_model import StreamedModel, Streaming
from tests.tiny_model import VOCAB_SIZE, make_llama_model

NUM_LAYERS = 6
NUM_BLOCKS = 12
TOKENS = torch.randint(0, VOCAB_SIZE, (80,), generator=torch.Generator().manual_seed(5)).tolist()
PREFIX, OTHER = TOKENS[:40], TOKENS[40:60]
STEP = {0: TOKENS[60:70], 1: TOKENS[70:71]}
"""Goes on after a prefix that arrives late, beside a decode whose context is there."""


class LateBlocks:
    """A gate behind which blocks are poisoned until their layers are waited for; then these arrive, and no others."""

    def __init__(self, cache: Tensor, blocks: Sequence[int], first_layers: Sequence[int]) -> None:
        self.calls: list[int] = []
        self._cache = cache
        self._blocks = list(blocks)
        self._first_layers = tuple(first_layers)
        self._arriving = cache[self._blocks].clone()
        cache[self._blocks] = float("nan")

    @property
    def gated_layers(self) -> tuple[int, ...]:
        return self._first_layers

    def pass_layer(self, layer: int) -> None:
        part = self._first_layers.index(layer)
        end = (*self._first_layers, NUM_LAYERS)[part + 1]
        self._cache[self._blocks, layer:end] = self._arriving[:, layer:end]
        self.calls.append(layer)


@pytest.fixture(scope="module", params=["torch", "native"])
def library(request: pytest.FixtureRequest) -> NativeLibrary | None:
    return None if request.param == "torch" else request.getfixturevalue("native_library")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gated")
    make_llama_model(num_hidden_layers=NUM_LAYERS).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def decoder(path: Path, library: NativeLibrary | None) -> Decoder | NativeDecoder:
    return load_model(str(path), "float32", lambda _: None, library=library).decoder


def warm(decoding: PagedDecoding) -> PagedDecoding:
    decoding.step({0: PREFIX, 1: OTHER})
    return decoding


@pytest.mark.parametrize("first_layers", [(0,), (0, 3), (0, 1, 2, 3, 4, 5), (0, 4, 5), (2,)])
def test_the_bits_are_those_of_a_step_that_waited_before(
    decoder: Decoder | NativeDecoder, first_layers: tuple[int, ...]
) -> None:
    expected = warm(PagedDecoding(decoder, NUM_BLOCKS)).step(STEP)
    late = warm(PagedDecoding(decoder, NUM_BLOCKS))
    blocks = late.blocks(0)[: len(PREFIX) // 16]
    gate = LateBlocks(late.cache, blocks, first_layers)
    if first_layers[0]:
        late.cache[list(blocks), : first_layers[0]] = gate._arriving[:, : first_layers[0]]
    actual = late.step(STEP, gate)
    assert gate.calls == list(first_layers)
    assert all(torch.equal(actual[sequence], expected[sequence]) for sequence in STEP)


def test_a_gate_that_is_not_honoured_would_be_seen(decoder: Decoder | NativeDecoder) -> None:
    late = warm(PagedDecoding(decoder, NUM_BLOCKS))
    gate = LateBlocks(late.cache, late.blocks(0)[:2], (0, 3))
    hidden = late.step(STEP, OPEN_GATE)
    assert not gate.calls
    assert not hidden[0].isfinite().all()
    assert hidden[1].isfinite().all(), "another sequence was read"


@pytest.mark.parametrize("num_streamed", [1, 3, 6])
@pytest.mark.parametrize("first_layers", [(0, 2, 4), (0, 3)])
def test_streamed_weights_beside_late_blocks(
    decoder: Decoder | NativeDecoder,
    path: Path,
    library: NativeLibrary | None,
    num_streamed: int,
    first_layers: tuple[int, ...],
) -> None:
    expected = warm(PagedDecoding(decoder, NUM_BLOCKS)).step(STEP)
    model = StreamedModel(path, "float32", library, Streaming(num_streamed, num_kv_blocks=NUM_BLOCKS))
    model.step({0: PREFIX, 1: OTHER})
    gate = LateBlocks(model.cache.region, model.decoding.blocks(0)[:2], first_layers)
    actual = model.step(STEP, gate=gate)
    assert gate.calls == list(first_layers)
    assert all(torch.equal(actual[sequence], expected[sequence]) for sequence in STEP)
