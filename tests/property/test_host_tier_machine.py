"""Owners take and give back host memory in any order: bytes stay theirs, and the books add up."""

from __future__ import annotations

import mmap

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from offload.host_slabs import HostMemoryKind
from offload.host_tier import HostMemoryError, HostTier
from offload.numa import Numa
from offload.pinned_memory import PinnedBacking, PinTools
from tests.fake_cudart import FakeCudart, any_bounce

OWNERS = ("weights", "kv", "draft")
PAGE = mmap.PAGESIZE
SIZES = st.lists(st.integers(1, 4 * PAGE), max_size=5)


class HostTierMachine(RuleBasedStateMachine):
    """A tier of pinned memory whose registration may fail at any call."""

    @initialize(limit=st.integers(0, 20 * PAGE), failing=st.integers(0, 12))
    def open(self, limit: int, failing: int) -> None:
        self.cudart = FakeCudart(lambda call, _: call == failing)
        tools = PinTools(self.cudart, any_bounce, Numa(call=lambda *_: -1), available_bytes=lambda: None)
        self.tier = HostTier(limit, PinnedBacking(tools, None, PAGE, 5 * PAGE), lambda: None)
        self.held: dict[str, tuple[int, list[int]]] = {}
        self.num_taken = 0

    @rule(owner=st.sampled_from(OWNERS), sizes=SIZES)
    def take(self, owner: str, sizes: list[int]) -> None:
        if owner in self.held:
            return
        free = self.tier.free_bytes
        assert free is not None
        try:
            taken = self.tier.take(owner, sizes)
        except HostMemoryError:
            assert sum(sizes) > free
            return
        self.num_taken += 1
        assert sum(sizes) <= free and [len(slab) for slab in taken.slabs] == sizes
        if taken.kind is HostMemoryKind.PINNED:
            assert all(map(self.cudart.is_pinned, taken.slabs))
        for slab in taken.slabs:
            slab.fill_(self.num_taken % 251)
        self.held[owner] = (self.num_taken % 251, sizes)
        self.slabs = {**getattr(self, "slabs", {}), owner: taken.slabs}

    @rule(owner=st.sampled_from(OWNERS))
    def give_back(self, owner: str) -> None:
        if self.held.pop(owner, None) is not None:
            self.tier.give_back(owner)
            del self.slabs[owner]

    @invariant()
    def bytes_are_the_owners_and_books_add_up(self) -> None:
        self.tier.check()
        self.cudart.launch()
        for owner, (value, _) in self.held.items():
            assert all(int(slab.min()) == int(slab.max()) == value for slab in self.slabs[owner])
        ledger = self.tier.ledger()
        assert {owner: sum(sizes) for owner, (_, sizes) in self.held.items()} == {
            owner: size for owner, size in ledger.items() if owner in OWNERS
        }
        assert sum(ledger.values()) - ledger["rounding"] == self.tier.limit_bytes

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close()
            assert not self.cudart.registered and self.tier.used_bytes == 0


HostTierMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestHostTier = HostTierMachine.TestCase
