"""Tables of requests: room, hits, forks, giving back."""

import pytest

from scheduler.block_pool import OutOfBlocks
from scheduler.kv_cache_manager import KVCacheManager
from scheduler.output import BlockCopy
from scheduler.request import Request
from tests.scheduler_builders import BLOCK_SIZE, make_request


def manager(num_blocks: int, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks, BLOCK_SIZE, caching)


def computed(kv: KVCacheManager, request: Request) -> Request:
    """Start it and compute all its known tokens."""
    hits = kv.get_computed_blocks(request)
    assert kv.allocate_slots(request, request.num_tokens, hits) is not None
    request.num_computed_tokens = request.num_tokens
    kv.commit(request)
    return request


def test_room_grows_by_whole_blocks() -> None:
    kv, request = manager(3), make_request("a", 5, 9)
    assert kv.allocate_slots(request, 5) == (0, 1)
    assert kv.allocate_slots(request, 8) == ()
    assert kv.allocate_slots(request, 9) == (2,)
    assert kv.allocate_slots(request, 13) is None
    assert request.block_ids == [0, 1, 2]


def test_a_known_prefix_is_shared_and_counted_in_tokens() -> None:
    kv = manager(8)
    first = computed(kv, make_request("a", 11, 1, prompt="p"))
    second = make_request("b", 10, 1, prompt="p")
    assert kv.get_computed_blocks(second) == (0, 1)
    assert kv.num_blocks_to_take(second, 10, (0, 1)) == 1
    computed(kv, second)
    assert second.block_ids == [0, 1, 3]
    assert (kv.num_queried_tokens, kv.num_hit_tokens) == (21, 8)
    kv.check([first, second])


def test_the_last_token_is_never_a_hit() -> None:
    kv = manager(8)
    computed(kv, make_request("a", 8, 1, prompt="p"))
    assert kv.get_computed_blocks(make_request("b", 8, 1, prompt="p")) == (0,)
    assert kv.get_computed_blocks(make_request("c", 9, 1, prompt="p")) == (0, 1)


def test_a_prefix_survives_its_owner_until_its_block_is_needed() -> None:
    kv = manager(3)
    kv.free(computed(kv, make_request("a", 12, 1, prompt="p")))
    assert kv.get_computed_blocks(make_request("b", 12, 1, prompt="p")) == (0, 1)
    assert kv.allocate_slots(make_request("c", 4, 1), 4) == (2,), "the end of a table goes first"
    assert kv.get_computed_blocks(make_request("d", 12, 1, prompt="p")) == (0, 1)
    kv.allocate_slots(make_request("e", 4, 1), 4)
    assert kv.get_computed_blocks(make_request("f", 12, 1, prompt="p")) == (0,)


def test_reviving_a_cached_block_uses_up_a_free_one() -> None:
    kv = manager(2)
    kv.free(computed(kv, make_request("a", 8, 1, prompt="p")))
    request = make_request("b", 9, 1, prompt="p")
    hits = kv.get_computed_blocks(request)
    assert kv.num_blocks_to_take(request, 9, hits) == 3
    assert kv.allocate_slots(request, 9, hits) is None
    assert not request.block_ids and kv.pool.num_used_blocks == 0


@pytest.mark.parametrize("caching", [True, False])
def test_a_request_that_needs_every_row_reads_no_cache_but_fills_it(caching: bool) -> None:
    kv = manager(8, caching)
    computed(kv, make_request("a", 9, 1, prompt="p", reads_prefix_cache=False))
    assert kv.get_computed_blocks(make_request("b", 9, 1, prompt="p", reads_prefix_cache=False)) == ()
    assert kv.get_computed_blocks(make_request("c", 9, 1, prompt="p")) == ((0, 1) if caching else ())
    assert kv.num_queried_tokens == 0


def test_a_fork_shares_full_blocks_and_copies_the_block_of_the_last_prompt_token() -> None:
    kv = manager(8)
    leader = computed(kv, make_request("a", 7, 9))
    kv.allocate_slots(leader, 9)
    child = make_request("b", 7, 9, prompt="a")
    assert kv.fork(leader, child) == (BlockCopy(source=1, target=3),)
    assert child.block_ids == [0, 3]
    assert [kv.pool.num_references(b) for b in (0, 1, 2, 3)] == [2, 2, 1, 1]
    child.num_computed_tokens = 6
    kv.check([leader, child], held_block_ids=[1])


def test_a_fork_copies_nothing_where_the_last_prompt_token_opens_a_block() -> None:
    kv = manager(8)
    leader = computed(kv, make_request("a", 5, 9))
    child = make_request("b", 5, 9, prompt="a")
    assert kv.fork(leader, child) == ()
    assert (leader.block_ids, child.block_ids) == ([0, 1], [0, 2])


def test_a_fork_needs_a_free_block() -> None:
    kv = manager(2)
    leader, child = computed(kv, make_request("a", 7, 9)), make_request("b", 7, 9, prompt="a")
    with pytest.raises(OutOfBlocks):
        kv.fork(leader, child)
    kv.check([leader])


def test_detached_blocks_stay_used_until_released() -> None:
    kv = manager(2)
    request = computed(kv, make_request("a", 8, 1))
    blocks = kv.detach(request)
    kv.check([], blocks)
    assert kv.pool.num_free_blocks == 0
    kv.release(blocks)
    kv.check([])
    assert kv.pool.num_free_blocks == 2


def test_check_notices_a_second_writer() -> None:
    kv = manager(2)
    first, second = make_request("a", 4, 1), make_request("b", 4, 1)
    kv.allocate_slots(first, 4)
    second.block_ids.extend(first.block_ids)
    kv.pool.acquire(first.block_ids)
    with pytest.raises(AssertionError, match="two tables"):
        kv.check([first, second])


def test_check_notices_a_leak() -> None:
    kv = manager(2)
    kv.allocate_slots(make_request("a", 4, 1), 4)
    with pytest.raises(AssertionError, match="1 references, 0 owners"):
        kv.check([])
