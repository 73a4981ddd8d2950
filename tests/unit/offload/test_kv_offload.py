"""Blocks of KV between device, host and disk: what arrives, what fails, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from offload.host_link import HostLink
from offload.kv_disk import DiskTier
from offload.kv_request import MoveKind, MoveOutcome
from offload.link_config import LinkConfig
from tests.kv_tiers import BLOCK_BYTES, FINGERPRINT, FaultyFiles, Tiers, make_tiers, move

DONE = MoveOutcome.DONE
STORE, LOAD, WRITE, READ, DELETE = MoveKind


@pytest.fixture
def link() -> Iterator[HostLink]:
    opened = HostLink(LinkConfig(1e9, 1e9))
    yield opened
    opened.close()


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def tiers(link: HostLink, files: FaultyFiles, tmp_path: Path) -> Iterator[Tiers]:
    made = make_tiers(link, disk=DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 20, files))
    yield made
    made.offload.check()
    made.offload.close()


def test_a_block_goes_to_disk_and_comes_back(tiers: Tiers) -> None:
    before = tiers.device.clone()
    assert tiers.run(move(1, STORE, (1, 2), device=(3, 5), host=(0, 7))) == [(DONE, DONE)]
    assert torch.equal(tiers.slot(0), before[3]) and torch.equal(tiers.slot(7), before[5])
    assert tiers.run(move(2, WRITE, (1, 2), host=(0, 7))) == [(DONE, DONE)]
    tiers.pool.blocks.fill_(0)
    assert tiers.run(move(3, READ, (2, 1), host=(4, 5))) == [(DONE, DONE)]
    assert tiers.run(move(4, LOAD, (2, 1), host=(4, 5), device=(0, 1))) == [(DONE, DONE)]
    assert torch.equal(tiers.device[0], before[5]) and torch.equal(tiers.device[1], before[3])
    assert torch.equal(tiers.device[2:], before[2:])
    assert tiers.run(move(5, DELETE, (1,))) == [(DONE,)]
    assert tiers.run(move(6, READ, (1, 2), host=(0, 1))) == [(MoveOutcome.ABSENT, DONE)]


def test_stats_add_up(tiers: Tiers) -> None:
    tiers.run(move(1, STORE, (1, 2), device=(3, 5), host=(0, 7)))
    tiers.run(move(2, WRITE, (1, 2), host=(0, 7)))
    tiers.run(move(3, READ, (1, 9), host=(2, 3)))
    tiers.run(move(4, LOAD, (1,), host=(2,), device=(0,)))
    stats = tiers.offload.stats()
    assert stats.num_blocks == {
        (STORE, DONE): 2,
        (WRITE, DONE): 2,
        (READ, DONE): 1,
        (READ, MoveOutcome.ABSENT): 1,
        (LOAD, DONE): 1,
    }
    blocks = {STORE: 2, LOAD: 1, WRITE: 2, READ: 1}
    assert stats.num_bytes == {kind: number * BLOCK_BYTES for kind, number in blocks.items()}
    assert all(stats.busy_s[kind] > 0 for kind in blocks)
    assert stats.num_verified_blocks == 2 and stats.num_open == 0
    assert stats.disk_read_bytes_per_s > 0 and stats.disk_write_bytes_per_s > 0
