"""Copies under way: leases of their ends, what their ends mean, and what is copied while nobody waits."""

from __future__ import annotations

import pytest

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.kv_tiers import MAX_STORED_BLOCKS, MAX_WRITES, MAX_WRITTEN_BLOCKS, first_missing
from scheduler.kv_transfer import BlockOutcome, KVTransfer, Purpose, TransferKind, TransferResult
from scheduler.request import Request
from scheduler.tier_directory import Presence
from tests.kv_tier_builders import (
    DONE,
    compute,
    end_all,
    end_of,
    forget_cached,
    make_link,
    make_tiered,
    put_on_host,
)
from tests.scheduler_builders import make_request

BAD = [BlockOutcome.FAILED, BlockOutcome.CORRUPT]


def loading(kv: KVCacheManager, name: str = "r", num_tokens: int = 9) -> tuple[Request, KVTransfer]:
    """A request whose full blocks come from the host, and the load that brings them."""
    request = make_request(name, num_tokens, 9)
    put_on_host(kv.tiers.directory, request.block_hashes)
    found = kv.get_computed_blocks(request)
    assert set(found) == {None}
    kv.allocate_slots(request, num_tokens, found)
    kv.tiers.load(request.block_hashes[: len(found)], request.block_ids[: len(found)], 1.0)
    (load,) = kv.tiers.take_outgoing()
    return request, load


def test_a_load_holds_its_blocks_and_slots_until_its_result() -> None:
    kv = make_tiered(num_blocks=4, num_host_slots=2)
    request, load = loading(kv)
    assert load.kind is TransferKind.LOAD and load.purpose is Purpose.ADMITTED and load.deadline_s == 1.0
    assert load.device_blocks == tuple(request.block_ids[:2])
    assert [kv.pool.num_references(b) for b in request.block_ids] == [2, 2, 1]
    kv.check([request])
    kv.free(request)  # it left; the bytes are still on their way
    assert kv.pool.num_free_blocks == 2
    assert kv.tiers.directory.begin_store(b"other", 2) is None, "both slots are being read"
    kv.check(())
    end_all(kv, [load])
    assert kv.pool.num_free_blocks == 4
    assert kv.tiers.directory.begin_store(b"other", 2) is not None


def test_a_block_is_found_when_it_has_arrived_and_shared_before() -> None:
    kv = make_tiered()
    request, load = loading(kv)
    hashes = request.block_hashes
    assert [kv.pool.lookup(h) for h in hashes] == [None, None]
    coming = [kv.tiers.coming(h) for h in hashes]
    assert [(c.block_id, c.transfer_id) for c in coming if c] == [(b, load.transfer_id) for b in load.device_blocks]
    assert kv.tiers.load_ids(hashes) == {load.transfer_id} and kv.tiers.load_ids([b"other"]) == set()
    sharer = make_request("sharer", 9, 9, prompt="r")
    assert kv.get_computed_blocks(sharer) == load.device_blocks, "no second load"
    end_all(kv, [load])
    assert [kv.pool.lookup(h) for h in hashes] == list(load.device_blocks)
    assert kv.tiers.coming(hashes[0]) is None and kv.get_computed_blocks(sharer) == load.device_blocks
    kv.check([request])


@pytest.mark.parametrize("outcome", BAD)
def test_what_did_not_arrive_is_found_nowhere_and_the_rest_is(outcome: BlockOutcome) -> None:
    kv = make_tiered()
    request, load = loading(kv, num_tokens=13)
    ended, failed = kv.tiers.end([TransferResult(load.transfer_id, (DONE, outcome, DONE))])
    assert ended == failed == {load.transfer_id}
    found = [kv.pool.lookup(h) for h in request.block_hashes]
    assert found == [load.device_blocks[0], None, load.device_blocks[2]]
    assert kv.tiers.directory.presence(request.block_hashes[1]) is Presence.ABSENT
    assert kv.tiers.directory.presence(request.block_hashes[2]) is Presence.HOST
    assert kv.tiers.use.num_failed_loads == 1 and kv.tiers.use.num_loaded_blocks == 2
    kv.check([request])


def test_a_load_is_expected_by_the_queue_before_it_and_when_overdue_as_long_again() -> None:
    kv = make_tiered()
    kv.tiers.observe(make_link(queued_load_bytes=5_000), 10.0)
    _, first = loading(kv, "first")
    _, second = loading(kv, "second", 13)
    assert kv.tiers.wait_s([first.transfer_id]) == pytest.approx(0.007)
    assert kv.tiers.wait_s([second.transfer_id]) == pytest.approx(0.010)
    assert kv.tiers.wait_s([first.transfer_id, second.transfer_id]) == pytest.approx(0.010)
    kv.tiers.observe(make_link(), 10.008)
    assert kv.tiers.wait_s([first.transfer_id]) == pytest.approx(0.001)
    assert kv.tiers.wait_s([second.transfer_id]) == pytest.approx(0.002)
    kv.tiers.observe(make_link(), 10.107)
    assert kv.tiers.wait_s([first.transfer_id]) == pytest.approx(0.100)


