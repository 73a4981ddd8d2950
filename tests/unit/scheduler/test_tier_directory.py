"""What the directory promises of stores, loads, reads, writes and deletions, one promise a test."""

from __future__ import annotations

import pytest

from scheduler.disk_directory import MAX_DELETIONS, REST_S, InvalidDiskTransition
from scheduler.disk_room import BATCH_SHARE, RETRY_AFTER_S
from scheduler.host_directory import InvalidSlotTransition
from scheduler.kv_transfer import BlockOutcome, Tier, TierConfig
from scheduler.tier_breaker import FIRST_OFF_S, MAX_FAILURES
from scheduler.tier_directory import Presence, TierDirectory

DONE, FAILED, CORRUPT, GONE, FULL = (
    BlockOutcome.DONE,
    BlockOutcome.FAILED,
    BlockOutcome.CORRUPT,
    BlockOutcome.ABSENT,
    BlockOutcome.FULL,
)
H = [bytes([65 + i]) for i in range(26)]


def directory_of(num_slots: int = 4, num_disk: int = 0, kept: int = 0) -> TierDirectory:
    """With the first `kept` hashes on disk."""
    return TierDirectory(TierConfig(num_slots, num_disk, block_bytes=1, disk_hashes=tuple(H[:kept])))


def store(directory: TierDirectory, *block_hashes: bytes, priority: int = 1) -> None:
    for block_hash in block_hashes:
        assert directory.begin_store(block_hash, priority) is not None
        directory.end_store(block_hash, DONE)
    directory.check()


def write_all(directory: TierDirectory) -> None:
    for block_hash, _ in directory.next_writes(100):
        directory.end_write(block_hash, DONE)
    directory.check()


def delete_all(directory: TierDirectory) -> None:
    while taken := directory.take_deletions():
        for block_hash in taken:
            directory.end_delete(block_hash, DONE)
    directory.check()


def presences(directory: TierDirectory, *block_hashes: bytes) -> list[str]:
    directory.check()
    return [directory.presence(block_hash).value for block_hash in block_hashes]


def test_a_store_can_be_loaded_once_it_is_done() -> None:
    directory = directory_of()
    slot = directory.begin_store(H[0], 1)
    assert presences(directory, H[0]) == ["absent"] and directory.num_host_used == 1
    directory.end_store(H[0], DONE)
    assert presences(directory, H[0]) == ["host"] and directory.num_host_ready == 1
    assert directory.host_slot(H[0]) == directory.begin_load(H[0]) == slot


def test_a_store_of_a_known_block_is_refused_in_every_state() -> None:
    directory = directory_of(4, 4, kept=1)
    directory.begin_store(H[1], 1)
    directory.begin_read(H[0], 1)
    store(directory, H[2], H[3])
    directory.begin_load(H[3])
    assert [directory.begin_store(block_hash, 1) for block_hash in H[:4]] == [None] * 4
    directory.begin_load(H[3])
    directory.end_load(H[3], CORRUPT)
    assert presences(directory, *H[:4]) == ["coming", "absent", "host", "absent"]
    assert directory.begin_store(H[3], 1) is None, "its slot is still being read"


@pytest.mark.parametrize("outcome", [FAILED, CORRUPT, GONE, FULL])
def test_a_failed_store_gives_its_slot_back(outcome: BlockOutcome) -> None:
    directory = directory_of(1)
    directory.begin_store(H[0], 1)
    directory.end_store(H[0], outcome)
    assert presences(directory, H[0]) == ["absent"] and directory.num_host_used == 0
    assert directory.counters.failures == {(Tier.HOST, outcome): 1}
    store(directory, H[0])


def test_blocks_in_use_are_not_evicted() -> None:
    directory = directory_of(3, 4, kept=1)
    directory.begin_store(H[1], 0)
    directory.begin_read(H[0], 0)
    store(directory, H[2], priority=0)
    directory.begin_load(H[2])
    assert directory.begin_store(H[3], 2) is None
    directory.end_load(H[2], DONE)
    assert directory.begin_store(H[3], 2) is not None
    assert presences(directory, H[2]) == ["absent"] and directory.counters.evictions[Tier.HOST] == 1


def test_the_head_of_a_prefix_stays_longest() -> None:
    directory = directory_of(3)
    store(directory, *H[:3])
    directory.touch(H[:3], 1)
    store(directory, H[3])
    assert presences(directory, *H[:4]) == ["host", "host", "absent", "host"]


