"""KV moves of all kinds under way at once, over a real link, real threads and real files: contents, and no leak."""

from __future__ import annotations

import gc
import random
import threading
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from offload.host_link import HostLink
from offload.kv_disk import DiskTier
from offload.kv_file import KVFileFormat
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose
from offload.link_config import LinkConfig
from tests.kv_tiers import (
    BLOCK_BYTES,
    FINGERPRINT,
    NUM_DEVICE_BLOCKS,
    NUM_SLOTS,
    WAIT_S,
    Tiers,
    block_of,
    key,
    make_tiers,
)

STORE, LOAD, WRITE, READ, DELETE, TOUCH = MoveKind
DONE = MoveOutcome.DONE
NUM_NAMES = 10
MAX_OPEN = 6


class Traffic:
    """Random moves whose places nobody else uses meanwhile; what arrives is compared with what was sent."""

    def __init__(self, tiers: Tiers, seed: int) -> None:
        self.tiers = tiers
        self.random = random.Random(seed)
        self.slots: list[Tensor | None] = [None] * NUM_SLOTS
        self.files: dict[int, Tensor] = {}
        self.busy: set[tuple[str, int]] = set()
        self.open: dict[int, tuple[BlockMove, int, int, int, Tensor | None]] = {}
        self.num_moves = 0
        self.num_done: dict[MoveKind, int] = dict.fromkeys(MoveKind, 0)

    def run(self, num_moves: int) -> None:
        while self.num_moves < num_moves:
            if len(self.open) < MAX_OPEN and self.begin_one():
                continue
            if self.open:
                self.collect_one()
        while self.open:
            self.collect_one()

    def begin_one(self) -> bool:
        kind = self.random.choice([*MoveKind])
        block, slot = self.random.randrange(NUM_DEVICE_BLOCKS), self.random.randrange(NUM_SLOTS)
        name = self.random.randrange(NUM_NAMES)
        places = places_of(kind, block, slot, name)
        needs_slot, needs_file = kind in (LOAD, WRITE), kind in (READ, DELETE, TOUCH)
        if (needs_slot and self.slots[slot] is None) or (needs_file and name not in self.files):
            return False
        if places & self.busy:
            return False
        self.busy |= places
        sent = {LOAD: self.slots[slot], WRITE: self.slots[slot], READ: self.files.get(name)}.get(kind)
        if kind is STORE:
            self.tiers.device[block] = sent = block_of(self.num_moves % 97)
        self.num_moves += 1
        on_device = (block,) if kind in (STORE, LOAD) else ()
        on_host = () if kind in (DELETE, TOUCH) else (slot,)
        positions = (name,) if kind in (WRITE, TOUCH) else ()
        purpose = self.random.choice([*MovePurpose])
        move = BlockMove(self.num_moves, kind, purpose, (key(name),), on_device, on_host, positions=positions)
        self.open[move.transfer_id] = (move, block, slot, name, sent)
        self.tiers.offload.begin([move])
        if kind is LOAD and self.random.random() < 0.5:
            self.tiers.offload.wait_part((move.transfer_id,), self.random.randrange(3))
        return True

    def collect_one(self) -> None:
        assert self.tiers.woken.acquire(timeout=WAIT_S), f"{len(self.open)} moves have not ended"
        for result in self.tiers.offload.collect():
            move, block, slot, name, sent = self.open.pop(result.transfer_id)
            assert result.outcomes == (DONE,), (move, result)
            self.num_done[move.kind] += 1
            if move.kind in (STORE, READ):
                self.slots[slot] = sent
                assert sent is not None and torch.equal(self.tiers.slot(slot), sent), move
            elif move.kind is LOAD:
                assert sent is not None and torch.equal(self.tiers.device[block], sent), move
            elif move.kind is WRITE:
                assert sent is not None
                self.files[name] = sent
            elif move.kind is DELETE:
                del self.files[name]
            self.busy -= places_of(move.kind, block, slot, name)


def places_of(kind: MoveKind, block: int, slot: int, name: int) -> set[tuple[str, int]]:
    """That a move has for itself."""
    over_link = kind in (STORE, LOAD)
    held = {("block", block)} if over_link else {("name", name)}
    return held if kind in (DELETE, TOUCH) else {*held, ("slot", slot)}


def traffic(path: Path, num_moves: int, seed: int) -> Traffic:
    link = HostLink(LinkConfig(1e9, 1e9))
    limit = NUM_NAMES * KVFileFormat(FINGERPRINT.digest, BLOCK_BYTES).disk_bytes
    disk = DiskTier(path, FINGERPRINT, BLOCK_BYTES, limit)
    tiers = make_tiers(link, disk=disk)
    made = Traffic(tiers, seed)
    made.run(num_moves)
    tiers.offload.check()
    disk.check()
    tiers.offload.close()
    link.close()
    return made


@pytest.mark.parametrize("seed", range(3))
def test_what_arrives_is_what_was_sent(tmp_path: Path, seed: int) -> None:
    made = traffic(tmp_path, 600, seed)
    assert min(made.num_done.values()) > 20, made.num_done


@pytest.mark.soak
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    process = psutil.Process()
    traffic(tmp_path, 2000, 0)
    gc.collect()
    threads, files, memory = set(threading.enumerate()), process.num_fds(), process.memory_info().rss
    for seed in range(20):
        traffic(tmp_path, 10_000, seed)
    gc.collect()
    assert set(threading.enumerate()) == threads and process.num_fds() == files
    assert process.memory_info().rss < memory + 32 * 1024**2
