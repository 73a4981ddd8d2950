"""Blocks over links: what a transfer of them refuses to be, and that the right bytes arrive, whatever the slices."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offload.block_transfer import BlockTransfer
from offload.cuda_link import CudaLink
from offload.host_link import HostLink
from offload.link import LinkError
from offload.link_book import MIN_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass
from tests.fake_cuda import FakeCuda
from tests.fake_link import POISON, FakeLink

H2D, D2H = Direction
CONFIG = LinkConfig(1e9, 1e9)
SPEED = MIN_SLICE_BYTES * 100.0
WAIT_S = 30.0


def pool(num_blocks: int, block_bytes: int, seed: int, apart: int = 0) -> Tensor:
    """Random bytes other than poison; `apart` bytes lie between two blocks."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_blocks, block_bytes + apart)
    return torch.randint(0, POISON, shape, dtype=torch.uint8, generator=generator)[:, :block_bytes]


def expected(transfer: BlockTransfer, before: Tensor) -> Tensor:
    """The target afterwards, byte by byte from the definition."""
    after = before.clone()
    part = slice(transfer.first_byte, transfer.first_byte + transfer.piece_bytes)
    for source_id, target_id in zip(transfer.source_ids, transfer.target_ids, strict=True):
        after[target_id, part] = transfer.source[source_id, part]
    return after


def transfer_of(**options: Any) -> BlockTransfer:
    fields: dict[str, Any] = {
        "direction": H2D,
        "transfer_class": TransferClass.KV_LOAD,
        "source": pool(6, 1000, seed=1),
        "source_ids": (5, 0, 2),
        "target": pool(4, 1000, seed=2),
        "target_ids": (1, 3, 0),
        "first_byte": 0,
        "piece_bytes": 1000,
        "deadline_s": math.inf,
    }
    return BlockTransfer(**fields | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_ids": (5, 6, 0)}, "block 6 is not of the source, which has blocks 0 to 5"),
        ({"target_ids": (1, -1, 0)}, "block -1 is not of the target, which has blocks 0 to 3"),
        ({"target_ids": (1, 3)}, "3 blocks into the places of 2"),
        ({"target_ids": (1, 3, 1)}, "two blocks of a transfer go to one place"),
        ({"target": pool(4, 999, seed=2)}, "blocks of 1,000 bytes into blocks of 999 bytes"),
        ({"source": pool(6, 1000, seed=1).int()}, r"source .* is torch.int32 \(6, 1000\)"),
        ({"target": pool(1000, 4, seed=2).T}, "side by side"),
        ({"target": pool(4, 1000, seed=2).view(4, 10, 100)}, r"\(4, 10, 100\)"),
        ({"first_byte": 1}, "1,000 bytes from byte 1 on are no part of a block of 1,000 bytes"),
        ({"piece_bytes": 0}, "0 bytes from byte 0"),
        ({"first_byte": -1, "piece_bytes": 5}, "from byte -1"),
        ({"deadline_s": math.nan}, "use infinity"),
    ],
)
def test_transfer_of_blocks_says_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transfer_of(**options)


@st.composite
def block_transfers(draw: st.DrawFn) -> BlockTransfer:
    """Pools with gaps between the blocks; pieces of a byte up to more than two slices of a link."""
    block_bytes = draw(st.sampled_from([1, 7, 4096, 70_001, MIN_SLICE_BYTES, 1_200_000]))
    piece_bytes = draw(st.integers(1, block_bytes))
    num_blocks = draw(st.integers(0, 9 if block_bytes < 100_000 else 3))
    ids = st.permutations(range(12 if block_bytes < 100_000 else 4))
    first_byte = draw(st.integers(0, block_bytes - piece_bytes))
    apart = draw(st.sampled_from([0, 0, 64]))
    source = pool(12, block_bytes, seed=3, apart=apart)
    return transfer_of(
        direction=draw(st.sampled_from(Direction)),
        source=source,
        source_ids=tuple(draw(ids)[:num_blocks]),
        target=pool(12, block_bytes, seed=4, apart=apart),
        target_ids=tuple(draw(ids)[:num_blocks]),
        first_byte=first_byte,
        piece_bytes=piece_bytes,
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(block_transfers(), st.lists(st.integers(0, 10**7), max_size=6))
def test_every_cut_moves_its_own_bytes_and_no_other(transfer: BlockTransfer, cuts: list[int]) -> None:
    after = expected(transfer, transfer.target)
    bounds = sorted({0, transfer.num_bytes, *(min(cut, transfer.num_bytes) for cut in cuts)})
    num_bytes = 0
    for start, end in itertools.pairwise(bounds):
        pieces = transfer.pieces(start, end)
        assert all(target.shape == source.shape and target.is_contiguous() for target, source in pieces)
        assert sum(target.numel() for target, _ in pieces) == end - start
        for target, source in pieces:
            target.copy_(source)
            num_bytes += source.numel()
    assert num_bytes == transfer.num_bytes == len(transfer.source_ids) * transfer.piece_bytes
    assert torch.equal(transfer.target, after)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(block_transfers(), min_size=1, max_size=3))