def test_a_use_never_lowers_the_priority() -> None:
    directory = directory_of(2)
    store(directory, H[0], priority=2)
    store(directory, H[1], priority=1)
    directory.touch(H[:1], 0)
    store(directory, H[2], priority=1)
    assert presences(directory, *H[:2]) == ["host", "absent"]


def test_low_priority_goes_first_and_what_is_on_disk_before_its_equals() -> None:
    directory = directory_of(3, 1)
    store(directory, H[0], priority=1)
    write_all(directory)
    store(directory, H[1], priority=1)
    store(directory, H[2], priority=0)
    directory.touch(H[:1], 1)
    directory.begin_store(H[3], 1)
    assert presences(directory, *H[:3]) == ["host", "host", "absent"]
    directory.begin_store(H[4], 1)
    assert presences(directory, *H[:2]) == ["disk", "host"] and directory.counters.num_vanished == 1


def test_several_load_one_block_and_the_last_frees_it() -> None:
    directory = directory_of(1)
    store(directory, H[0])
    for _ in range(3):
        directory.begin_load(H[0])
    directory.end_load(H[0], DONE)
    directory.end_load(H[0], DONE)
    assert directory.begin_store(H[1], 1) is None
    directory.end_load(H[0], DONE)
    assert directory.begin_store(H[1], 1) is not None


def test_a_block_that_failed_one_is_lost_to_all() -> None:
    directory = directory_of(1)
    store(directory, H[0])
    directory.begin_load(H[0])
    directory.begin_load(H[0])
    directory.end_load(H[0], CORRUPT)
    assert presences(directory, H[0]) == ["absent"] and directory.num_host_used == 1
    with pytest.raises(ValueError, match="absent, only one in host memory"):
        directory.begin_load(H[0])
    directory.end_load(H[0], DONE)
    assert directory.num_host_used == 0
    store(directory, H[0])


def test_a_copy_on_disk_outlives_a_corrupt_one_in_memory() -> None:
    directory = directory_of(2, 2)
    store(directory, H[0])
    write_all(directory)
    directory.begin_load(H[0])
    directory.end_load(H[0], CORRUPT)
    assert presences(directory, H[0]) == ["disk"]


def test_a_block_lost_while_it_is_written_does_not_stay_on_disk() -> None:
    directory = directory_of(2, 2)
    store(directory, H[0])
    directory.next_writes(1)
    directory.begin_load(H[0])
    directory.end_load(H[0], CORRUPT)
    directory.end_write(H[0], DONE)
    assert presences(directory, H[0]) == ["absent"] and directory.take_deletions() == (H[0],)


def test_a_read_brings_a_block_to_host_and_leaves_it_on_disk() -> None:
    directory = directory_of(2, 4, kept=2)
    slot = directory.begin_read(H[0], 1)
    assert slot is not None and presences(directory, *H[:2]) == ["coming", "disk"]
    assert directory.begin_read(H[0], 1) is None
    directory.end_read(H[0], DONE)
    assert presences(directory, H[0]) == ["host"] and directory.host_slot(H[0]) == slot
    assert directory.num_disk_blocks == 2 and directory.next_writes(5) == []


def test_wrong_and_missing_files_are_forgotten() -> None:
    directory = directory_of(3, 4, kept=2)
    for block_hash, outcome in zip(H, [CORRUPT, GONE], strict=False):
        directory.begin_read(block_hash, 1)
        directory.end_read(block_hash, outcome)
    assert presences(directory, *H[:2]) == ["absent", "absent"] and directory.num_host_used == 0
    assert directory.take_deletions() == (H[0],), "the other has no file"
    assert directory.is_disk_on


def test_a_failed_read_rests_and_the_second_gives_the_entry_up() -> None:
    directory = directory_of(2, 4, kept=1)
    directory.observe(10.0)
    directory.begin_read(H[0], 1)
    directory.end_read(H[0], FAILED)
    assert presences(directory, H[0]) == ["absent"] and directory.begin_read(H[0], 1) is None
    directory.observe(10.0 + REST_S)
    assert presences(directory, H[0]) == ["disk"]
    directory.begin_read(H[0], 1)
    directory.end_read(H[0], FAILED)
    directory.observe(10.0 + 2 * REST_S)
    assert presences(directory, H[0]) == ["absent"] and directory.take_deletions() == (H[0],)


