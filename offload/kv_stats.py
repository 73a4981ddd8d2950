"""What the moves of KV blocks came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from offload.kv_request import MoveKind, MoveOutcome


@dataclasses.dataclass(frozen=True, slots=True)
class KVOffloadStats:
    """Totals since the start, and what there is now."""

    block_bytes: int
    num_blocks: Mapping[tuple[MoveKind, MoveOutcome], int]
    """That have ended."""
    num_bytes: Mapping[MoveKind, int]
    """Of blocks that arrived; a DELETE moves none."""
    busy_s: Mapping[MoveKind, float]
    """Time that the link or the disk was busy with them."""
    num_verified_blocks: int
    """Whose checksum was compared before a load, or as they were read."""
    disk_read_bytes_per_s: float
    """Of the last reads, without their waiting; before the first of a trial at the start; 0.0: there is no disk."""
    disk_write_bytes_per_s: float
    num_queued_reads: int
    """Blocks that wait for the thread."""
    num_queued_writes: int
    num_open: int
    """Moves under way."""
