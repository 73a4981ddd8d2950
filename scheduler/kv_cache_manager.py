"""Which request holds which blocks: prefix hits, room for new tokens, sharing between choices, giving back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from scheduler.block_pool import BlockPool
from scheduler.kv_tiers import KVTiers
from scheduler.kv_transfer import NO_TIERS, Tier, TierConfig
from scheduler.output import BlockCopy
from scheduler.request import BlockHash, Request
from scheduler.retention import OUTPUT_PRIORITY


class KVCacheManager:
    """Keeps the block tables of requests. Invariant: a block that a request still writes to is in no other table."""

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool, tiers: TierConfig = NO_TIERS
    ) -> None:
        """
        Args:
            tiers: beside the device; of no use without the prefix cache.
        """
        self.pool = BlockPool(num_blocks)
        self.tiers = KVTiers(tiers if enable_prefix_caching else NO_TIERS, self.pool)
        self.block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self.num_queried_tokens = 0
        """Prompt tokens of first starts that looked into the prefix cache."""
        self.num_hit_tokens = 0
        """Of those, the tokens found there."""

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def get_computed_blocks(self, request: Request) -> tuple[int | None, ...]:
        """Blocks with the longest known prefix of the request. Takes no reference: use them at once or not at all.

        A block may still be on its way to the device (see `KVTiers.coming`); None is one that the host has. The last
        known token is never among them: its row of logits is needed.
        """
        if not self._enable_prefix_caching or not request.spec.reads_prefix_cache:
            return ()
        tiers = self.tiers
        has_tiers = tiers.is_on and request.trusts_tiers
        found: list[int | None] = []
        for block_hash in self.hashes_to_find(request):
            block_id = self.pool.lookup(block_hash)
            if block_id is None and has_tiers:
                if (coming := tiers.coming(block_hash)) is not None:
                    block_id = coming.block_id
                elif tiers.is_on_host(block_hash):
                    found.append(None)
                    continue
            if block_id is None:
                break
            found.append(block_id)
        return tuple(found)

    def hashes_to_find(self, request: Request) -> Sequence[BlockHash]:
        """Of the blocks that it need not compute if they are found."""
        return request.block_hashes[: (request.num_tokens - 1) // self.block_size]

    def num_blocks_to_take(self, request: Request, num_tokens: int, computed_blocks: Sequence[int | None] = ()) -> int:
        """How many free blocks `allocate_slots` would use up; reviving a free cached block uses it up."""
        if not computed_blocks:  # of every decode in every step
            return max(0, -(-num_tokens // self.block_size) - len(request.block_ids))
        on_device = [block_id for block_id in computed_blocks if block_id is not None]
        num_revived = sum(self.pool.num_references(b) == 0 for b in on_device)
        num_held = len(request.block_ids) + len(on_device)
        return max(0, self.num_blocks_for(num_tokens) - num_held) + num_revived

    def allocate_slots(
        self, request: Request, num_tokens: int, computed_blocks: Sequence[int | None] = ()
    ) -> tuple[int, ...] | None:
        """Give the request room for its first `num_tokens` tokens.

        Args:
            computed_blocks: from `get_computed_blocks`, at a (re)start only; for each None among them there is a free
                block in its place, for the caller to fill.

        Returns:
            The blocks added to its table, hits first; None: too few are free, and nothing changed.
        """
        assert not computed_blocks or not request.block_ids, "hits are for an empty table"
        if request.block_ids and num_tokens <= len(request.block_ids) * self.block_size:
            return ()  # a decode whose last block has room
        if self.num_blocks_to_take(request, num_tokens, computed_blocks) > self.pool.num_free_blocks:
            return None
        if request.block_ids:  # a decode whose last block is full
            added = tuple(self.pool.allocate(self.num_blocks_for(num_tokens) - len(request.block_ids)))
            request.block_ids.extend(added)
            return added
        self.pool.acquire(block_id for block_id in computed_blocks if block_id is not None)
        num_new = max(0, self.num_blocks_for(num_tokens) - len(computed_blocks))
        new = iter(self.pool.allocate(num_new + computed_blocks.count(None)))
        added = (*(next(new) if block_id is None else block_id for block_id in computed_blocks), *new)
        request.block_ids.extend(added)
        request.num_registered_blocks = len(computed_blocks)
        self._count_lookup(request, computed_blocks)
        return added

    def _count_lookup(self, request: Request, computed_blocks: Sequence[int | None]) -> None:
        """A hit after a preemption is no news: it would count the same prompt twice."""
        if not self._enable_prefix_caching or not request.spec.reads_prefix_cache or request.num_lives:
            return
        num_hit_tokens = len(computed_blocks) * self.block_size
        self.num_queried_tokens += request.spec.num_prompt_tokens
        self.num_hit_tokens += num_hit_tokens
        if not self.tiers.is_on:
            return
        hashes = request.block_hashes[: len(computed_blocks)]
        num_loaded = computed_blocks.count(None) + sum(self.tiers.coming(each) is not None for each in hashes)
        request.num_host_cached_tokens = num_loaded * self.block_size
        request.num_disk_cached_tokens = min(request.num_read_tokens, request.num_host_cached_tokens)
        request.num_host_cached_tokens -= request.num_disk_cached_tokens
        hits = self.tiers.use.hit_tokens
        hits[Tier.HOST] += request.num_host_cached_tokens
        hits[Tier.DISK] += request.num_disk_cached_tokens
        hits[Tier.DEVICE] += num_hit_tokens - num_loaded * self.block_size

    def fork(self, leader: Request, child: Request) -> tuple[BlockCopy, ...]:
        """Build the table of a choice from the computed prompt of its leader, up to the last prompt token.

        Full blocks before that token's block are shared; what lies before it in its own block is copied. The source
        gets a reference of its own, which the caller releases when the copy is done.

        Raises:
            OutOfBlocks: no block is free.
        """
        assert not child.block_ids and leader.num_computed_tokens >= child.spec.num_prompt_tokens
        num_shared, num_copied_tokens = divmod(child.spec.num_prompt_tokens - 1, self.block_size)
        target = self.pool.allocate(1)[0]
        shared = leader.block_ids[:num_shared]
        self.pool.acquire(shared)
        child.block_ids.extend((*shared, target))
        child.num_registered_blocks = num_shared
        if num_copied_tokens == 0:
            return ()
        source = leader.block_ids[num_shared]
        self.pool.acquire((source,))
        return (BlockCopy(source, target),)

    def commit(self, request: Request) -> None:
        """Let others find the blocks that its computed tokens fill."""
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= request.num_registered_blocks or not self._enable_prefix_caching:
            return
        for index in range(request.num_registered_blocks, min(num_full, len(request.block_hashes))):
            if self.pool.register(request.block_ids[index], request.block_hashes[index]) and self.tiers.is_on:
                self.tiers.became_full(request.block_hashes[index], self.retention(request, index), index)
            request.num_registered_blocks += 1

    def retention(self, request: Request, index: int) -> int:
        """Priority with which a block of its table is kept in cheaper tiers: that of the request, for output 0."""
        is_prompt = (index + 1) * self.block_size <= request.num_prompt_tokens
        return request.spec.retention if is_prompt else OUTPUT_PRIORITY

    def note_use(self, request: Request) -> None:
        """It used its blocks until now. In cheaper tiers the first of them are to stay longest: those after them are of
        no use alone.
        """
        if not self.tiers.is_on or not request.num_registered_blocks:
            return
        hashes = request.block_hashes[: request.num_registered_blocks]
        num_prompt_blocks = min(len(hashes), request.num_prompt_tokens // self.block_size)
        self.tiers.directory.touch(hashes[num_prompt_blocks:], OUTPUT_PRIORITY)
        self.tiers.directory.touch(hashes[:num_prompt_blocks], request.spec.retention)
        self.tiers.given_back(hashes)

    def detach(self, request: Request) -> list[int]:
        """Empty the table and hand its references to the caller, who gives them to `release` later."""
        block_ids = request.block_ids.copy()
        request.block_ids.clear()
        request.num_registered_blocks = 0
        return block_ids

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each; of a table, the end is reused before the start, which others share more often."""
        self.pool.release(reversed(block_ids))

    def free(self, request: Request) -> None:
        """Give every block of the request back; nothing may use them any more."""
        self.release(self.detach(request))

    def check(self, requests: Iterable[Request], held_block_ids: Iterable[int] = ()) -> None:
        """Assert that the tables of `requests` and `held_block_ids` are all references there are.

        Also: tables hold what was computed, and no block has two writers.
        """
        self.pool.check()
        references: Counter[int] = Counter(held_block_ids)
        references.update(self.tiers.leased_block_ids())
        tables: Counter[int] = Counter()
        written: list[int] = []
        for request in requests:
            assert len(set(request.block_ids)) == len(request.block_ids), f"{request.request_id}: a block twice"
            assert self.num_blocks_for(request.position) <= len(request.block_ids), f"{request.request_id}: no room"
            tables.update(request.block_ids)
            written.extend(request.block_ids[request.num_computed_tokens // self.block_size :])
        references.update(tables)
        for block_id in range(self.pool.num_blocks):
            counted, owned = self.pool.num_references(block_id), references[block_id]
            assert counted == owned, f"block {block_id}: {counted} references, {owned} owners"
        assert all(tables[b] == 1 for b in written), "a block that is being written is in two tables"
        self.tiers.check()
