"""Reference counts, the order of reuse, and hits."""

import pytest

from scheduler.block_pool import BlockPool, OutOfBlocks, ReleasePreview


def test_blocks_go_out_from_the_lowest_id() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([1])
    assert pool.allocate(2) == [1, 3]


def test_a_freed_prefix_is_reused_last_and_the_longest_unused_first() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    for block, name in ((0, b"a"), (1, b"b")):
        pool.register(block, name)
    pool.release([1, 0, 2])
    assert pool.num_cached_blocks == 2
    assert pool.allocate(3) == [2, 3, 1]
    assert pool.lookup(b"b") is None and pool.lookup(b"a") == 0


def test_a_hit_revives_a_free_block() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.register(0, b"a")
    pool.release([0])
    pool.acquire([0])
    assert (pool.num_free_blocks, pool.num_references(0), pool.lookup(b"a")) == (0, 1, 0)
    pool.check()


def test_a_lease_keeps_a_block_after_its_owner_left() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.acquire([0])
    pool.release([0])
    with pytest.raises(OutOfBlocks, match="1 blocks are asked for, 0 are free"):
        pool.allocate(1)
    pool.release([0])
    assert pool.num_free_blocks == 1


def test_a_second_block_with_the_same_content_stays_unregistered() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    assert pool.register(0, b"a") and not pool.register(1, b"a")
    pool.release([0, 1])
    assert (pool.num_cached_blocks, pool.lookup(b"a")) == (1, 0)
    pool.check()


def test_misuse_is_refused() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="cannot be released"):
        pool.release([0])
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.acquire([0])
    with pytest.raises(ValueError, match="cannot be registered"):
        pool.register(0, b"a")
    with pytest.raises(ValueError, match="num_blocks is 0"):
        BlockPool(0)


def test_a_preview_counts_last_references_only_and_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(3)
    pool.acquire([1])
    preview = ReleasePreview(pool, keep=(2,))
    assert [preview.drop([0, 1, 2]), preview.drop([1])] == [1, 1]
    assert pool.num_free_blocks == 0


def test_check_notices_a_lost_block() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool._num_references[0] = 0
    with pytest.raises(AssertionError, match="lost"):
        pool.check()