def test_a_success_between_forgives_a_failed_read() -> None:
    directory = directory_of(1, 4, kept=1)
    for outcome in (FAILED, DONE, FAILED):
        directory.observe(directory._now_s + REST_S)
        directory.begin_read(H[0], 1)
        directory.end_read(H[0], outcome)
        if outcome is DONE:
            store(directory, H[5], priority=2)
    directory.observe(directory._now_s + REST_S)
    assert presences(directory, H[0]) == ["disk"]


def test_prompt_blocks_are_written_before_output_and_used_before_unused() -> None:
    directory = directory_of(4, 8)
    store(directory, H[0], priority=0)
    store(directory, *H[1:4], priority=1)
    directory.touch([H[3]], 1)
    assert [block_hash for block_hash, _ in directory.next_writes(2)] == [H[3], H[1]]
    assert [block_hash for block_hash, _ in directory.next_writes(9)] == [H[2], H[0]]


def test_a_full_tier_on_disk_evicts_and_writes_once_the_room_is_free() -> None:
    directory = directory_of(4, 2, kept=2)
    store(directory, H[2], H[3], H[4])
    assert directory.next_writes(2) == []
    assert presences(directory, *H[:2]) == ["absent", "absent"] and directory.next_writes(2) == []
    assert directory.take_deletions() == (H[0], H[1])
    directory.end_delete(H[0], DONE)
    assert [block_hash for block_hash, _ in directory.next_writes(2)] == [H[2]]
    directory.end_delete(H[1], GONE)
    assert [block_hash for block_hash, _ in directory.next_writes(1)] == [H[3]]
    assert directory.counters.evictions[Tier.DISK] == 2


def test_a_small_disk_is_not_written_for_ever() -> None:
    """What the disk forgot is written again only after it was used again."""
    directory = directory_of(8, 2)
    store(directory, *H[:8])
    num_written = 0
    for _ in range(100):
        begun = directory.next_writes(4)
        num_written += len(begun)
        for block_hash, _ in begun:
            directory.end_write(block_hash, DONE)
        delete_all(directory)
    assert num_written == 8 and directory.num_unwritten == 0
    directory.touch(H[:1], 1)
    assert directory.num_unwritten == 1


@pytest.mark.parametrize("outcome", [FAILED, GONE])
def test_a_failed_write_keeps_the_block_in_memory_and_is_not_repeated(outcome: BlockOutcome) -> None:
    directory = directory_of(2, 2)
    store(directory, H[0])
    directory.next_writes(1)
    directory.end_write(H[0], outcome)
    assert presences(directory, H[0]) == ["host"] and directory.next_writes(1) == []
    directory.touch(H[:1], 1)
    assert len(directory.next_writes(1)) == 1


def test_a_write_that_finds_the_block_corrupt_loses_it() -> None:
    directory = directory_of(2, 2)
    store(directory, H[0])
    directory.next_writes(1)
    directory.end_write(H[0], CORRUPT)
    assert presences(directory, H[0]) == ["absent"] and directory.num_host_used == 0


def fill(directory: TierDirectory) -> None:
    """A write finds the disk full."""
    store(directory, H[24])
    assert [block_hash for block_hash, _ in directory.next_writes(1)] == [H[24]]
    directory.end_write(H[24], FULL)
    directory.check()


