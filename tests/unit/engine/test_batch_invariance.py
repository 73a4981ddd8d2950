"""With `batch_invariant`, a token's logits have the same bits in every company, chunk and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.layers.row_tiles import FixedTiles, widest_tiles
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.weights import load_model
from kernels.native_library import load_native_library
from tests.paged_decoding import PagedDecoding
from tests.tiny_model import VOCAB_SIZE, make_llama_model

LENGTHS = (37, 3, 20)
VARIANTS: dict[str, dict[str, Any]] = {
    "even": {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 384, "num_key_value_heads": 2},
    "odd_sizes": {"head_dim": 10, "intermediate_size": 77, "hidden_size": 60, "num_key_value_heads": 1},
}


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist() for length in LENGTHS]


CASES = [(k, v, d) for k in ("torch", "native") for v in VARIANTS for d in ("float32", "bfloat16")]
AnyDecoder = Decoder | NativeDecoder


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AnyDecoder, list[Tensor]]:
    """A decoder and the logits of each prompt, fed alone and token by token. A native one needs no option for it."""
    kernels, variant, dtype = request.param
    library = request.getfixturevalue("native_library") if kernels == "native" else None
    directory: Path = tmp_path_factory.mktemp("invariant")
    make_llama_model(seed=2, **VARIANTS[variant]).save_pretrained(directory)
    decoder = load_model(
        str(directory), dtype, lambda _: None, batch_invariant=library is None, library=library
    ).decoder
    alone = []
    for prompt in prompts():
        decoding = PagedDecoding(decoder, num_blocks=20, block_size=4)
        alone.append(torch.cat([decoding.logits({0: [token]})[0] for token in prompt]))
    return decoder, alone


@given(data=st.data())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_bits_do_not_depend_on_batch_or_chunk(subject: tuple[AnyDecoder, list[Tensor]], data: st.DataObject) -> None:
    decoder, alone = subject
    decoding = PagedDecoding(decoder, num_blocks=40, block_size=4, seed=data.draw(st.integers(0, 1000)))
    texts = prompts()
    done = [0] * len(texts)
    while any(start < len(text) for start, text in zip(done, texts, strict=True)):
        left = [index for index, text in enumerate(texts) if done[index] < len(text)]
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        counts = {index: data.draw(st.integers(1, len(texts[index]) - done[index])) for index in chosen}
        step = {index: texts[index][done[index] : done[index] + count] for index, count in counts.items()}
        for index, logits in decoding.logits(step).items():
            expected = alone[index][done[index] : done[index] + len(logits)]
            assert torch.equal(logits, expected)
            done[index] += len(logits)


def test_invariant_logits_are_near_the_ordinary_ones(tmp_path: Path) -> None:
    make_llama_model(seed=2).save_pretrained(tmp_path)
    both = []
    for batch_invariant in (False, True):
        decoder = load_model(str(tmp_path), "float32", lambda _: None, batch_invariant=batch_invariant).decoder
        decoding = PagedDecoding(decoder, num_blocks=20, block_size=4)
        both.append(torch.cat(list(decoding.logits(dict(enumerate(prompts()))).values())))
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_bits_do_not_depend_on_the_number_of_threads(tmp_path: Path, dtype: str) -> None:
    make_llama_model(seed=2).save_pretrained(tmp_path)
    results = []
    for num_threads in (1, 2, 3):
        library = load_native_library(num_threads)
        decoder = load_model(str(tmp_path), dtype, lambda _: None, library=library).decoder
        results.append(torch.cat(list(PagedDecoding(decoder, 20, 4).logits(dict(enumerate(prompts()))).values())))
        library.close()
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_tiles_shrink_until_no_row_is_treated_by_its_place() -> None:
    def by_place(x: Tensor) -> tuple[Tensor]:
        place = torch.arange(len(x))[:, None] // 4  # the fifth row of a tile is computed differently
        return (x + place,)

    assert widest_tiles([(by_place, (torch.ones(1, 3),))]).size == 4
    assert widest_tiles([(lambda x: (x * 2,), (torch.ones(1, 3),))]).size == 32


def test_tiles_give_back_the_rows_they_were_given() -> None:
    calls: list[int] = []

    def double(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(x))
        return x * 2, y.sum(dim=(1, 2))

    x, y = torch.arange(10).view(5, 2), torch.arange(30).view(5, 3, 2)
    doubled, sums = FixedTiles(2)(double, x, y)
    assert calls == [2, 2, 2]
    assert torch.equal(doubled, x * 2) and torch.equal(sums, y.sum(dim=(1, 2)))
    with pytest.raises(ValueError, match="0 rows"):
        FixedTiles(0)
