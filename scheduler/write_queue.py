"""Blocks in host memory that are to be written to disk: by priority, then by reuse, then by age."""

from __future__ import annotations

from collections import OrderedDict

from scheduler.request import BlockHash
from scheduler.retention import NUM_PRIORITIES

MAX_USES = 3
"""Blocks used more often than this after they were stored are alike."""


class WriteQueue:
    """Every call is O(1) in the blocks."""

    def __init__(self) -> None:
        self._lines: tuple[OrderedDict[BlockHash, None], ...] = tuple(
            OrderedDict() for _ in range(NUM_PRIORITIES * (MAX_USES + 1))
        )
        """The first to be written is in the last line; in a line the oldest first."""
        self._line_of: dict[BlockHash, int] = {}

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._line_of

    def __len__(self) -> int:
        return len(self._line_of)

    def put(self, block_hash: BlockHash, priority: int, num_uses: int) -> None:
        """Let it wait, or move it to where it belongs by now; in the line where it is it keeps its place."""
        line = priority * (MAX_USES + 1) + min(num_uses, MAX_USES)
        if self._line_of.get(block_hash) == line:
            return
        self.discard(block_hash)
        self._line_of[block_hash] = line
        self._lines[line][block_hash] = None

    def discard(self, block_hash: BlockHash) -> None:
        """It need not be written, if it was to be."""
        line = self._line_of.pop(block_hash, None)
        if line is not None:
            del self._lines[line][block_hash]

    def take(self) -> BlockHash:
        """Remove the one to be written next.

        Raises:
            IndexError: there is none.
        """
        for line in reversed(self._lines):
            if line:
                block_hash, _ = line.popitem(last=False)
                del self._line_of[block_hash]
                return block_hash
        raise IndexError("no block waits to be written")

    def check(self) -> None:
        """Assert that every block has one place."""
        places = {block_hash: index for index, line in enumerate(self._lines) for block_hash in line}
        assert places == self._line_of and sum(map(len, self._lines)) == len(places), "a block is lost or doubled"
