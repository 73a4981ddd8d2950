"""What moving KV blocks between the tiers came to in bytes and seconds, which the scheduler does not know."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class KVBytes:
    """Totals since the engine started, and the disk's speeds of now. Kinds: the values of `TransferKind`."""

    block_bytes: int = 0
    """Of one block in all layers."""
    num_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    """Moved, by kind of transfer."""
    busy_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """Time that the link or the disk took for them, by kind of transfer."""
    num_verified_blocks: int = 0
    """Whose checksum was compared."""
    disk_read_bytes_per_s: float = 0.0
    """Measured; 0.0: nothing was read yet."""
    disk_write_bytes_per_s: float = 0.0
