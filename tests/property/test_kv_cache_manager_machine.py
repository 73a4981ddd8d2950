"""Block tables against the contents of the blocks: a prefix hit or a fork never shows other tokens' KV."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.policy import Policy, new_request
from scheduler.request import Request, RequestSpec
from scheduler.slo import SLO, SLOClasses
from tests.device_model import POISON, PrefixIds, block_hashes


@dataclasses.dataclass(eq=False)
class Owner:
    """A request with its table, and the prefix id at each of its positions."""

    request: Request
    chain: list[int]


class KVCacheManagerMachine(RuleBasedStateMachine):
    """Requests start (with hits), compute, grow, fork and leave; some leave their blocks to a step in flight."""

    @initialize(num_blocks=st.integers(2, 12), block_size=st.sampled_from([1, 2, 3]), caching=st.booleans())
    def make(self, num_blocks, block_size, caching):
        self.kv = KVCacheManager(num_blocks, block_size, caching)
        self.size = block_size
        self.caching = caching
        self.ids = PrefixIds()
        self.slots = [[POISON] * block_size for _ in range(num_blocks)]
        self.owners: list[Owner] = []
        self.held: list[list[int]] = []
        self.num_requests = 0

    def new_owner(self, tokens, reads=True):
        chain: list[int] = []
        for token in tokens:
            chain.append(self.ids.extend(chain[-1] if chain else self.ids.root(""), token))
        name = f"r{self.num_requests}"
        self.num_requests += 1
        hashes = block_hashes(chain, self.size)
        spec = RequestSpec(name, name, len(tokens), 50, hashes, SLO("standard", "standard"), 0.0, None, reads)
        return Owner(new_request(spec, 0, Policy("fcfs", SLOClasses())), chain)

    @rule(tail=st.lists(st.integers(1, 2), max_size=2), length=st.integers(1, 12), reads=st.booleans())
    def start(self, tail, length, reads):
        owner = self.new_owner([1] * length + tail, reads)
        request = owner.request
        hits = self.kv.get_computed_blocks(request)
        assert len(hits) * self.size < len(owner.chain), "the last token is to be computed"
        assert not hits or (self.caching and reads)
        longest = self.longest_hit(owner) if self.caching and reads else 0
        assert len(hits) == longest, "a known prefix is not found"
        num_free = self.kv.pool.num_free_blocks
        cost = self.kv.num_blocks_to_take(request, len(owner.chain), hits)
        added = self.kv.allocate_slots(request, len(owner.chain), hits)
        assert (added is None) == (cost > num_free)
        assert self.kv.pool.num_free_blocks == num_free - (0 if added is None else cost)
        if added is None:
            assert not request.block_ids
            return
        assert list(added) == request.block_ids and added[: len(hits)] == hits
        request.num_computed_tokens = len(hits) * self.size
        self.owners.append(owner)

    def longest_hit(self, owner):
        """By contents alone: leading blocks that some registered block holds."""
        num = 0
        for block_hash in owner.request.block_hashes[: (len(owner.chain) - 1) // self.size]:
            if self.kv.pool.lookup(block_hash) is None:
                break
            num += 1
        return num

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), num=st.integers(1, 5))
    def compute(self, data, num):
        """The next tokens of a request are computed, and beyond its known ones sampled."""
        owner = data.draw(st.sampled_from(self.owners))
        request = owner.request
        start = request.num_computed_tokens
        end = min(start + num, len(owner.chain))
        if self.kv.allocate_slots(request, end) is None:
            return
        for position in range(start, end):
            self.slots[request.block_ids[position // self.size]][position % self.size] = owner.chain[position]
        request.num_computed_tokens = end
        if end == len(owner.chain):
            owner.chain.append(self.ids.extend(owner.chain[-1], data.draw(st.integers(1, 2))))
            request.num_output_tokens += 1
            known = block_hashes(owner.chain[:end], self.size)
            request.block_hashes.extend(known[len(request.block_hashes) :])
        self.kv.commit(request)

    @precondition(lambda self: self.owners and self.kv.pool.num_free_blocks)
    @rule(data=st.data())
    def fork(self, data):
        leader = data.draw(st.sampled_from(self.owners))
        num_prompt = leader.request.spec.num_prompt_tokens
        if leader.request.num_computed_tokens < num_prompt:
            return
        child = self.new_owner([])
        child.chain = leader.chain[:num_prompt]
        child.request.spec = dataclasses.replace(leader.request.spec, request_id=child.request.request_id)
        child.request.__post_init__()
        child.request.block_hashes = list(leader.request.spec.block_hashes)
        copies = self.kv.fork(leader.request, child.request)
        assert len(copies) == ((num_prompt - 1) % self.size > 0)
        for copy in copies:
            self.slots[copy.target] = self.slots[copy.source].copy()
            self.held.append([copy.source])
        child.request.num_computed_tokens = num_prompt - 1
        self.owners.append(child)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), in_flight=st.booleans())
    def leave(self, data, in_flight):
        owner = data.draw(st.sampled_from(self.owners))
        self.owners.remove(owner)
        if in_flight:
            self.held.append(self.kv.detach(owner.request))
        else:
            self.kv.free(owner.request)
        assert not owner.request.block_ids

    @precondition(lambda self: self.held)
    @rule()
    def step_ends(self):
        self.kv.release(self.held.pop(0))

    @invariant()
    def contents_are_its_own(self):
        if not hasattr(self, "kv"):
            return
        self.kv.check([o.request for o in self.owners], [b for held in self.held for b in held])
        for owner in self.owners:
            request = owner.request
            for position in range(request.num_computed_tokens):
                held = self.slots[request.block_ids[position // self.size]][position % self.size]
                assert held == owner.chain[position], f"{request.request_id} holds other tokens at {position}"
        for owner in self.owners:
            for block_hash in owner.request.block_hashes:
                block = self.kv.pool.lookup(block_hash)
                assert block is None or b"%d" % self.slots[block][-1] == block_hash, "a hash finds other contents"

    def teardown(self):
        if hasattr(self, "kv"):
            for owner in self.owners:
                self.kv.free(owner.request)
            for held in self.held:
                self.kv.release(held)
            assert self.kv.pool.num_used_blocks == 0


TestKVCacheManagerMachine = KVCacheManagerMachine.TestCase
TestKVCacheManagerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
