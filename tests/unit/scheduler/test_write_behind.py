"""What is saved first, and that nothing waits whose content is gone."""

from __future__ import annotations

import pytest

from scheduler.kv_transfer import Purpose, TransferKind
from scheduler.write_behind import REUSED, WriteBehind
from tests.kv_tier_builders import compute, forget_cached, make_tiered
from tests.scheduler_builders import make_request, respecify

OUTPUT, PROMPT, KEYED = 0, 1, 2


def drained(waiting: WriteBehind) -> list[tuple[bytes, int]]:
    """All of them in their order, with their priority."""
    popped = []
    while (one := waiting.pop()) is not None:
        waiting.check()
        popped.append(one[:2])
    return popped


def test_found_again_before_keyed_prompts_before_prompts_before_output_and_the_oldest_first() -> None:
    waiting = WriteBehind()
    for name, priority in (("o", OUTPUT), ("p", PROMPT), ("k", KEYED)):
        for index in (1, 2):
            waiting.add(f"{name}{index}".encode(), priority, index)
    waiting.used(b"p2")
    waiting.used(b"o2")
    waiting.check()
    assert len(waiting) == 6
    names = [(b"p2", PROMPT), (b"o2", OUTPUT), (b"k1", KEYED), (b"k2", KEYED), (b"p1", PROMPT), (b"o1", OUTPUT)]
    assert drained(waiting) == names, "with the priority of retention each came with"
    assert len(waiting) == 0


def test_once_more_changes_nothing() -> None:
    waiting = WriteBehind()
    waiting.add(b"a", PROMPT, 4)
    waiting.add(b"b", PROMPT, 5)
    waiting.add(b"a", KEYED, 6)
    waiting.add(b"c", PROMPT, 7)
    for block_hash in (b"b", b"c", b"b"):
        waiting.used(block_hash)
    waiting.add(b"b", OUTPUT, 8)
    assert [waiting.pop() for _ in range(4)] == [(b"b", PROMPT, 5), (b"c", PROMPT, 7), (b"a", PROMPT, 4), None]


def test_who_is_not_here_is_neither_used_nor_dropped() -> None:
    waiting = WriteBehind()
    waiting.used(b"a")
    waiting.drop(b"a")
    assert waiting.pop() is None
    waiting.add(b"a", PROMPT, 0)
    waiting.used(b"a")
    waiting.drop(b"a")
    waiting.check()
    assert len(waiting) == 0 and waiting.pop() is None
    waiting.add(b"a", OUTPUT, 0)
    assert drained(waiting) == [(b"a", OUTPUT)]


def test_a_book_that_lies_is_caught() -> None:
    waiting = WriteBehind()
    waiting.add(b"a", PROMPT, 0)
    waiting._by_priority[REUSED][b"a"] = (PROMPT, 0)
    with pytest.raises(AssertionError):
        waiting.check()


def test_the_blocks_of_a_request_wait_by_what_they_hold() -> None:
    """Prompts of 8 and 4 tokens, the first under a key; the third block of the first is output."""
    kv = make_tiered()
    plain, keyed = make_request("plain", 4, 9), make_request("keyed", 8, 9)
    respecify(keyed, retention=KEYED)
    keyed.num_output_tokens = 4
    keyed.block_hashes.append(b"output")
    compute(kv, plain, 4)
    compute(kv, keyed, 12)
    kv.tiers.copy_in_background(is_idle=True)  # without a bandwidth one block at a time
    order = [transfer.block_hashes for transfer in kv.tiers.take_outgoing()]
    assert order == [(b"keyed:0",)]
    assert drained(kv.tiers._write_behind) == [(b"keyed:1", KEYED), (b"plain:0", PROMPT), (b"output", OUTPUT)]


def test_what_the_device_has_forgotten_does_not_wait() -> None:
    """No more blocks wait than the pool finds, however many were ever full."""
    kv = make_tiered(num_blocks=4)
    for index in range(10):
        request = make_request(f"r{index}", 12, 9)
        compute(kv, request, 12)
        kv.free(request)
        kv.check(())
        waiting = kv.tiers._write_behind
        assert len(waiting) == kv.pool.num_cached_blocks <= 4
    forget_cached(kv)
    assert len(waiting) == 0
    kv.tiers.copy_in_background(is_idle=True)
    assert not kv.tiers.take_outgoing()


def test_what_another_store_saved_is_passed_over() -> None:
    kv = make_tiered()
    request = make_request("r", 8, 9)
    compute(kv, request, 8)
    block = (request.block_hashes[0], request.block_ids[0], PROMPT, 0)
    assert kv.tiers.store([block], Purpose.FREES_BLOCKS) == 1
    kv.tiers.copy_in_background(is_idle=True)
    stores = [(t.purpose, t.block_hashes) for t in kv.tiers.take_outgoing() if t.kind is TransferKind.STORE]
    assert stores == [(Purpose.FREES_BLOCKS, (b"r:0",)), (Purpose.BACKGROUND, (b"r:1",))]
    kv.check([request])