def test_a_store_keeps_its_block_though_its_request_left() -> None:
    kv = make_tiered(num_blocks=4)
    request = make_request("r", 8, 9)
    compute(kv, request, 8)
    blocks = [(h, b, 1, 0) for h, b in zip(request.block_hashes, request.block_ids, strict=True)]
    assert kv.tiers.store(blocks, Purpose.FREES_BLOCKS) == 2
    (store,) = kv.tiers.take_outgoing()
    kv.free(request)
    assert kv.pool.num_free_blocks == 2 and kv.tiers.leased_block_ids() == list(store.device_blocks)
    assert not kv.tiers.is_on_host(request.block_hashes[0]), "not before it is there"
    kv.check(())
    end_all(kv, [store])
    assert kv.pool.num_free_blocks == 4 and kv.tiers.is_on_host(request.block_hashes[1])


@pytest.mark.parametrize("outcome", BAD)
def test_a_store_that_failed_left_nothing(outcome: BlockOutcome) -> None:
    kv = make_tiered()
    request = make_request("r", 8, 9)
    compute(kv, request, 8)
    kv.tiers.store([(request.block_hashes[0], request.block_ids[0], 1, 0)], Purpose.BACKGROUND)
    ended, failed = kv.tiers.end([end_of(t, outcome) for t in kv.tiers.take_outgoing()])
    assert len(ended) == 1 and not failed, "nobody computes upon a store"
    assert not kv.tiers.directory.is_known(request.block_hashes[0])
    assert kv.tiers.directory.num_host_used == 0
    kv.check([request])


def test_results_are_judged_before_anything_changes() -> None:
    kv = make_tiered()
    request, load = loading(kv)
    good = end_of(load)
    for results, message in (
        ([TransferResult(99, (DONE,))], "99, which is not under way"),
        ([good, good], "two results"),
        ([TransferResult(load.transfer_id, (DONE,))], "1 outcomes of transfer 0, which has 2 blocks"),
    ):
        with pytest.raises(ValueError, match=message):
            kv.tiers.require(results)
    kv.check([request])
    end_all(kv, [load])
    with pytest.raises(ValueError, match="not under way"):
        kv.tiers.require([good])


def full_blocks(kv: KVCacheManager, num_blocks: int, name: str = "r") -> Request:
    request = make_request(name, 4 * num_blocks, 9)
    compute(kv, request, 4 * num_blocks)
    return request


def test_write_behind_is_two_transfers_at_a_time_of_no_more_than_a_bound() -> None:
    kv = make_tiered(64, 64)
    request = full_blocks(kv, 50)
    kv.tiers.observe(make_link(d2h=1e9), 0.0)
    sizes: list[int] = []
    stores: list[KVTransfer] = []
    for _ in range(4):
        kv.tiers.copy_in_background(is_idle=False)
        stores += kv.tiers.take_outgoing()
        sizes.append(len(stores))
    assert sizes == [1, 2, 2, 2], "one a step"
    assert [len(t.block_hashes) for t in stores] == [MAX_STORED_BLOCKS] * 2
    assert not kv.tiers.has_background_work(), "not before one of them has ended"
    end_all(kv, stores[:1])
    assert kv.tiers.has_background_work()
    kv.tiers.copy_in_background(is_idle=False)
    (third,) = kv.tiers.take_outgoing()
    assert [third.block_hashes[0], third.block_hashes[-1]] == [b"r:32", b"r:47"], "in the order they became full"
    kv.check([request])


@pytest.mark.parametrize(("d2h", "num_blocks"), [(1e9, 16), (800_000.0, 16), (500_000.0, 10), (150_000.0, 3), (1e3, 1)])
def test_a_slow_link_is_kept_busy_for_20_ms_at_most(d2h: float, num_blocks: int) -> None:
    kv = make_tiered(64, 64)
    full_blocks(kv, 50)
    kv.tiers.observe(make_link(d2h=d2h), 0.0)
    kv.tiers.copy_in_background(is_idle=False)
    (store,) = kv.tiers.take_outgoing()
    assert len(store.block_hashes) == num_blocks
    assert store.purpose is Purpose.BACKGROUND


