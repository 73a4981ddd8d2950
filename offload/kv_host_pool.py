"""Host slots for KV blocks, and the checksum of what each holds."""

from __future__ import annotations

import threading

import numpy as np
from torch import Tensor

from offload.host_tier import HostTier
from offload.kv_file import checksum

OWNER = "kv"
"""In the ledger of the host's memory."""


class KVHostPool:
    """[num_slots, block_bytes] uint8. Which slot holds what is the scheduler's; who moves bytes seals the slot."""

    def __init__(self, tier: HostTier, num_slots: int, block_bytes: int) -> None:
        """Take the memory, pinned beside an accelerator.

        Raises:
            HostMemoryError: it cannot be had.
            ValueError: there is no slot, or nothing in it.
        """
        if num_slots < 1 or block_bytes < 1:
            raise ValueError(f"{num_slots} slots of {block_bytes} bytes; at least 1 of each is needed")
        (region,) = tier.take(OWNER, (num_slots * block_bytes,)).slabs
        self._tier: HostTier | None = tier
        self._lock = threading.Lock()  # a thread whose disk hung may come back after the end
        self.blocks: Tensor = region.view(num_slots, block_bytes)
        self._slots = self.blocks.numpy()
        self._checksums: list[int | None] = [None] * num_slots

    @property
    def num_slots(self) -> int:
        return len(self._checksums)

    @property
    def block_bytes(self) -> int:
        return self.blocks.shape[1]

    def bytes_of(self, slot: int) -> memoryview:
        """The slot itself, not a copy."""
        return memoryview(self._slots[slot])

    def fill(self, slot: int, block: memoryview, block_checksum: int) -> None:
        """Copy a block of this checksum into it, without the interpreter's lock. After `close` nothing happens."""
        with self._lock:
            if self._tier is not None:
                np.copyto(self._slots[slot], np.frombuffer(block, np.uint8))
                self._checksums[slot] = block_checksum

    def copy_to(self, slot: int, block: memoryview) -> None:
        """Copy what it holds, without the interpreter's lock. After `close` nothing happens."""
        with self._lock:
            if self._tier is not None:
                np.copyto(np.frombuffer(block, np.uint8), self._slots[slot])

    def checksum_of(self, slot: int) -> int | None:
        """Of what was put there; None: nothing whole."""
        return self._checksums[slot]

    def unseal(self, slot: int) -> None:
        """Its bytes are about to change."""
        self._checksums[slot] = None

    def seal(self, slot: int) -> None:
        """Its bytes are whole: compute their checksum."""
        self._checksums[slot] = checksum(self.bytes_of(slot))

    def is_intact(self, slot: int) -> bool:
        """Whether it holds what was put there; reads all of its bytes."""
        return self._checksums[slot] is not None and checksum(self.bytes_of(slot)) == self._checksums[slot]

    def close(self) -> None:
        """Give the memory back; idempotent. No copy over the link may be under way."""
        with self._lock:
            tier, self._tier = self._tier, None
        if tier is not None:
            tier.give_back(OWNER)
