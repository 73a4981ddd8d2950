"""The trial of a KV block at the start."""

from __future__ import annotations

import pytest
import torch

from engine.errors import EngineStartError
from engine.kv_round_trip import check_round_trip
from offload.host_link import HostLink, copy_slice
from offload.host_tier import HostTier
from offload.kv_host_pool import KVHostPool
from offload.kv_offload import KVOffload
from offload.link_config import LinkConfig
from offload.transfer import Direction

BLOCK_BYTES = 4096


def try_with(num_blocks: int, copy=copy_slice) -> torch.Tensor:
    """The device's blocks after a trial."""
    blocks = torch.full((num_blocks, BLOCK_BYTES), 7, dtype=torch.uint8)
    link, tier = HostLink(LinkConfig(1e9, 1e9), copy=copy), HostTier()
    mover = KVOffload(
        link, blocks, KVHostPool(tier, 2, BLOCK_BYTES), None, 4,
        num_layers=4, check_share=0.0, record_event=lambda: None, on_done=lambda: None,
    )  # fmt: skip
    try:
        check_round_trip(mover, blocks)
    finally:
        link.close()
        mover.close()
        tier.close()
    return blocks


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_a_link_that_carries_blocks_passes_and_the_blocks_are_clean(num_blocks: int) -> None:
    blocks = try_with(num_blocks)
    assert not blocks[:2].any()
    assert (blocks[2:] == 7).all(), "others were touched"


def test_a_link_that_moves_nothing_stops_the_start() -> None:
    with pytest.raises(EngineStartError, match="is not what it was: start without --host-memory"):
        try_with(3, copy=lambda transfer, start, end: None)


def test_a_link_that_fails_one_way_stops_the_start() -> None:
    def one_way(transfer, start: int, end: int) -> None:
        if transfer.direction is Direction.H2D:
            raise RuntimeError("no way back")
        copy_slice(transfer, start, end)

    with pytest.raises(EngineStartError, match="trial load of a KV block between device and host failed"):
        try_with(3, copy=one_way)
