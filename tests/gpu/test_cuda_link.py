"""The link of a CUDA device on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from offload.block_transfer import BlockTransfer
from offload.cuda_link import CudaLink
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

MIB = 1024**2
WAIT_S = 60.0


@pytest.fixture
def link() -> Iterator[CudaLink]:
    link = CudaLink(LinkConfig(20e9, 20e9), torch.device("cuda", torch.cuda.current_device()))
    yield link
    link.check()
    link.close()


def host(num_bytes: int, pinned: bool = True, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    return values.pin_memory() if pinned else values


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("num_bytes", [1, 4097, 24 * MIB + 3, 100 * MIB])
def test_bytes_arrive_there_and_back(link: CudaLink, pinned: bool, num_bytes: int) -> None:
    source = host(num_bytes, pinned)
    there = torch.zeros(num_bytes, dtype=torch.uint8, device="cuda")
    back = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned)
    torch.cuda.synchronize()
    link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, source, there, 0.0)).wait(WAIT_S)
    link.submit(Transfer(Direction.D2H, TransferClass.KV_STORE, there, back, 0.0)).wait(WAIT_S)
    assert torch.equal(source, back)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("piece_bytes", [24 * 1024, MIB])
def test_parts_of_blocks_arrive_there_and_back(
    link: CudaLink, pinned: bool, piece_bytes: int, record_property: Callable[..., None]
) -> None:
    pool = host(64 * MIB, pinned).view(64, MIB)
    there = torch.zeros(80, MIB, dtype=torch.uint8, device="cuda")
    back = host(64 * MIB, pinned, seed=1).view(64, MIB)
    device_ids = tuple(torch.randperm(80, generator=torch.Generator().manual_seed(2))[:60].tolist())
    slots = tuple(range(63, 3, -1))
    expected = back.clone()
    torch.cuda.synchronize()
    for first_byte in range(0, MIB - piece_bytes + 1, piece_bytes):
        part = slice(first_byte, first_byte + piece_bytes)
        load = BlockTransfer(
            Direction.H2D, TransferClass.KV_LOAD, pool, slots, there, device_ids, first_byte, piece_bytes, 0.0
        )
        store = BlockTransfer(
            Direction.D2H, TransferClass.KV_STORE, there, device_ids, back, slots, first_byte, piece_bytes, 0.0
        )
        link.submit(load).wait(WAIT_S)
        link.submit(store).wait(WAIT_S)
        expected[4:, part] = pool[4:, part]
    assert torch.equal(back, expected)
    totals = link.snapshot().h2d.totals[TransferClass.KV_LOAD]
    record_property("load_bytes_per_s", totals.num_bytes / totals.busy_s)


def test_stream_that_was_ordered_sees_the_bytes_and_a_refill_waits_for_it(link: CudaLink) -> None:
    """A slot is loaded, read by a computing stream, and loaded anew once it was read: 20 times over."""
    slabs = [host(32 * MIB, seed=seed) for seed in range(4)]
    sums = [int(slab.long().sum()) for slab in slabs]
    slot = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
    compute = torch.cuda.Stream()
    torch.cuda.synchronize()
    released: torch.cuda.Event | None = None
    results = []
    for index in range(20):
        transfer = Transfer(Direction.H2D, TransferClass.WEIGHTS, slabs[index % 4], slot, 0.0, released)
        link.submit(transfer).order(compute, WAIT_S)
        with torch.cuda.stream(compute):
            results.append(slot.long().sum())
            released = torch.cuda.Event()
            released.record(compute)
    torch.cuda.synchronize()
    assert [int(result) for result in results] == [sums[index % 4] for index in range(20)]


def test_measured_bandwidth_is_that_of_one_large_copy(link: CudaLink, record_property: Callable[..., None]) -> None:
    source = host(512 * MIB)
    target = torch.zeros(512 * MIB, dtype=torch.uint8, device="cuda")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):
        begin.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
    whole = source.numel() / (begin.elapsed_time(end) / 1e3)
    for _ in range(8):
        link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, source, target, 0.0)).wait(WAIT_S)
    status = link.snapshot().h2d
    p50, p5 = status.p50_bytes_per_s, status.p5_bytes_per_s
    record_property("link_bytes_per_s", {"one copy": whole, "slices p50": p50, "slices p5": p5})
    assert 0.5 * whole < p50 < 1.2 * whole, "slices cost less than half of the bandwidth"


def test_both_directions_at_once_move_all_bytes(link: CudaLink) -> None:
    sources = [host(64 * MIB, seed=seed) for seed in range(2)]
    there = [torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda"), sources[1].cuda()]
    back = torch.zeros(64 * MIB, dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()
    for _ in range(8):
        link.submit(Transfer(Direction.H2D, TransferClass.KV_LOAD, sources[0], there[0], 0.0))
        link.submit(Transfer(Direction.D2H, TransferClass.KV_STORE, there[1], back, 0.0))
    link.drain()
    assert torch.equal(there[0].cpu(), sources[0]) and torch.equal(back, sources[1])
    assert link.snapshot().h2d.totals[TransferClass.KV_LOAD].num_bytes == 8 * 64 * MIB
