"""What becomes of a victim's blocks: saved before, saved now, or left to be computed again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler.kv_transfer import BlockOutcome, KVTransfer, Purpose, TransferKind
from scheduler.link import LinkSnapshot
from scheduler.request import Request
from scheduler.restore_price import RestorePrices
from scheduler.swap_out import PreemptionMode, SwapOut
from tests.kv_tier_builders import compute, end_all, make_latency, make_link, make_tiered, put_on_host
from tests.scheduler_builders import BLOCK_SIZE, make_request, respecify

NUM_TOKENS = 18
"""Of the victim: 4 full blocks, the last of output, and half a block."""
HASHES = (b"v:0", b"v:1", b"v:2", b"out")


class Cache:
    """A victim with a prompt of 12 tokens and 6 of output; computing a token and loading a block take 1 ms."""

    def __init__(
        self, mode: PreemptionMode = "auto", link: LinkSnapshot | None = None, num_host_slots: int = 16
    ) -> None:
        self.kv = make_tiered(16, num_host_slots)
        self.prices = RestorePrices(self.kv.tiers, make_latency(), BLOCK_SIZE, 64)
        self.swap_out = SwapOut(self.kv, self.prices, mode)
        link = make_link() if link is None else link
        self.kv.tiers.observe(link, 0.0)
        self.prices.observe(link, None)
        self.victim = make_request("v", 12, 99)
        self.victim.num_output_tokens = NUM_TOKENS - 12
        self.victim.block_hashes.append(HASHES[3])
        compute(self.kv, self.victim, NUM_TOKENS)

    def yield_(self, num_wanted: int) -> tuple[Sequence[KVTransfer], int]:
        """The copies it asks for, and the blocks that are free for others at once."""
        num_free = self.kv.pool.num_free_blocks
        self.swap_out.begin(self.victim, num_wanted)
        self.kv.free(self.victim)
        self.kv.check(())
        return self.kv.tiers.take_outgoing(), self.kv.pool.num_free_blocks - num_free

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.kv.tiers.use.num_preemptions)


def test_all_full_blocks_are_stored_and_stay_the_victims_until_they_have_left() -> None:
    cache = Cache()
    assert cache.swap_out.is_worth(cache.victim)
    block_ids = tuple(cache.victim.block_ids)
    (store,), num_freed = cache.yield_(0)
    assert (store.kind, store.purpose) == (TransferKind.STORE, Purpose.FREES_BLOCKS)
    assert store.block_hashes == HASHES and store.device_blocks == block_ids[:4]
    assert num_freed == 1, "the half block"
    assert cache.counts == {"swap": 1}
    end_all(cache.kv, [store])
    assert cache.kv.pool.num_free_blocks == 16
    assert all(map(cache.kv.tiers.is_on_host, HASHES))


@pytest.mark.parametrize(("num_wanted", "num_stored"), [(0, 4), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0), (9, 0)])
def test_what_is_wanted_at_once_is_free_at_once_from_the_end(num_wanted: int, num_stored: int) -> None:
    cache = Cache()
    transfers, num_freed = cache.yield_(num_wanted)
    assert [t.block_hashes for t in transfers] == ([HASHES[:num_stored]] if num_stored else [])
    assert num_freed == 5 - num_stored >= min(num_wanted, 5)
    assert cache.counts == {"swap" if num_stored else "recompute": 1}


def test_what_the_host_has_is_not_stored_again_and_frees_its_place() -> None:
    cache = Cache()
    put_on_host(cache.kv.tiers.directory, (HASHES[0], HASHES[2]))
    (store,), num_freed = cache.yield_(3)
    assert store.block_hashes == (HASHES[1], HASHES[3]), "two are saved, and the half block is free: those three"
    assert num_freed == 3


def test_with_write_behind_done_or_under_way_a_preemption_is_free() -> None:
    for outcome in (None, BlockOutcome.DONE):
        cache = Cache(link=make_link(1e9, 1e9))
        for _ in range(4):
            cache.kv.tiers.copy_in_background(is_idle=True)
        stores = cache.kv.tiers.take_outgoing()
        assert sorted(h for t in stores for h in t.block_hashes) == sorted(HASHES)
        if outcome is not None:
            end_all(cache.kv, stores, outcome)
        assert not cache.swap_out.is_worth(cache.victim)
        assert cache.yield_(0) == ((), 5 if outcome else 1)
        assert cache.counts == {"free": 1}


def test_blocks_that_others_use_stay_where_they_are() -> None:
    cache = Cache()
    other = make_request("w", 12, 9)
    respecify(other, block_hashes=HASHES[:2])
    other.block_hashes = list(HASHES[:2])
    compute(cache.kv, other, 12)
    cache.swap_out.begin(cache.victim, 0)
    assert [t.block_hashes for t in cache.kv.tiers.take_outgoing()] == [HASHES[2:]]


def test_the_priority_of_a_block_is_that_of_its_request_and_of_output_the_lowest() -> None:
    cache = Cache(num_host_slots=4)
    respecify(cache.victim, retention=2)
    stores, _ = cache.yield_(0)
    end_all(cache.kv, stores)
    directory = cache.kv.tiers.directory
    put_on_host(directory, [b"new"])
    known = [h for h in HASHES if directory.is_known(h)]
    assert known == list(HASHES[:3]), "output goes first"


SLOW_STORES = make_link(queued_store_bytes=13_000)
"""4 blocks: 17 ms to leave, 4 to come back; computing them takes 16."""


@pytest.mark.parametrize(
    ("mode", "link", "is_stored"),
    [
        ("auto", None, True),
        ("auto", SLOW_STORES, False),
        ("swap", SLOW_STORES, True),
        ("recompute", None, False),
    ],
)
def test_the_mode_says_who_decides(mode: PreemptionMode, link: LinkSnapshot | None, is_stored: bool) -> None:
    cache = Cache(mode, link)
    assert cache.swap_out.is_worth(cache.victim) is is_stored
    transfers, num_freed = cache.yield_(0)
    assert (len(transfers), num_freed) == ((1, 1) if is_stored else (0, 5))
    assert cache.counts == {"swap" if is_stored else "recompute": 1}


def test_the_price_is_of_the_blocks_from_the_first_that_is_not_saved() -> None:
    """Two of four: 2 ms to leave and 2 to come back behind the queue, against 8 to compute them."""
    for queued, is_stored in ((0, True), (3_900, True), (4_100, False)):
        cache = Cache(link=make_link(queued_store_bytes=queued))
        put_on_host(cache.kv.tiers.directory, HASHES[:2])
        assert cache.swap_out.is_worth(cache.victim) is is_stored


def test_a_full_host_takes_as_many_as_it_has_places_for_the_first_ones_first() -> None:
    cache = Cache(num_host_slots=2)
    (store,), num_freed = cache.yield_(0)
    assert store.block_hashes == HASHES[:2] and num_freed == 3
    assert cache.counts == {"swap": 1}


def test_a_host_that_is_off_takes_none() -> None:
    cache = Cache("swap")
    directory = cache.kv.tiers.directory
    for index in range(99):
        if not directory.is_host_on:
            break
        block_hash = b"bad%d" % index
        assert directory.begin_store(block_hash, 1) is not None
        directory.end_store(block_hash, BlockOutcome.FAILED)
    assert not directory.is_host_on and not cache.swap_out.is_worth(cache.victim)
    assert cache.yield_(0) == ((), 5)
    assert cache.counts == {"recompute": 1}


def test_who_does_not_read_the_cache_is_computed_again() -> None:
    for saved in ((), HASHES):
        cache = Cache("swap")
        put_on_host(cache.kv.tiers.directory, saved)
        respecify(cache.victim, reads_prefix_cache=False)
        assert cache.yield_(0) == ((), 5)
        assert cache.counts == {"recompute": 1}, "whatever the host has"


def test_a_victim_whose_blocks_are_still_coming_has_nothing_to_save() -> None:
    """They are on the host; what it was to compute upon them is not computed yet."""
    cache = Cache()
    late: Request = make_request("late", 9, 9)
    put_on_host(cache.kv.tiers.directory, late.block_hashes)
    found = cache.kv.get_computed_blocks(late)
    assert found == (None, None)
    cache.kv.allocate_slots(late, 9, found)
    late.load_ids |= {cache.kv.tiers.load(late.block_hashes, late.block_ids[:2], 1.0)}
    late.num_computed_tokens = 8
    loads = cache.kv.tiers.take_outgoing()
    assert not cache.swap_out.is_worth(late)
    cache.swap_out.begin(late, 0)
    assert not cache.kv.tiers.take_outgoing() and cache.counts == {"free": 1}
    cache.kv.free(late)
    end_all(cache.kv, loads)
    cache.kv.check([cache.victim])


def test_without_tiers_nothing_is_stored_or_counted() -> None:
    cache = Cache(num_host_slots=0)
    assert not cache.swap_out.is_worth(cache.victim)
    assert cache.yield_(0) == ((), 5)
    assert cache.counts == {}
