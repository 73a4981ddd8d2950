"""The decoders against transformers, on tiny random models of every family beside Llama, in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from tests.paged_decoding import PagedDecoding
from tests.tiny_families import VARIANTS, make_variant
from tests.tiny_gguf import write_gguf
from tests.tiny_model import VOCAB_SIZE

TOLERANCE = 1e-4
PROMPTS = tuple(
    tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(length)).tolist())
    for length in (101, 17, 64)
)
"""The longest outgrows every window."""
CHUNKS = ([{0: 40, 1: 5}, {2: 64}, {0: 1, 1: 1}, {0: 37, 1: 1}] + [{1: 1, 0: 1}] * 10 + [{0: 13}], 4)
WHOLE = ([{0: 101, 1: 17, 2: 64}], 16)
Steps = tuple[list[dict[int, int]], int]
"""Steps of tokens by prompt, and the size of a block."""


@pytest.fixture(scope="module", params=["torch", "native"])
def library(request: pytest.FixtureRequest) -> NativeLibrary | None:
    """Of the decoder that is tested; None: on PyTorch's operators."""
    return request.getfixturevalue("native_library") if request.param == "native" else None


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, tuple[Tensor, ...]]]:
    """Of a variant: where it lies, and what transformers makes of the prompts."""
    made: dict[str, tuple[Path, tuple[Tensor, ...]]] = {}

    def make(variant: str) -> tuple[Path, tuple[Tensor, ...]]:
        if variant not in made:
            model = make_variant(variant)
            path = tmp_path_factory.mktemp(variant)
            model.save_pretrained(path)
            with torch.inference_mode():
                made[variant] = path, tuple(model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS)
        return made[variant]

    return make


def feed(decoder: Decoder | NativeDecoder, steps: Steps) -> list[Tensor]:
    """Logits of every prompt."""
    order, block_size = steps
    num_blocks = sum(-(-len(prompt) // block_size) for prompt in PROMPTS) + 3
    decoding = PagedDecoding(decoder, num_blocks, block_size)
    parts: list[list[Tensor]] = [[] for _ in PROMPTS]
    done = [0] * len(PROMPTS)
    for step in order:
        tokens = {index: PROMPTS[index][done[index] : done[index] + count] for index, count in step.items()}
        for index, logits in decoding.logits(tokens).items():
            parts[index].append(logits)
            done[index] += len(logits)
    assert done == [len(prompt) for prompt in PROMPTS]
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize("steps", [WHOLE, CHUNKS], ids=["whole", "chunks_and_decode"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_transformers(
    directory_of: Callable[[str], tuple[Path, tuple[Tensor, ...]]],
    library: NativeLibrary | None,
    variant: str,
    steps: Steps,
) -> None:
    path, expected = directory_of(variant)
    decoder = load_model(str(path), "float32", lambda _: None, library=library).decoder
    for actual, wanted in zip(feed(decoder, steps), expected, strict=True):
        assert wanted.std() > 0.5, "flat logits prove nothing"
        torch.testing.assert_close(actual, wanted, rtol=0, atol=TOLERANCE)


GGUF_VARIANTS = [name for name in VARIANTS if name not in ("qwen2_window", "qwen3_window_bias", "gemma3_scalar")]
"""All whose options such files can state."""


@pytest.mark.parametrize("variant", GGUF_VARIANTS)
def test_a_gguf_file_gives_the_same_logits(
    directory_of: Callable[[str], tuple[Path, tuple[Tensor, ...]]],
    library: NativeLibrary | None,
    tmp_path: Path,
    variant: str,
) -> None:
    path, expected = directory_of(variant)
    write_gguf(tmp_path / "model.gguf", make_variant(variant), GGMLQuantizationType.F32)
    decoders = [
        load_model(str(source), "float32", lambda _: None, library=library).decoder
        for source in (path, tmp_path / "model.gguf")
    ]
    for wanted, own, other in zip(expected, *(feed(decoder, CHUNKS) for decoder in decoders), strict=True):
        torch.testing.assert_close(other, wanted, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(other, own, rtol=0, atol=1e-5)
