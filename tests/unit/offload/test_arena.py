"""The arena: a hard cap, two ends, a ledger that adds up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.arena import ALIGNMENT_BYTES, Arena, ArenaFull, aligned
from offload.errors import OffloadError


def test_pieces_come_from_both_ends_aligned_and_apart() -> None:
    arena = Arena(4096)
    kv, fixed, slot = arena.take("kv", 300), arena.take("fixed", 10, from_end=True), arena.take("slots", 512, True)
    base = arena.region.data_ptr()
    assert [view.data_ptr() - base for view in (kv, fixed, slot)] == [0, 4096 - 256, 4096 - 256 - 512]
    assert [len(view) for view in (kv, fixed, slot)] == [300, 10, 512]
    assert base % ALIGNMENT_BYTES == 0
    assert arena.ledger() == {"kv": 512, "fixed": 256, "slots": 512, "free": 4096 - 1280}
    arena.check()


def test_over_the_cap_raises_and_names_everyone() -> None:
    arena = Arena(2048)
    arena.take("fixed", 1024, from_end=True)
    arena.reserve("workspace", 500)
    with pytest.raises(ArenaFull, match=r"kv needs 768 .* 512 of 2,048 are free .*workspace 512, fixed 1,024.*-memory"):
        arena.take("kv", 513)
    arena.take("kv", 512)
    with pytest.raises(ArenaFull, match="slots needs 256 bytes of device memory, 0 of 2,048 are free"):
        arena.take("slots", 1, from_end=True)
    arena.release("workspace", 500)
    arena.take("slots", 1, from_end=True)
    arena.check()


def test_a_capacity_that_is_no_multiple_of_the_alignment_loses_the_rest() -> None:
    arena = Arena(1000)
    assert arena.free_bytes == 768
    with pytest.raises(ArenaFull):
        arena.take("kv", 769)
    last = arena.take("fixed", 256, from_end=True)
    assert last.data_ptr() == arena.region.data_ptr() + 512
    assert sum(arena.ledger().values()) == 1000
    arena.check()


def test_the_border_moves_by_giving_back_and_taking() -> None:
    arena = Arena(8 * 256)
    arena.take("layers", 256, from_end=True)
    first = arena.take("layers", 512, from_end=True)
    arena.take("kv", 256)
    arena.give_back("layers", 512, from_end=True)
    arena.take("kv", 1000)
    assert arena.ledger() == {"layers": 256, "kv": 256 + 1024, "free": 512}
    arena.give_back("kv", 256)
    assert arena.take("layers", 512, from_end=True).data_ptr() == first.data_ptr()
    arena.check()


def test_only_what_lies_innermost_is_given_back() -> None:
    arena = Arena(4096)
    arena.take("fixed", 256, from_end=True)
    arena.take("slots", 256, from_end=True)
    with pytest.raises(OffloadError, match=r"fixed gives back 256 bytes, innermost .* is 256 bytes of slots"):
        arena.give_back("fixed", 256, from_end=True)
    with pytest.raises(OffloadError, match=r"innermost at its end of the arena is nothing"):
        arena.give_back("slots", 256)
    with pytest.raises(OffloadError, match="slots gives back 512 bytes"):
        arena.give_back("slots", 257, from_end=True)
    with pytest.raises(OffloadError, match="workspace releases 256 bytes, 0 are reserved"):
        arena.release("workspace", 1)
    with pytest.raises(ValueError, match="takes 0 bytes"):
        arena.take("kv", 0)
    with pytest.raises(ValueError, match="an arena of 0 bytes"):
        Arena(0)
    arena.check()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 900), st.booleans(), st.booleans()), max_size=40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_two_pieces_overlap_and_the_ledger_is_the_sum(calls: list[tuple[str, int, bool, bool]]) -> None:
    arena = Arena(6000, lambda size: torch.zeros(size, dtype=torch.uint8))
    held: dict[bool, list[tuple[str, int]]] = {False: [], True: []}
    for owner, size, from_end, takes in calls:
        if takes:
            wanted = aligned(size)
            if wanted > arena.free_bytes:
                with pytest.raises(ArenaFull):
                    arena.take(owner, size, from_end)
                continue
            view = arena.take(owner, size, from_end)
            assert not view.any(), "somebody else's bytes"
            view.fill_(1)
            held[from_end].append((owner, size))
        elif held[from_end]:
            owner, size = held[from_end].pop()
            start = sum(aligned(other) for _, other in held[from_end])
            start = 6000 // 256 * 256 - start - aligned(size) if from_end else start
            arena.region[start : start + size].zero_()
            arena.give_back(owner, size, from_end)
        arena.check()
    sizes: dict[str, int] = {}
    for owner, size in held[False] + held[True]:
        sizes[owner] = sizes.get(owner, 0) + aligned(size)
    ledger = arena.ledger()
    assert ledger.pop("free") == 6000 - sum(sizes.values())
    assert ledger == sizes
