"""Weights that are quantised while they are loaded, and tied ones, streamed: whole with their scales, counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from engine.weights import load_model
from kernels.native_library import NativeLibrary
from tests.paged_decoding import PagedDecoding
from tests.streamed_model import StreamedModel, Streaming
from tests.tiny_model import VOCAB_SIZE, make_llama_model

NUM_LAYERS = 4
TOKENS = torch.randint(0, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(5)).tolist()
STEPS = ({0: TOKENS[:20], 1: TOKENS[20:23]}, {1: TOKENS[23:30], 0: TOKENS[30:31]}, {0: TOKENS[31:32], 1: TOKENS[32:33]})


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("num_parts", [None, 2])
def test_scales_travel_with_their_codes(
    tmp_path: Path, native_library: NativeLibrary, quantize: Literal["int8", "int4"], num_parts: int | None
) -> None:
    """Slots are poison until a copy is done, so a scale that stayed behind would show in every bit."""
    make_llama_model(num_hidden_layers=NUM_LAYERS).save_pretrained(tmp_path)
    whole = load_model(str(tmp_path), "float32", lambda _: None, library=native_library, quantize=quantize)
    plain = load_model(str(tmp_path), "float32", lambda _: None, library=native_library)
    assert whole.weights_bytes < 0.5 * plain.weights_bytes
    reference = PagedDecoding(whole.decoder, num_blocks=24)
    model = StreamedModel(
        tmp_path, "float32", native_library, Streaming(NUM_LAYERS, num_slots=1, num_parts=num_parts), quantize=quantize
    )
    for step in STEPS:
        expected = reference.step(step)
        for sequence, hidden in model.step(step).items():
            assert torch.equal(hidden, expected[sequence])
            assert torch.equal(model.decoder.logits(hidden), whole.decoder.logits(expected[sequence]))
        assert model.last_transfers.num_bytes == sum(model.numbers.unit_bytes)
    if num_parts is None:
        assert model.last_transfers.num_bytes == sum(model.layer_bytes) < whole.weights_bytes


def test_a_tied_head_is_counted_once_and_stays(tmp_path: Path, native_library: NativeLibrary) -> None:
    made = {}
    for is_tied in (True, False):
        path = tmp_path / str(is_tied)
        make_llama_model(num_hidden_layers=NUM_LAYERS, tie_word_embeddings=is_tied).save_pretrained(path)
        made[is_tied] = StreamedModel(path, "float32", native_library, Streaming(NUM_LAYERS, num_slots=1))
    head_bytes = made[False].decoder.weights.head.data.nbytes
    assert head_bytes >= VOCAB_SIZE * 64 * 4
    ledgers = {is_tied: model.arena.ledger()["fixed weights"] for is_tied, model in made.items()}
    assert ledgers[False] - ledgers[True] == head_bytes
    tied = made[True]
    assert tied.decoder.weights.head.data.data_ptr() == tied.decoder.weights.embedding.data.data_ptr()
    assert tied.arena.region.data_ptr() <= tied.decoder.weights.head.data.data_ptr(), "on the device"
    assert tied.weights.host_bytes == made[False].weights.host_bytes, "streamed are layers, not the head"
    whole = load_model(str(tmp_path / "True"), "float32", lambda _: None, library=native_library)
    expected, got = PagedDecoding(whole.decoder, num_blocks=24).step(STEPS[0]), tied.step(STEPS[0])
    assert torch.equal(tied.decoder.logits(got[0]), whole.decoder.logits(expected[0]))
