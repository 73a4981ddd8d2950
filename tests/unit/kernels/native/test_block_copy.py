"""Pieces of blocks between two pools, natively and call by call, against rows copied one byte range at a time."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.block_copy import BlockCopier, copy_blocks
from kernels.native.block_copy import NativeBlockCopy
from kernels.native_library import NativeLibrary

WAIT_S = 30.0


@dataclasses.dataclass(frozen=True)
class Pieces:
    """`BlockPieces`, unchecked."""

    source: Tensor
    target: Tensor
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    first_byte: int
    piece_bytes: int

    @property
    def num_bytes(self) -> int:
        return len(self.source_ids) * self.piece_bytes


@pytest.fixture(params=["native", "loop"])
def copier(request: pytest.FixtureRequest, library: NativeLibrary) -> BlockCopier:
    return NativeBlockCopy(library) if request.param == "native" else copy_blocks


@st.composite
def cut_pieces(draw: st.DrawFn) -> tuple[Pieces, int, int]:
    """Pools in buffers that end with their last block, with gaps between the blocks of either; and two cuts."""
    block_bytes = draw(st.integers(1, 300))
    num_blocks = draw(st.integers(1, 8))
    first_byte = draw(st.integers(0, block_bytes - 1))
    piece_bytes = draw(st.integers(1, block_bytes - first_byte))
    pools = [_pool(num_blocks, block_bytes, draw(st.sampled_from([0, 1, 64])), seed) for seed in (1, 2)]
    ids = st.permutations(range(num_blocks))
    num_pieces = draw(st.integers(0, num_blocks))
    source_ids, target_ids = (tuple(draw(ids)[:num_pieces]) for _ in range(2))
    pieces = Pieces(*pools, source_ids, target_ids, first_byte, piece_bytes)
    start, end = sorted(draw(st.tuples(*[st.integers(0, pieces.num_bytes)] * 2)))
    return pieces, start, end


def _pool(num_blocks: int, block_bytes: int, apart: int, seed: int) -> Tensor:
    stride = block_bytes + apart
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.randint(0, 256, (num_blocks * stride - apart,), dtype=torch.uint8, generator=generator)
    return buffer.as_strided((num_blocks, block_bytes), (stride, 1))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=cut_pieces())
def test_bytes_of_the_cut_arrive_and_no_others(copier: BlockCopier, cut: tuple[Pieces, int, int]) -> None:
    pieces, start, end = cut
    expected = pieces.target.clone()
    for position in range(start, end):  # byte by byte, from the definition
        index, offset = divmod(position, pieces.piece_bytes)
        column = pieces.first_byte + offset
        expected[pieces.target_ids[index], column] = pieces.source[pieces.source_ids[index], column]
    copier(pieces, start, end)
    assert torch.equal(pieces.target, expected)


def test_cuts_beside_the_pieces_are_refused(library: NativeLibrary) -> None:
    pieces = Pieces(_pool(2, 10, 0, 1), _pool(2, 10, 0, 2), (0, 1), (1, 0), 2, 5)
    for start, end in ((-1, 3), (3, 2), (0, 11)):
        with pytest.raises(ValueError, match=f"bytes {start} to {end} of pieces that have 10"):
            NativeBlockCopy(library)(pieces, start, end)


def test_copies_of_many_threads_run_beside_each_other(library: NativeLibrary) -> None:
    copy = NativeBlockCopy(library)
    source, target = _pool(64, 5000, 8, 1), _pool(64, 5000, 0, 2)
    before = target.clone()
    order = tuple(torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist())
    quarters = [Pieces(source, target, order[i::4], order[::-1][i::4], 100, 4000) for i in range(4)]

    def copy_all(pieces: Pieces) -> None:
        for start in range(0, pieces.num_bytes, 997):
            copy(pieces, start, min(start + 997, pieces.num_bytes))

    threads = [threading.Thread(target=copy_all, args=(pieces,)) for pieces in quarters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    before[list(order[::-1]), 100:4100] = source[list(order), 100:4100]
    assert torch.equal(target, before)


def test_copies_take_nothing_of_the_context_so_that_they_run_beside_its_operations(library_path: Path) -> None:
    library = NativeLibrary(library_path, 1)
    copy = NativeBlockCopy(library)
    library.close()
    pieces = Pieces(_pool(2, 10, 0, 1), _pool(2, 10, 0, 2), (0, 1), (1, 0), 0, 10)
    copy(pieces, 0, 20)
    assert torch.equal(pieces.target, pieces.source[[1, 0]])
