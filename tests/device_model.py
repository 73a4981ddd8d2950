"""A device without arithmetic: its KV slots hold *which tokens* were computed into them, exactly.

The value of position p is the identity of the whole prefix up to p (under a salt), as the KV of a real model depends
on it. A step that reads any other value than its own tokens' is caught before it samples.
"""

from __future__ import annotations

import dataclasses
import zlib

from scheduler.output import BlockCopy, ScheduledRequest
from scheduler.request import BlockHash, RequestSpec

ALPHABET = 5
STOP_TOKEN = 0
POISON = -1


class PrefixIds:
    """Numbers prefixes: equal ids mean equal tokens under equal salts, without collisions."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int], int] = {}
        self._roots: dict[str, int] = {}

    def root(self, salt: str) -> int:
        return self._roots.setdefault(salt, -2 - len(self._roots))

    def extend(self, prefix: int, token: int) -> int:
        return self._ids.setdefault((prefix, token), len(self._ids))


@dataclasses.dataclass(eq=False)
class ModelSequence:
    """The tokens of one choice, as the engine would hold them."""

    spec: RequestSpec
    rank: int
    order: tuple[int, float, float, str, int]
    seniority: tuple[int, float, str, int]
    prefix_ids: PrefixIds
    chain: list[int]
    """Prefix id at every known position; grows when the device samples."""
    num_hashed_blocks: int
    num_committed_tokens: int
    """Prompt and output as far as `update` was told."""

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    def hash_full_blocks(self, num_computed: int, block_size: int) -> tuple[BlockHash, ...]:
        """As `engine.sequence.Sequence.hash_full_blocks`."""
        last = num_computed // block_size
        hashes = block_hashes(self.chain, block_size)[self.num_hashed_blocks : last]
        self.num_hashed_blocks = max(self.num_hashed_blocks, last)
        return hashes

    def sample(self) -> int:
        """The next token: a function of the tokens so far and of the choice, as with a counter-based sampler."""
        token = zlib.crc32(f"{self.chain[-1]}/{self.request_id}".encode()) % (3 * ALPHABET)
        self.chain.append(self.prefix_ids.extend(self.chain[-1], token))
        return token


def block_hashes(chain: list[int], block_size: int) -> tuple[BlockHash, ...]:
    """Keys of the full blocks of a chain: the identity of the prefix at each block's end."""
    ends = range(block_size - 1, len(chain), block_size)
    return tuple(b"%d" % chain[end] for end in ends)


class DeviceModel:
    """The KV slots. `execute` checks every value a step reads."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots = [[POISON] * block_size for _ in range(num_blocks)]

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        targets = [c.target for c in copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        assert not {c.source for c in copies} & set(targets), "a block is copied from and to in one step"
        for c in copies:
            self._slots[c.target] = self._slots[c.source].copy()

    def execute(self, parts: list[tuple[ScheduledRequest, ModelSequence, tuple[int, ...]]]) -> None:
        """Write the step's positions, then read all of every request's, as attention does layer by layer."""
        writer: dict[int, str] = {}
        for scheduled, sequence, table in parts:
            for position in self._written(scheduled):
                block, offset = table[position // self._block_size], position % self._block_size
                other = writer.setdefault(block, sequence.request_id)
                assert other == sequence.request_id, f"{other} and {sequence.request_id} write block {block}"
                self._slots[block][offset] = sequence.chain[position]
        for scheduled, sequence, table in parts:
            for position in range(scheduled.num_computed_tokens + scheduled.num_tokens):
                held = self._slots[table[position // self._block_size]][position % self._block_size]
                assert held == sequence.chain[position], (
                    f"{sequence.request_id} reads the KV of other tokens at position {position} "
                    f"(block {table[position // self._block_size]})"
                )

    @staticmethod
    def _written(scheduled: ScheduledRequest) -> range:
        return range(scheduled.num_computed_tokens, scheduled.num_computed_tokens + scheduled.num_tokens)