def test_beside_weights_that_stores_would_slow_down_they_wait_for_an_idle_step() -> None:
    kv = make_tiered()
    full_blocks(kv, 2)
    kv.tiers.observe(make_link(num_streamed_layers=1, coupling=0.5, kv_link_share=0.25), 0.0)
    kv.tiers.copy_in_background(is_idle=False)
    assert not kv.tiers.take_outgoing()
    assert kv.tiers.has_background_work(), "an idle step would find some"
    kv.tiers.copy_in_background(is_idle=True)
    assert len(kv.tiers.take_outgoing()) == 1


def test_it_settles_when_all_is_saved_and_not_before() -> None:
    kv = make_tiered()
    assert kv.tiers.has_background_work(), "nobody has looked yet"
    kv.tiers.copy_in_background(is_idle=True)
    assert not kv.tiers.has_background_work()
    full_blocks(kv, 1)
    assert kv.tiers.has_background_work()
    kv.tiers.copy_in_background(is_idle=True)
    assert kv.tiers.has_background_work(), "there may be more"
    kv.tiers.copy_in_background(is_idle=True)
    assert not kv.tiers.has_background_work()
    end_all(kv, kv.tiers.take_outgoing())
    assert kv.tiers.has_background_work(), "its end may have made room"


def test_what_is_on_the_host_is_written_and_the_oldest_goes_for_it() -> None:
    kv = make_tiered(64, 64, num_disk_blocks=20)
    names = [b"h%d" % index for index in range(20)]
    put_on_host(kv.tiers.directory, names)
    kv.tiers.copy_in_background(is_idle=False)
    writes = kv.tiers.take_outgoing()
    assert [t.kind for t in writes] == [TransferKind.WRITE] * MAX_WRITES
    assert [h for t in writes for h in t.block_hashes] == names[: MAX_WRITES * MAX_WRITTEN_BLOCKS]
    assert all(t.purpose is Purpose.BACKGROUND and not t.device_blocks for t in writes)
    kv.tiers.copy_in_background(is_idle=False)
    assert not kv.tiers.take_outgoing(), "no more than so many at a time"
    end_all(kv, writes)
    put_on_host(kv.tiers.directory, [b"late"])
    kinds: list[TransferKind] = []
    for _ in range(4):
        kv.tiers.copy_in_background(is_idle=False)
        transfers = kv.tiers.take_outgoing()
        kinds += [t.kind for t in transfers]
        end_all(kv, transfers)
    assert kinds == [TransferKind.WRITE, TransferKind.DELETE, TransferKind.WRITE], "4 fit, and one goes for the 21st"
    assert kv.tiers.directory.num_disk_blocks == 20
    kv.check(())


def test_nothing_ever_moves_without_a_host() -> None:
    kv = make_tiered(num_host_slots=0)
    request = full_blocks(kv, 3)
    kv.tiers.used(request.block_hashes, 1)
    kv.tiers.copy_in_background(is_idle=True)
    assert not kv.tiers.take_outgoing() and not kv.tiers.has_background_work() and not kv.tiers.is_on
    kv.free(request)
    forget_cached(kv)
    kv.check(())


def test_without_the_prefix_cache_there_are_no_tiers() -> None:
    kv = KVCacheManager(4, 4, enable_prefix_caching=False, tiers=make_tiered().tiers.config)
    assert not kv.tiers.is_on and kv.tiers.directory.begin_store(b"a", 1) is None


@pytest.mark.parametrize("is_noted", [True, False])
def test_of_a_prefix_that_was_used_the_head_stays_longest(is_noted: bool) -> None:
    kv = make_tiered(16, 5)
    request = make_request("r", 12, 9)
    request.num_output_tokens = 8
    request.block_hashes += [b"out:0", b"out:1"]
    compute(kv, request, 20)
    directory, hashes = kv.tiers.directory, list(request.block_hashes)
    put_on_host(directory, hashes[:3], 1)
    put_on_host(directory, hashes[3:], 0)
    if is_noted:
        kv.note_use(request)
    gone: list[bytes] = []
    for index in range(5):
        put_on_host(directory, [b"key%d" % index], 2)
        gone += [h for h in hashes if not directory.is_known(h) and h not in gone]
    assert gone == ([*hashes[3:][::-1], *hashes[:3][::-1]] if is_noted else [*hashes[3:], *hashes[:3]])


@pytest.mark.parametrize(("blocks", "expected"), [((), 0), ((3, 4), 2), ((3, None, 4), 1), ((None,), 0)])
def test_the_first_missing_block(blocks: tuple[int | None, ...], expected: int) -> None:
    assert first_missing(blocks) == expected


