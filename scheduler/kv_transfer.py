"""Copies of KV blocks between device, host and disk, as the scheduler asks for them and hears of their end.

A transfer names blocks by the hash of their content and by where they lie; who moves the bytes is nobody's business
here. It enters `SchedulerOutput`, and each ends exactly once, in `StepResult`.
"""

from __future__ import annotations

import dataclasses
import enum
import math

from scheduler.request import BlockHash

NEVER_S = math.inf
"""A deadline for whenever it suits."""


class Tier(enum.Enum):
    """Where a block may lie, the fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class TransferKind(enum.Enum):
    STORE = "store"  # device block to host slot
    LOAD = "load"  # host slot to device block
    WRITE = "write"  # host slot to disk
    READ = "read"  # disk to host slot
    DELETE = "delete"  # a block on disk is forgotten
    TOUCH = "touch"  # a block on disk was used again


class Purpose(enum.Enum):
    """What a transfer is for; the link's order follows from it."""

    ADMITTED = "admitted"  # a request that holds its blocks waits for it
    FREES_BLOCKS = "frees_blocks"  # blocks of a preempted request leave, and others wait for their places
    WAITING = "waiting"  # a request that has not started waits for it
    BACKGROUND = "background"  # nobody waits


class BlockOutcome(enum.Enum):
    """How the copy of one block ended."""

    DONE = "done"
    FAILED = "failed"  # the copy, or the device under it: may be better the next time
    CORRUPT = "corrupt"  # the bytes are not those that were stored: size, format or checksum
    ABSENT = "absent"  # the file is gone
    FULL = "full"  # no space left on the disk


@dataclasses.dataclass(frozen=True, slots=True)
class KVTransfer:
    """Blocks that move together. Both ends belong to it until it has ended."""

    transfer_id: int
    kind: TransferKind
    purpose: Purpose
    block_hashes: tuple[BlockHash, ...]
    device_blocks: tuple[int, ...] = ()
    """One each, of STORE and LOAD; of the others empty."""
    host_slots: tuple[int, ...] = ()
    """One each; of DELETE and TOUCH empty."""
    deadline_s: float = NEVER_S
    """When the last byte is wanted, on the clock of `now_s`."""
    positions: tuple[int, ...] = ()
    """One each, of WRITE and TOUCH: how many blocks of its prefix come before it; of the others empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class TransferResult:
    """How a transfer ended, block by block in its order."""

    transfer_id: int
    outcomes: tuple[BlockOutcome, ...]

    @property
    def is_done(self) -> bool:
        """Whether all of it arrived."""
        return all(outcome is BlockOutcome.DONE for outcome in self.outcomes)


@dataclasses.dataclass(frozen=True, slots=True)
class GatedLoad:
    """A step computes a request while its load is under way: each layer waits for its own part."""

    request_id: str
    transfer_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class TierConfig:
    """What there is beside the device. Without host slots there are no tiers."""

    num_host_slots: int = 0
    num_disk_blocks: int = 0
    block_bytes: int = 0
    """Of one block in all layers."""
    num_load_parts: int = 1
    """Into how many parts, by layers, a load is cut: a step that computes beside it waits for the first alone."""
    disk_hashes: tuple[BlockHash, ...] = ()
    """What the disk holds from before, the longest unused first."""

    def __post_init__(self) -> None:
        if self.num_host_slots and self.block_bytes < 1:
            raise ValueError(f"block_bytes is {self.block_bytes}, it must be at least 1 where there are host slots")
        if self.num_disk_blocks and not self.num_host_slots:
            raise ValueError("blocks on disk pass through host slots; there are none")
        if self.num_load_parts < 1:
            raise ValueError(f"num_load_parts is {self.num_load_parts}, it must be at least 1")

    @property
    def has_host(self) -> bool:
        return self.num_host_slots > 0


NO_TIERS = TierConfig()
