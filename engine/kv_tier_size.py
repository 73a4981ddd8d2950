"""How much of the host's memory KV blocks get."""

from __future__ import annotations

from engine.errors import EngineStartError
from offload.config import OffloadConfig
from offload.kv_file import KVFileFormat

MIN_BLOCKS_FOR_DISK = 64
"""Host slots that a disk gets where nobody names the host's memory: what is on its way to the disk and back."""
DEVICE_SHARES = 2
"""Host slots for each device block, where weights are streamed and nobody names the host's memory..."""
MAX_SHARE_OF_MEMORY = 0.25
"""... and how much of what can be had they take at most."""


def check_kv_sizes(config: OffloadConfig, block_bytes: int, *, weights_stay: bool) -> None:
    """Before weights are read.

    Args:
        weights_stay: on the device: the host's memory is KV's alone.

    Raises:
        EngineStartError: memory or disk holds no block.
    """
    host_bytes, disk_bytes = config.host_memory_bytes, KVFileFormat("", block_bytes).disk_bytes
    if weights_stay and host_bytes is not None and 0 < host_bytes < block_bytes:
        raise EngineStartError(
            f"--host-memory is {host_bytes:,} bytes, one KV block takes {block_bytes:,}; raise it, or leave it away"
        )
    if config.disk_path is not None and config.disk_limit_bytes < disk_bytes:
        raise EngineStartError(
            f"--disk-size is {config.disk_limit_bytes:,} bytes, the file of one KV block takes {disk_bytes:,}; raise it"
        )


def slots_for_kv_alone(config: OffloadConfig, block_bytes: int, blocks_of_longest: int) -> int:
    """Host slots where all weights stay on the device: what the host's memory holds, or what the disk needs.

    Args:
        blocks_of_longest: device blocks of the longest request there may be.

    """
    if config.host_memory_bytes is None:
        return max(MIN_BLOCKS_FOR_DISK, blocks_of_longest)
    return config.host_memory_bytes // block_bytes


def slots_beside_weights(
    config: OffloadConfig,
    block_bytes: int,
    num_device_blocks: int,
    blocks_of_longest: int,
    weights_bytes: int,
    available_bytes: int | None,
) -> int:
    """Host slots beside streamed weights: what they leave of the host's memory, or by the size of the device's pool.

    Args:
        weights_bytes: on the host.
        available_bytes: main memory that can be had; None: nobody says.

    Returns:
        0: there is no room, and nobody has asked for more.

    Raises:
        EngineStartError: there is a disk, and no room for a block on its way there.
    """
    if config.host_memory_bytes is not None:
        num_slots = max(0, config.host_memory_bytes - weights_bytes) // block_bytes
        if num_slots == 0 and config.wants_kv_tiers:
            raise EngineStartError(
                f"--host-memory is {config.host_memory_bytes:,} bytes, of which streamed weights take "
                f"{weights_bytes:,}; one KV block on its way to --disk-path takes {block_bytes:,}: raise it, or leave "
                "--disk-path away"
            )
        return num_slots
    num_slots = DEVICE_SHARES * num_device_blocks
    if config.wants_kv_tiers:
        num_slots = max(num_slots, MIN_BLOCKS_FOR_DISK, blocks_of_longest)
    if available_bytes is not None:
        num_slots = min(num_slots, int(MAX_SHARE_OF_MEMORY * available_bytes) // block_bytes)
    return max(num_slots, 1) if config.wants_kv_tiers else num_slots