def test_leases_that_do_not_agree_are_caught() -> None:
    kv = make_tiered()
    request, load = loading(kv)
    kv.pool.release(load.device_blocks)
    with pytest.raises(AssertionError, match="references"):
        kv.check([request])
    kv.pool.acquire(load.device_blocks)
    kv.check([request])
    del kv.tiers._coming[request.block_hashes[0]]
    with pytest.raises(AssertionError, match="loads that bring them"):
        kv.tiers.check()


def put_on_disk(kv: KVCacheManager, hashes: list[bytes]) -> list[KVTransfer]:
    """They are a prefix; the writes that brought them there."""
    for position, block_hash in enumerate(hashes):
        assert kv.tiers.directory.begin_store(block_hash, 1, position) is not None
        kv.tiers.directory.end_store(block_hash, DONE)
    kv.tiers.copy_in_background(is_idle=False)
    transfers = kv.tiers.take_outgoing()
    end_all(kv, transfers)
    return [transfer for transfer in transfers if transfer.kind is TransferKind.WRITE]


def test_what_a_request_gives_back_is_touched_where_the_disk_has_it() -> None:
    kv = make_tiered(16, 8, num_disk_blocks=8)
    request = make_request("r", 16, 9)
    compute(kv, request, 16)
    hashes = list(request.block_hashes)
    kv.note_use(request)
    assert not kv.tiers.take_outgoing(), "none of them is there"
    (write,) = put_on_disk(kv, hashes[:3])
    assert (write.block_hashes, write.positions) == (tuple(hashes[:3]), (0, 1, 2))
    while kv.tiers.has_background_work():
        kv.tiers.copy_in_background(is_idle=True)
        end_all(kv, kv.tiers.take_outgoing())
    failures = dict(kv.tiers.directory.counters.failures)
    kv.note_use(request)
    assert kv.tiers.has_background_work(), "a step takes it along"
    (touch,) = kv.tiers.take_outgoing()
    assert touch.kind is TransferKind.TOUCH and touch.purpose is Purpose.BACKGROUND
    assert (touch.block_hashes, touch.positions) == (tuple(hashes), (0, 1, 2, 3)), "the last was written meanwhile"
    assert not touch.host_slots and not touch.device_blocks and touch.transfer_id not in kv.tiers._ready_s
    for outcome in (BlockOutcome.FAILED,) * 20:
        kv.check([request])
        end_all(kv, [touch], outcome)
        kv.note_use(request)
        (touch,) = kv.tiers.take_outgoing()
    assert kv.tiers.directory.is_disk_on and kv.tiers.directory.counters.failures == failures, "no breaker counts it"


def test_only_files_that_nothing_is_done_with_are_touched() -> None:
    kv = make_tiered(16, 8, num_disk_blocks=3, disk_hashes=(b"r:0", b"r:1", b"r:2"))
    request = make_request("r", 16, 9)
    compute(kv, request, 16)
    assert kv.tiers.directory.begin_read(b"r:1", 1, 1) is not None
    kv.note_use(request)
    (touch,) = kv.tiers.take_outgoing()
    assert (touch.block_hashes, touch.positions) == ((b"r:0", b"r:2"), (0, 2))
    for _ in range(8):
        kv.tiers.directory._disk_breaker.begin(TransferKind.READ, b"x")
        kv.tiers.directory._disk_breaker.end(TransferKind.READ, b"x", BlockOutcome.FAILED)
    kv.note_use(request)
    assert not kv.tiers.take_outgoing(), "the disk is off"


def test_without_a_disk_nothing_is_touched() -> None:
    kv = make_tiered(16, 8)
    request = make_request("r", 16, 9)
    compute(kv, request, 16)
    put_on_host(kv.tiers.directory, request.block_hashes)
    kv.note_use(request)
    assert not kv.tiers.take_outgoing()


def test_positions_come_along_from_the_request_to_the_file() -> None:
    """Stored behind the request, swapped out or read from the disk: the write that follows names the position."""
    kv = make_tiered(16, 8, num_disk_blocks=8)
    request = make_request("r", 16, 9)
    compute(kv, request, 16)
    kv.tiers.observe(make_link(), 0.0)
    positions: dict[bytes, int] = {}
    while kv.tiers.has_background_work():
        kv.tiers.copy_in_background(is_idle=True)
        for transfer in (transfers := kv.tiers.take_outgoing()):
            positions.update(zip(transfer.block_hashes, transfer.positions, strict=False))
        end_all(kv, transfers)
    assert positions == {block_hash: index for index, block_hash in enumerate(request.block_hashes)}
    kv = make_tiered(16, 8, num_disk_blocks=8, disk_hashes=(b"a", b"b"))
    kv.tiers.read([(b"a", 5), (b"b", 6)], 1)
    assert [kv.tiers.directory.position(block_hash) for block_hash in (b"a", b"b")] == [5, 6]
