"""Blocks of KV between device, host and disk: what arrives, what fails, and what is told of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from offload.host_link import HostLink
from offload.kv_directory import block_path
from offload.kv_disk import DiskTier
from offload.kv_io import IoThreads
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose
from offload.link_config import LinkConfig
from tests.fake_link import POISON
from tests.kv_tiers import (
    BLOCK_BYTES,
    FINGERPRINT,
    NUM_DEVICE_BLOCKS,
    WAIT_S,
    FaultyFiles,
    Gate,
    HandleLink,
    InlineLanes,
    Tiers,
    key,
    make_tiers,
    move,
)

DONE, FAILED, CORRUPT, ABSENT, FULL = MoveOutcome
STORE, LOAD, WRITE, READ, DELETE, TOUCH = MoveKind


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


def test_a_part_is_there_when_it_was_waited_for_and_the_next_is_not() -> None:
    """In virtual time, where nothing arrives by itself."""
    link = HandleLink(1e6)
    tiers = make_tiers(link, check_share=0.0)
    before = tiers.device.clone()
    tiers.offload.begin([move(1, STORE, (1, 2), device=(3, 5), host=(0, 7))])
    link.advance_to_idle()
    assert tiers.outcomes(1) == [(DONE, DONE)]
    loads = [
        move(2, LOAD, (1,), host=(0,), device=(0,)),
        move(3, LOAD, (2,), host=(7,), device=(1,)),
    ]
    tiers.offload.begin(loads)
    poison = torch.full((BLOCK_BYTES,), POISON, dtype=torch.uint8)
    for part, (start, end) in enumerate(((0, 120), (120, 240), (240, 300))):  # 2, 2 and 1 layers of 60 bytes
        assert torch.equal(tiers.device[0, start:], poison[start:]) and torch.equal(
            tiers.device[1, start:], poison[start:]
        )
        assert not tiers.offload.has_results
        tiers.offload.wait_part((2, 3), part)
        assert torch.equal(tiers.device[0, :end], before[3, :end]) and torch.equal(
            tiers.device[1, :end], before[5, :end]
        )
    assert {result.transfer_id for result in tiers.offload.collect()} == {2, 3}
    tiers.offload.wait_part((2, 3, 99), 2)  # those that have ended are no reason to wait
    tiers.offload.close()


def test_a_flipped_byte_in_a_host_slot_is_found_before_it_reaches_the_device(tiers: Tiers) -> None:
    tiers.run(move(1, STORE, (1, 2, 3), device=(3, 5, 6), host=(0, 1, 2)))
    tiers.slot(1)[BLOCK_BYTES - 1] ^= 0x40
    before = tiers.device.clone()
    load = move(2, LOAD, (1, 2, 3), host=(0, 1, 2), device=(9, 10, 11))
    assert tiers.run(load) == [(DONE, CORRUPT, DONE)]
    assert torch.equal(tiers.device[10], before[10]), "not a byte of it moved"
    assert torch.equal(tiers.device[9], before[3]) and torch.equal(tiers.device[11], before[6])
    assert tiers.run(move(3, WRITE, (1, 2), host=(0, 1))) == [(DONE, CORRUPT)], "and does not outlive the server"
    assert tiers.run(move(4, READ, (2,), host=(4,))) == [(ABSENT,)]
    assert tiers.run(move(5, LOAD, (2,), host=(1,), device=(9,))) == [(CORRUPT,)]


def test_a_slot_that_nothing_whole_was_put_in_is_corrupt(tiers: Tiers) -> None:
    assert tiers.run(move(1, READ, (1,), host=(3,))) == [(ABSENT,)]
    assert tiers.run(move(2, LOAD, (1,), host=(3,), device=(0,))) == [(CORRUPT,)]
    assert tiers.run(move(3, WRITE, (1,), host=(3,))) == [(CORRUPT,)]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1 / 16, 4), (0.25, 16), (1.0, 64)])
def test_the_share_of_verified_blocks_is_kept(link: HostLink, share: float, expected: int) -> None:
    tiers = make_tiers(link, check_share=share)
    tiers.run(move(1, STORE, tuple(range(8)), device=tuple(range(8)), host=tuple(range(8))))
    for number in range(8):
        assert tiers.run(move(2 + number, LOAD, tuple(range(8)), host=tuple(range(8)), device=tuple(range(8)))) == [
            (DONE,) * 8
        ]
    assert tiers.offload.stats().num_verified_blocks == expected
    tiers.offload.close()


def test_a_file_that_is_damaged_or_gone_is_told_apart(tiers: Tiers, tmp_path: Path) -> None:
    tiers.run(move(1, STORE, (1, 2, 3), device=(3, 5, 6), host=(0, 1, 2)))
    tiers.run(move(2, WRITE, (1, 2, 3), host=(0, 1, 2)))
    (path,) = tmp_path.rglob(f"{key(1).hex()}.kv")
    os.truncate(path, BLOCK_BYTES)
    (path,) = tmp_path.rglob(f"{key(2).hex()}.kv")
    path.unlink()
    assert tiers.run(move(3, READ, (1, 2, 3), host=(4, 5, 6))) == [(CORRUPT, ABSENT, DONE)]
    assert torch.equal(tiers.slot(6), tiers.slot(2))


def test_errors_of_the_disk_are_outcomes(tiers: Tiers, files: FaultyFiles) -> None:
    tiers.run(move(1, STORE, (1, 2), device=(3, 5), host=(0, 1)))
    tiers.run(move(2, WRITE, (1,), host=(0,)))
    files.errors = {"read": errno.EIO, "write": errno.ENOSPC, "remove": errno.EIO}
    outcomes = tiers.run(move(3, READ, (1,), host=(4,)), move(4, WRITE, (2,), host=(1,)), move(5, DELETE, (1,)))
    assert outcomes == [(FAILED,), (FULL,), (FAILED,)]
    files.errors = {}
    assert tiers.run(move(6, READ, (1,), host=(4,))) == [(DONE,)]


def test_a_disk_that_hangs_gives_the_slot_back_and_touches_it_no_more(
    link: HostLink, files: FaultyFiles, tmp_path: Path
) -> None:
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 20, files)
    lanes = IoThreads(timeout_s=0.05)
    tiers = make_tiers(link, disk=disk, lanes=lanes)
    tiers.run(move(1, STORE, (1, 2), device=(3, 5), host=(0, 1)))
    tiers.run(move(2, WRITE, (1, 2), host=(0, 1)))
    gate = Gate()
    files.before = {"read": gate}
    assert tiers.run(move(3, READ, (1, 2), host=(4, 5))) == [(FAILED, FAILED)]
    assert tiers.run(move(4, STORE, (7,), device=(6,), host=(4,))) == [(DONE,)], "the slot is another's now"
    assert tiers.run(move(5, WRITE, (7,), host=(4,)), move(6, DELETE, (1,))) == [(FAILED,), (FAILED,)]
    gate.open()
    files.before = {}
    recovered = next(number for number in range(7, 10_000) if tiers.run(move(number, DELETE, (9,))) == [(DONE,)])
    assert torch.equal(tiers.slot(4), tiers.device[6]) and tiers.pool.is_intact(4)
    assert tiers.run(move(recovered + 1, READ, (1, 2), host=(6, 7))) == [(DONE, DONE)]
    tiers.offload.close()


def test_a_write_that_hangs_leaves_no_file_when_it_comes_back(
    link: HostLink, files: FaultyFiles, tmp_path: Path
) -> None:
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 20, files)
    tiers = make_tiers(link, disk=disk, lanes=IoThreads(timeout_s=0.05))
    tiers.run(move(1, STORE, (1,), device=(3,), host=(0,)))
    gate = Gate()
    files.before = {"rename": gate}
    assert tiers.run(move(2, WRITE, (1,), host=(0,))) == [(FAILED,)]
    tiers.slot(0).fill_(1)  # the slot is another's now
    gate.open()
    files.before = {}
    assert next(number for number in range(3, 10_000) if tiers.run(move(number, DELETE, (9,))) == [(DONE,)])
    assert not list(tmp_path.rglob("*.kv")) and not list(tmp_path.rglob("*.tmp"))
    disk.check()
    tiers.offload.close()


def test_a_copy_that_fails_is_an_outcome_and_the_others_arrive() -> None:
    link = HandleLink(1e6)
    tiers = make_tiers(link, check_share=0.0)
    before = tiers.device.clone()
    tiers.offload.begin(
        [move(1, STORE, (1, 2), device=(3, 5), host=(0, 1)), move(2, STORE, (3,), device=(6,), host=(2,))]
    )
    stores = link.open_handles()
    link.fail(stores[0], RuntimeError("the bus is on fire"))
    link.advance_to_idle()
    assert tiers.outcomes(1, 2) == [(FAILED, FAILED), (DONE,)]
    tiers.offload.begin([move(3, LOAD, (3,), host=(2,), device=(0,)), move(4, LOAD, (3,), host=(2,), device=(1,))])
    link.fail(link.open_handles()[2], RuntimeError("in the second part"))  # of the first load
    tiers.offload.wait_ended((3, 4))
    assert tiers.outcomes(3, 4) == [(FAILED,), (DONE,)]
    assert torch.equal(tiers.device[1], before[6])
    tiers.offload.check()
    tiers.offload.close()


def test_a_completion_that_comes_twice_counts_once() -> None:
    link = HandleLink(1e6)
    tiers = make_tiers(link, check_share=0.0, lanes=InlineLanes())
    tiers.offload.begin([move(1, STORE, (1,), device=(3,), host=(0,))])
    link.duplicate(link.open_handles()[0])
    sealed: list[int] = []
    tiers.pool.seal = sealed.append  # type: ignore[method-assign]
    link.advance_to_idle()
    assert tiers.outcomes(1) == [(DONE,)] and sealed == [0]
    del tiers.pool.seal
    tiers.pool.seal(0)
    tiers.offload.begin([move(2, LOAD, (1,), host=(0,), device=(0,))])
    for handle in link.open_handles():
        link.duplicate(handle)
    tiers.offload.wait_ended((2,))
    assert tiers.outcomes(2) == [(DONE,)] and not tiers.offload.has_results
    tiers.offload.check()
    tiers.offload.close()


def test_completions_out_of_order_keep_both_ends() -> None:
    link = HandleLink(1e6)
    tiers = make_tiers(link, check_share=0.0)
    tiers.offload.begin([move(1, STORE, (1,), device=(3,), host=(0,))])
    link.advance_to_idle()
    tiers.outcomes(1)
    tiers.offload.begin([move(2, LOAD, (1,), host=(0,), device=(0,))])
    first, *_ = link.open_handles()
    link.hold(first)
    link.advance_to_idle()
    assert not tiers.offload.has_results, "the first part has not been told of"
    link.release(first)
    assert tiers.outcomes(2) == [(DONE,)]
    tiers.offload.close()


def test_a_link_that_dies_ends_everything() -> None:
    link = HandleLink(1e6)
    dying = make_tiers(link, check_share=0.0)
    dying.offload.begin([move(1, STORE, (1,), device=(3,), host=(0,))])
    link.advance_to_idle()
    dying.outcomes(1)
    dying.offload.begin([move(2, LOAD, (1,), host=(0,), device=(0,)), move(3, STORE, (2,), device=(4,), host=(1,))])
    dying.offload.wait_part((2,), 0)
    link.die(RuntimeError("gone"))
    dying.offload.wait_part((2,), 1)
    dying.offload.wait_ended((2, 3))
    dying.offload.begin([move(4, LOAD, (1,), host=(0,), device=(0,)), move(5, STORE, (2,), device=(4,), host=(1,))])
    dying.offload.wait_part((4,), 2)
    assert dying.outcomes(2, 3, 4, 5) == [(FAILED,)] * 4
    dying.offload.check()
    dying.offload.close()


def test_a_load_whose_link_is_closed_ends(link: HostLink, tiers: Tiers) -> None:
    tiers.run(move(1, STORE, (1,), device=(3,), host=(0,)))
    link.close()
    tiers.offload.begin([move(2, LOAD, (1,), host=(0,), device=(0,)), move(3, STORE, (2,), device=(4,), host=(1,))])
    tiers.offload.wait_part((2,), 2)
    assert tiers.outcomes(2, 3) == [(FAILED,), (FAILED,)]


def test_a_store_that_fails_leaves_nothing_that_could_be_loaded(link: HostLink, tiers: Tiers) -> None:
    tiers.run(move(1, STORE, (1,), device=(3,), host=(0,)))
    assert tiers.pool.is_intact(0)
    link.close()
    assert tiers.run(move(2, STORE, (2,), device=(4,), host=(0,))) == [(FAILED,)]
    assert not tiers.pool.is_intact(0), "the bytes of before are there, but not those of this block"


def test_without_a_disk_its_moves_fail(link: HostLink) -> None:
    tiers = make_tiers(link)
    assert tiers.run(move(1, READ, (1, 2), host=(0, 1)), move(2, DELETE, (1,))) == [(FAILED, FAILED), (FAILED,)]
    stats = tiers.offload.stats()
    assert stats.disk_read_bytes_per_s == 0 and stats.busy_s[READ] == 0
    tiers.offload.close()


def test_a_move_of_nothing_has_ended(tiers: Tiers) -> None:
    assert tiers.run(*(move(number, kind, ()) for number, kind in enumerate(MoveKind))) == [()] * 6


def test_what_makes_no_sense_is_refused_before_anything_moves(tiers: Tiers, link: HostLink) -> None:
    for wrong, why in (
        (move(1, STORE, (1,), device=(NUM_DEVICE_BLOCKS,), host=(0,)), "device block 12; there are 0 to 11"),
        (move(1, READ, (1,), host=(8,)), "host slot 8; there are 0 to 7"),
        (move(1, LOAD, (1, 2), host=(0, 1), device=(2, 2)), "names a device block twice"),
    ):
        with pytest.raises(ValueError, match=why):
            tiers.offload.begin([move(9, DELETE, (1,)), wrong])
    with pytest.raises(ValueError, match="a load of 2 blocks names 1 host slots"):
        move(1, LOAD, (1, 2), host=(0,), device=(2, 3))
    with pytest.raises(ValueError, match="a delete of 1 blocks names 1 host slots"):
        move(1, DELETE, (1,), host=(0,))
    with pytest.raises(ValueError, match=r"check_share is 1\.5"):
        make_tiers(link, check_share=1.5)
    assert tiers.offload.stats().num_blocks == {}


def test_closing_ends_what_is_under_way(files: FaultyFiles, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    link = HostLink(LinkConfig(1e9, 1e9))
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 20, files)
    tiers = make_tiers(link, disk=disk, lanes=IoThreads(close_s=0.02))
    tiers.run(move(1, STORE, (1, 2), device=(3, 5), host=(0, 1)))
    tiers.run(move(2, WRITE, (1,), host=(0,)))
    gate = Gate()
    files.before = {"read": gate}
    moves: list[BlockMove] = [
        move(3, LOAD, (1, 2), host=(0, 1), device=(0, 1)),
        move(4, STORE, (3,), device=(6,), host=(2,), purpose=MovePurpose.BACKGROUND),
        move(5, READ, (1,), host=(4,)),
        move(6, READ, (1,), host=(5,)),
    ]
    tiers.offload.begin(moves)
    assert gate.entered.wait(WAIT_S)
    tiers.offload.close()
    tiers.offload.close()
    tiers.offload.check()
    outcomes = tiers.outcomes(3, 4, 5, 6)
    assert outcomes[0] == (DONE, DONE) and outcomes[2:] == [(FAILED,), (FAILED,)]
    with pytest.raises(ValueError, match="is closed"):
        tiers.offload.begin([move(7, DELETE, (1,))])
    with pytest.raises(ValueError, match="closed"):
        tiers.offload.begin(moves[:1])
    gate.open()
    link.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
    assert set(threading.enumerate()) <= before
    DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 20).close()


def test_many_blocks_are_touched_in_one_move(link: HostLink, tmp_path: Path) -> None:
    """After what was asked for before, and each as its position says; those without a file end well too."""
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, 1 << 20, wall_clock=lambda: 1_000_000.0)
    tiers = make_tiers(link, disk=disk)
    tiers.run(move(1, STORE, (1, 2), device=(3, 5), host=(0, 7)))
    tiers.offload.begin([move(2, WRITE, (1, 2), host=(0, 7)), move(3, TOUCH, tuple(range(1, 200)))])
    assert tiers.outcomes(2, 3) == [(DONE, DONE), (DONE,) * 199]
    times = [block_path(disk.directory, key(number)).stat().st_mtime for number in (1, 2)]
    assert times == [1_000_000.0 - number for number in (1, 2)]
    assert TOUCH not in tiers.offload.stats().num_bytes
    tiers.offload.check()
    tiers.offload.close()


@pytest.mark.parametrize("kind", [WRITE, TOUCH])
def test_a_file_is_written_and_touched_at_a_position(kind: MoveKind) -> None:
    host = (0,) if kind is WRITE else ()
    with pytest.raises(ValueError, match="of 1 blocks names 0 positions"):
        BlockMove(1, kind, MovePurpose.BACKGROUND, (key(1),), host_slots=host)