def test_a_full_disk_evicts_a_batch_lowers_the_capacity_and_is_tried_again() -> None:
    directory = directory_of(4, 100, kept=20)
    fill(directory)
    assert directory.disk_capacity == 20 and directory.is_disk_writable
    due = directory.take_deletions()
    assert due == tuple(H[: -(-20 // BATCH_SHARE)]), "the longest unused"
    directory.observe(RETRY_AFTER_S)
    assert directory.next_writes(5) == [], "the batch is still there"
    for block_hash in due:
        directory.end_delete(block_hash, DONE)
    store(directory, H[25])
    assert len(directory.next_writes(5)) == 1, "a single one tries"
    assert directory.next_writes(5) == []
    directory.end_write(H[24], DONE)
    assert len(directory.next_writes(5)) == 1, "the other, that waited"
    assert directory.disk_capacity == 20


def test_a_disk_full_twice_is_only_read() -> None:
    directory = directory_of(4, 100, kept=20)
    fill(directory)
    delete_all(directory)
    assert directory.next_writes(1) == [], "not before its time"
    directory.observe(RETRY_AFTER_S)
    assert directory.next_writes(1) != []
    directory.end_write(H[24], FULL)
    assert not directory.is_disk_writable and directory.is_disk_on
    directory.observe(10 * RETRY_AFTER_S)
    directory.touch(H[24:25], 2)
    assert directory.next_writes(1) == [] and directory.presence(H[10]) is Presence.DISK
    assert directory.begin_read(H[10], 1) is not None


def test_writes_that_end_full_together_count_once() -> None:
    directory = directory_of(4, 100, kept=20)
    store(directory, *H[20:24])
    for block_hash, _ in directory.next_writes(4):
        directory.end_write(block_hash, FULL)
    assert directory.is_disk_writable and directory.disk_capacity == 20 and directory.num_unwritten == 4
    assert directory.counters.evictions[Tier.DISK] == 2


def test_a_retry_that_fails_otherwise_is_followed_by_another() -> None:
    directory = directory_of(4, 100, kept=20)
    fill(directory)
    delete_all(directory)
    directory.observe(RETRY_AFTER_S)
    store(directory, H[25])
    directory.next_writes(1)
    directory.end_write(H[24], FAILED)
    assert [block_hash for block_hash, _ in directory.next_writes(9)] == [H[25]]
    directory.end_write(H[25], DONE)
    assert presences(directory, H[25]) == ["host"] and directory.is_disk_writable


def test_a_file_that_cannot_be_deleted_keeps_its_room_and_is_tried_again_later() -> None:
    directory = directory_of(4, 2, kept=2)
    store(directory, H[2])
    directory.next_writes(1)
    assert directory.take_deletions() == (H[0],)
    directory.end_delete(H[0], FAILED)
    assert directory.take_deletions() == () and directory.num_deletions_due == 0
    assert directory.next_writes(1) == [], "another makes room meanwhile"
    assert directory.take_deletions() == (H[1],)
    directory.end_delete(H[1], DONE)
    assert directory.next_writes(1) != []
    directory.observe(REST_S)
    assert directory.take_deletions() == (H[0],)
    directory.check()


def test_a_stuck_file_does_not_keep_a_full_disk_from_its_retry() -> None:
    directory = directory_of(4, 100, kept=20)
    fill(directory)
    for block_hash in directory.take_deletions():
        directory.end_delete(block_hash, FAILED)
    directory.observe(RETRY_AFTER_S)
    assert directory.next_writes(1) == [], "one more goes for it"
    delete_all(directory)
    assert len(directory.next_writes(1)) == 1


def test_more_on_disk_than_there_is_room_for_goes_oldest_first() -> None:
    directory = directory_of(1, 3, kept=5)
    assert presences(directory, *H[:5]) == ["absent", "absent", "disk", "disk", "disk"]
    assert directory.take_deletions() == (H[0], H[1])


def test_deletions_come_in_bounded_portions() -> None:
    kept = tuple(number.to_bytes(2, "big") for number in range(3 * MAX_DELETIONS))
    directory = TierDirectory(TierConfig(1, 1, 1, 1, kept))
    sizes = [len(directory.take_deletions()) for _ in range(4)]
    assert sizes == [MAX_DELETIONS, MAX_DELETIONS, MAX_DELETIONS - 1, 0]


def fail_stores(directory: TierDirectory) -> None:
    for _ in range(MAX_FAILURES):
        directory.begin_store(H[20], 1)
        directory.end_store(H[20], FAILED)


def test_a_failing_host_tier_goes_off_and_comes_back_by_one_store() -> None:
    directory = directory_of(4, 4, kept=1)
    store(directory, H[1])
    directory.begin_load(H[1])
    fail_stores(directory)
    assert not directory.is_host_on and presences(directory, *H[:2]) == ["absent", "absent"]
    assert directory.begin_store(H[3], 1) is None and directory.begin_read(H[0], 1) is None
    assert directory.next_writes(4) == []
    directory.end_load(H[1], DONE)
    assert not directory.can_store
    directory.observe(FIRST_OFF_S)
    assert presences(directory, H[1]) == ["absent"] and directory.can_store, "a store tries, nobody waits for it"
    assert directory.begin_store(H[3], 1) is not None and directory.begin_store(H[4], 1) is None
    directory.end_store(H[3], DONE)
    assert directory.is_host_on and presences(directory, *H[:2]) == ["disk", "host"]


def test_a_failing_disk_goes_off_and_host_memory_stays_on() -> None:
    directory = directory_of(10, 20, kept=9)
    for block_hash in H[:MAX_FAILURES]:
        directory.begin_read(block_hash, 1)
    for block_hash in H[:MAX_FAILURES]:
        directory.end_read(block_hash, FAILED)
    store(directory, H[20], H[21])
    assert directory.is_host_on and not directory.is_disk_on
    assert presences(directory, H[8], H[20]) == ["absent", "host"] and directory.next_writes(4) == []
    directory.observe(FIRST_OFF_S)
    assert presences(directory, H[8]) == ["disk"]
    assert len(directory.next_writes(4)) == 1, "one block tries"
    assert presences(directory, H[8]) == ["absent"]
    directory.end_write(H[20], DONE)
    assert directory.is_disk_on and presences(directory, H[8]) == ["disk"]


def test_a_disk_whose_every_block_is_to_go_is_tried_by_a_deletion() -> None:
    directory = directory_of(2, 10, kept=10)
    store(directory, H[20])
    for block_hash in H[:10]:
        for _ in range(2):
            directory.observe(directory._now_s + 1000.0)
            if directory.begin_read(block_hash, 1) is not None:
                directory.end_read(block_hash, FAILED)
    assert directory.num_disk_blocks == 0 and directory.take_deletions() == () and not directory.is_disk_on
    directory.observe(directory._now_s + 1000.0)
    assert directory.take_deletions() == (H[0],) and directory.take_deletions() == ()
    directory.end_delete(H[0], DONE)
    assert directory.is_disk_on


def test_without_slots_there_are_no_tiers() -> None:
    directory = TierDirectory(TierConfig())
    assert not directory.is_host_on and not directory.is_disk_on and not directory.is_disk_writable
    assert not directory.can_store
    assert directory.begin_store(H[0], 1) is None and directory.begin_read(H[0], 1) is None
    assert directory.next_writes(9) == [] and directory.take_deletions() == ()
    directory.touch(H[:3], 1)
    assert presences(directory, *H[:3]) == ["absent"] * 3


def test_refusals_name_the_block_and_its_state() -> None:
    directory = directory_of(2, 2)
    store(directory, H[0])
    with pytest.raises(ValueError, match="42 has no slot"):
        directory.end_store(H[1], DONE)
    with pytest.raises(ValueError, match="41 is ready, it must be storing"):
        directory.end_store(H[0], DONE)
    with pytest.raises(ValueError, match="41 is not being loaded"):
        directory.end_load(H[0], DONE)
    with pytest.raises(InvalidDiskTransition, match="41 is not on disk, it must be writing"):
        directory.end_write(H[0], DONE)
    with pytest.raises(InvalidDiskTransition, match="42 is not on disk, it must be deleting"):
        directory.end_delete(H[1], DONE)
    with pytest.raises(ValueError, match="priority is 3"):
        directory.begin_store(H[1], 3)
    with pytest.raises(ValueError, match="twice"):
        TierDirectory(TierConfig(1, 4, 1, 1, (H[0], H[0])))
    with pytest.raises(ValueError, match="no disk tier"):
        TierDirectory(TierConfig(1, 0, 1, 1, (H[0],)))


def test_no_edge_joins_a_lost_slot_and_a_readable_one() -> None:
    directory = directory_of(1)
    store(directory, H[0])
    directory.begin_load(H[0])
    directory._host.lose(H[0])
    with pytest.raises(InvalidSlotTransition, match="lost"):
        directory._host.hold(H[0], is_write=False)
    with pytest.raises(InvalidSlotTransition, match="cannot go from lost to ready"):
        directory._host.settle(H[0])


def test_a_block_keeps_its_position_for_its_writes() -> None:
    directory = directory_of(4, 4, kept=1)
    directory.begin_store(H[5], 1, 7)
    directory.begin_read(H[0], 1, 3)
    assert (directory.position(H[5]), directory.position(H[0])) == (7, 3)
    with pytest.raises(ValueError, match="has no slot"):
        directory.position(H[1])