def test_blocks_arrive_over_the_link_of_a_cpu(transfers: list[BlockTransfer]) -> None:
    after = [expected(transfer, transfer.target) for transfer in transfers]
    with contextlib.closing(HostLink(CONFIG)) as link:
        handles = [link.submit(transfer) for transfer in transfers]
        for handle in handles:
            handle.wait(WAIT_S)
        link.drain()
        link.check()
        assert sum(
            link.snapshot().of(direction).totals[TransferClass.KV_LOAD].num_bytes for direction in Direction
        ) == sum(transfer.num_bytes for transfer in transfers)
    assert all(torch.equal(transfer.target, bytes_) for transfer, bytes_ in zip(transfers, after, strict=True))


def test_pieces_are_poison_until_they_arrive_and_their_neighbours_never() -> None:
    link = FakeLink(SPEED)
    source, target = pool(4, 2 * MIN_SLICE_BYTES, seed=5), pool(4, 2 * MIN_SLICE_BYTES, seed=6)
    before = target.clone()
    part = {"first_byte": 100, "piece_bytes": MIN_SLICE_BYTES}
    transfer = transfer_of(source=source, target=target, source_ids=(3, 0), target_ids=(0, 2), **part)
    link.submit(transfer)
    written = slice(100, 100 + MIN_SLICE_BYTES)
    assert (target[[0, 2], written] == POISON).all()
    link.advance(0.0101)
    assert torch.equal(target[0, written], source[3, written]) and (target[2, written] == POISON).all()
    link.advance_to_idle()
    assert torch.equal(target, expected(transfer, before))


def test_source_is_poison_once_its_lease_is_over() -> None:
    link = FakeLink(SPEED)
    transfer = transfer_of(first_byte=10, piece_bytes=20)
    before = transfer.source.clone()
    handle = link.submit(transfer)
    link.advance_to_idle()
    assert handle.is_done and torch.equal(transfer.source, before), "another may read the same source"
    link.poison_source(handle)
    for block in range(6):
        is_read = block in transfer.source_ids
        assert bool((transfer.source[block, 10:30] == POISON).all()) == is_read
        assert torch.equal(transfer.source[block, 30:], before[block, 30:])


@pytest.mark.parametrize("pinned", [True, False])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(transfers=st.lists(block_transfers(), min_size=1, max_size=3))
def test_blocks_arrive_over_a_stream_pinned_or_not(pinned: bool, transfers: list[BlockTransfer]) -> None:
    cuda = FakeCuda()
    link = CudaLink(
        CONFIG,
        torch.device("cpu"),
        cuda=cuda,
        copy=cuda.copy,
        is_pinned=lambda _: pinned,
        allocate=lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8),
    )
    after = [expected(transfer, transfer.target) for transfer in transfers]
    with contextlib.closing(link):
        for handle in [link.submit(transfer) for transfer in transfers]:
            handle.wait(WAIT_S)
        link.check()
    assert all(torch.equal(transfer.target, bytes_) for transfer, bytes_ in zip(transfers, after, strict=True))


def test_piece_that_fails_fails_its_transfer_alone() -> None:
    link = FakeLink(SPEED)
    big = {"source": pool(6, MIN_SLICE_BYTES, seed=7), "piece_bytes": MIN_SLICE_BYTES}
    failing = transfer_of(target=pool(4, MIN_SLICE_BYTES, seed=8), **big)
    target = pool(4, MIN_SLICE_BYTES, seed=9)
    after = target.clone()
    other = transfer_of(target=target, source_ids=(1, 4), target_ids=(2, 0), **big)
    weights = Transfer(H2D, TransferClass.WEIGHTS, torch.ones(9).byte(), torch.zeros(9).byte(), 0.0)
    handles = [link.submit(failing), link.submit(other), link.submit(weights)]
    link.advance(0.0151)
    link.fail(handles[0], OSError("page gone"))
    with pytest.raises(LinkError, match=r"the h2d copy of 1,572,864 bytes of kv_load failed: page gone"):
        handles[0].wait()
    link.drain()
    link.check()
    assert [handle.failed is None for handle in handles] == [False, True, True]
    assert torch.equal(target, expected(other, after)) and torch.equal(weights.target, weights.source)
