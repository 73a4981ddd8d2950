"""The block pool against a list of who holds what, and the order in which blocks must come."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.block_pool import BlockPool, OutOfBlocks, ReleasePreview


class BlockPoolMachine(RuleBasedStateMachine):
    """Model: references per block, hash per block, free blocks without a prefix, free cached ones oldest first.

    Free blocks at or beyond the limit are in neither list.
    """

    @initialize(num_blocks=st.integers(1, 8))
    def make(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.references = dict.fromkeys(range(num_blocks), 0)
        self.hash_of: dict[int, bytes] = {}
        self.plain = set(range(num_blocks))
        self.cached: list[int] = []
        self.limit = num_blocks

    @property
    def used(self):
        return [b for b, count in self.references.items() if count]

    @rule(num=st.integers(0, 9))
    def allocate(self, num):
        if num > len(self.plain) + len(self.cached):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(num)
            return
        expected = (sorted(self.plain) + self.cached)[:num]
        assert self.pool.allocate(num) == expected, "plain blocks first, then the cached one unused for longest"
        for block in expected:
            self.references[block] = 1
            self.hash_of.pop(block, None)
        self.plain -= set(expected)
        self.cached = [b for b in self.cached if b not in expected]

    @precondition(lambda self: self.used or self.cached)
    @rule(data=st.data())
    def acquire(self, data):
        """A prefix hit, a choice that shares, or the lease of a transfer."""
        blocks = data.draw(st.lists(st.sampled_from(self.used + self.cached), max_size=4))
        self.pool.acquire(blocks)
        for block in blocks:
            self.references[block] += 1
            if block in self.cached:
                self.cached.remove(block)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def release(self, data):
        block = data.draw(st.sampled_from(self.used))
        preview = ReleasePreview(self.pool)
        num_drops = data.draw(st.integers(1, self.references[block]))
        is_freed = num_drops == self.references[block] and block < self.limit
        assert preview.drop([block] * num_drops) == is_freed
        assert ReleasePreview(self.pool, keep=(block,)).drop([block] * num_drops) == 0
        self.pool.release([block] * num_drops)
        self.references[block] -= num_drops
        if self.references[block] == 0:
            if block >= self.limit:
                self.hash_of.pop(block, None)
            elif block in self.hash_of:
                self.cached.append(block)
            else:
                self.plain.add(block)

    @precondition(lambda self: self.used)
    @rule(data=st.data(), block_hash=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
    def register(self, data, block_hash):
        block = data.draw(st.sampled_from(self.used))
        if self.hash_of.get(block, block_hash) != block_hash:
            with pytest.raises(ValueError, match="another hash"):
                self.pool.register(block, block_hash)
            return
        is_new = block_hash not in self.hash_of.values() or self.hash_of.get(block) == block_hash
        assert self.pool.register(block, block_hash) == is_new
        if is_new:
            self.hash_of[block] = block_hash

    @rule(data=st.data())
    def move_border(self, data):
        num_blocks = len(self.references)
        self.limit = data.draw(st.integers(1, num_blocks))
        self.pool.set_limit(self.limit)
        for block in [b for b in self.cached if b >= self.limit]:
            self.cached.remove(block)
            del self.hash_of[block]
        free = {b for b, count in self.references.items() if count == 0 and b < self.limit}
        self.plain = free - set(self.cached)
        for wrong in (0, num_blocks + 1):
            with pytest.raises(ValueError, match=f"the limit is {wrong}"):
                self.pool.set_limit(wrong)

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def misuse(self, data):
        block = data.draw(st.sampled_from(sorted(self.plain)))
        for call in (self.pool.acquire, self.pool.release):
            with pytest.raises(ValueError, match=f"block {block}"):
                call([block])
        with pytest.raises(ValueError, match=f"block {block}"):
            self.pool.register(block, b"z")

    @invariant()
    def agrees(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        assert all(self.pool.num_references(b) == count for b, count in self.references.items())
        assert self.pool.num_free_blocks == len(self.plain) + len(self.cached)
        assert self.pool.num_used_blocks == len(self.used)
        assert self.pool.num_used_beyond == sum(b >= self.limit for b in self.used)
        assert self.pool.num_cached_blocks == len(self.cached)
        found = {h: self.pool.lookup(h) for h in (b"a", b"b", b"c", b"d", b"e")}
        assert {h: b for h, b in found.items() if b is not None} == {h: b for b, h in self.hash_of.items()}


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True)
