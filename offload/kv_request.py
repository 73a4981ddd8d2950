"""Copies of KV blocks between device, host and disk, as they are asked for and as they end."""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum


class MoveKind(StrEnum):
    """From where to where."""

    STORE = "store"  # device block to host slot
    LOAD = "load"  # host slot to device block
    WRITE = "write"  # host slot to a file
    READ = "read"  # a file to host slot
    DELETE = "delete"  # a file is removed
    TOUCH = "touch"  # a file was used


class MovePurpose(StrEnum):
    """What for. Of moves that wait for one thread those of the purpose named first go first."""

    ADMITTED = "admitted"
    FREES_BLOCKS = "frees_blocks"
    WAITING = "waiting"
    BACKGROUND = "background"


class MoveOutcome(StrEnum):
    """How the copy of one block ended."""

    DONE = "done"
    FAILED = "failed"  # an error of the link or the disk: may be better the next time
    CORRUPT = "corrupt"  # size, header or checksum are not those of the block
    ABSENT = "absent"  # the file is gone
    FULL = "full"  # no space left on the disk


@dataclasses.dataclass(frozen=True, slots=True)
class BlockMove:
    """Blocks that move together. Device blocks and host slots belong to it until its result was collected."""

    transfer_id: int
    kind: MoveKind
    purpose: MovePurpose
    block_hashes: tuple[bytes, ...]
    device_blocks: tuple[int, ...] = ()
    """One each, of STORE and LOAD; of the others empty."""
    host_slots: tuple[int, ...] = ()
    """One each; of DELETE and TOUCH empty."""
    deadline_s: float = math.inf
    """When the last byte is wanted, on the clock of the link."""
    positions: tuple[int, ...] = ()
    """One each, of WRITE and TOUCH: how many blocks of its prefix come before it; of the others empty."""

    def __post_init__(self) -> None:
        num_blocks = len(self.block_hashes)
        wants_device = self.kind in (MoveKind.STORE, MoveKind.LOAD)
        wants_host = self.kind not in (MoveKind.DELETE, MoveKind.TOUCH)
        wants_positions = self.kind in (MoveKind.WRITE, MoveKind.TOUCH)
        for name, places, is_wanted in (
            ("device blocks", self.device_blocks, wants_device),
            ("host slots", self.host_slots, wants_host),
            ("positions", self.positions, wants_positions),
        ):
            if len(places) != (num_blocks if is_wanted else 0):
                raise ValueError(f"a {self.kind} of {num_blocks} blocks names {len(places)} {name}")


@dataclasses.dataclass(frozen=True, slots=True)
class MoveResult:
    """How a move ended, block by block in its order."""

    transfer_id: int
    outcomes: tuple[MoveOutcome, ...]
