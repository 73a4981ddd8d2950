"""A disk tier that was found full grows again, by trials that cost nothing when they fail."""

from __future__ import annotations

import pytest

from scheduler.disk_room import BATCH_SHARE, FIRST_GROWTH_S, MAX_GROWTH_S, RETRY_AFTER_S
from scheduler.kv_transfer import BlockOutcome, Tier, TierConfig
from scheduler.tier_directory import TierDirectory

DONE, FULL, GONE = BlockOutcome.DONE, BlockOutcome.FULL, BlockOutcome.ABSENT
NUM_WISHED = 100
STEP = -(-NUM_WISHED // BATCH_SHARE)
KEPT = [b"kept%d" % index for index in range(20)]


class Disk:
    """A directory of one host tier and a disk of 100 blocks, of which blocks are written one by one."""

    def __init__(self) -> None:
        self.directory = TierDirectory(TierConfig(8, NUM_WISHED, 1, 1, tuple(KEPT)))
        self.now_s = 0.0
        self.num_stored = 0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.directory.observe(self.now_s)

    def write(self, outcome: BlockOutcome) -> None:
        """A block comes, and once there is room for it its write ends so."""
        self.num_stored += 1
        block_hash = b"%d" % self.num_stored
        assert self.directory.begin_store(block_hash, 2) is not None
        self.directory.end_store(block_hash, DONE)
        while not (begun := self.directory.next_writes(1)):
            assert self.directory.num_deletions_due, "nothing goes, and nothing is written"
            self.delete()
        self.directory.end_write(begun[0][0], outcome)
        self.directory.check()

    def delete(self) -> None:
        for block_hash in self.directory.take_deletions():
            self.directory.end_delete(block_hash, DONE)

    @property
    def capacity(self) -> int:
        return self.directory.disk_capacity


@pytest.fixture
def disk() -> Disk:
    """It was full with 20 blocks at 0 s, and holds 20 again at 10 s."""
    made = Disk()
    made.write(FULL)
    made.delete()
    made.wait(RETRY_AFTER_S)
    while made.directory.num_disk_blocks < 20:
        made.write(DONE)
    assert made.capacity == 20
    return made


def test_a_minute_after_it_was_full_it_grows_step_by_step_as_it_is_used_up(disk: Disk) -> None:
    num_evicted = disk.directory.counters.evictions[Tier.DISK]
    disk.wait(FIRST_GROWTH_S - RETRY_AFTER_S - 1)
    disk.write(DONE)
    assert disk.capacity == 20 and disk.directory.counters.evictions[Tier.DISK] == num_evicted + 1
    disk.wait(1)
    capacities = []
    for _ in range(NUM_WISHED - 20):
        disk.write(DONE)
        capacities.append(disk.capacity)
    assert capacities == [min(NUM_WISHED, 20 + STEP * (1 + index // STEP)) for index in range(NUM_WISHED - 20)]
    assert disk.directory.num_disk_blocks == NUM_WISHED
    disk.wait(MAX_GROWTH_S)
    disk.write(DONE)
    assert disk.capacity == NUM_WISHED, "no more than was asked for"


def test_what_is_not_used_up_does_not_grow(disk: Disk) -> None:
    assert disk.directory.begin_read(KEPT[10], 1) is not None
    disk.directory.end_read(KEPT[10], GONE)
    disk.wait(2 * FIRST_GROWTH_S)
    disk.write(DONE)
    assert disk.capacity == 20
    disk.write(DONE)
    assert disk.capacity == 20 + STEP


def test_a_try_that_fails_takes_nothing_away_and_the_next_comes_ever_later(disk: Disk) -> None:
    waits, full_s = [], 0.0
    while len(waits) < 9:
        wait_s = min(MAX_GROWTH_S, FIRST_GROWTH_S * 2 ** len(waits))
        disk.wait(full_s + wait_s - 1 - disk.now_s)
        num_evicted = disk.directory.counters.evictions[Tier.DISK]
        disk.write(DONE)
        assert disk.directory.counters.evictions[Tier.DISK] == num_evicted + 1, "one goes for the other"
        disk.wait(1)
        disk.write(FULL)
        assert disk.directory.counters.evictions[Tier.DISK] == num_evicted + 1 and disk.directory.is_disk_writable
        assert disk.capacity == disk.directory.num_disk_blocks == 20
        waits.append(disk.now_s - full_s)
        full_s = disk.now_s
        disk.wait(RETRY_AFTER_S)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_try_that_succeeds_makes_the_next_come_soon_again(disk: Disk) -> None:
    disk.wait(FIRST_GROWTH_S)
    disk.write(FULL)
    disk.wait(RETRY_AFTER_S)
    disk.write(DONE)
    disk.wait(2 * FIRST_GROWTH_S)
    while disk.capacity < 20 + 2 * STEP:
        disk.write(DONE)
    disk.write(FULL)
    assert disk.capacity == 20 + STEP + 1, "one of the second step had fitted"
    disk.wait(RETRY_AFTER_S)
    disk.write(DONE)
    assert disk.capacity == 20 + STEP + 1
    disk.wait(2 * FIRST_GROWTH_S)
    disk.write(DONE)
    assert disk.capacity == 20 + 2 * STEP + 1


def test_a_try_in_vain_is_none_of_the_two_that_close_the_disk(disk: Disk) -> None:
    disk.wait(FIRST_GROWTH_S)
    for is_writable in (True, True, False):
        disk.write(FULL)
        disk.delete()
        assert disk.directory.is_disk_writable == is_writable
        disk.wait(RETRY_AFTER_S)
    assert disk.capacity < 20 and disk.directory.num_disk_blocks > 0
