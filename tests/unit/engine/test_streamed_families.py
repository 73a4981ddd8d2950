"""Streaming changes no bit in any family of decoders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.weights import load_model
from kernels.native_library import NativeLibrary
from tests.paged_decoding import PagedDecoding
from tests.streamed_model import StreamedModel, Streaming
from tests.tiny_families import VARIANTS, make_variant
from tests.tiny_model import VOCAB_SIZE

TOKENS = torch.randint(0, VOCAB_SIZE, (80,), generator=torch.Generator().manual_seed(3)).tolist()
STEPS = (
    {0: TOKENS[:40], 1: TOKENS[40:47]},
    {1: TOKENS[47:60], 0: TOKENS[60:61]},
    {0: TOKENS[61:62], 1: TOKENS[62:63]},
)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_every_family(request: pytest.FixtureRequest, tmp_path: Path, variant: str, kernels: str) -> None:
    """All numbers of layers from 0 to all, changed between steps, whole layers and their last parts."""
    library: NativeLibrary | None = request.getfixturevalue("native_library") if kernels == "native" else None
    make_variant(variant).save_pretrained(tmp_path)
    decoder = load_model(str(tmp_path), "float32", lambda _: None, library=library).decoder
    reference = PagedDecoding(decoder, num_blocks=24)
    expected = [reference.step(step) for step in STEPS]
    num_layers = decoder.config.num_layers
    for num_parts in (None, 2):
        model = StreamedModel(tmp_path, "float32", library, Streaming(num_layers, num_slots=1, num_parts=num_parts))
        for k in range(num_layers, -1, -1):
            model.start(24)
            for step, result in zip(STEPS, expected, strict=True):
                for sequence, hidden in model.step(step).items():
                    assert torch.equal(hidden, result[sequence])
                    assert torch.equal(model.decoder.logits(hidden), decoder.logits(result[sequence]))
            model.weights.set_streamed(max(0, k - 1))
            model.link.advance_to_idle()
        assert model.weights.num_streamed <= 1
