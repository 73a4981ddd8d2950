"""From options to KV tiers: host slots, a directory on the disk, and the link that blocks take."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.device_choice import choose_device
from engine.errors import EngineStartError
from engine.kv_cache import bytes_per_block
from engine.kv_identity import identify_kv
from engine.kv_round_trip import check_round_trip
from engine.kv_tier_manager import KVTierManager
from engine.kv_tier_size import slots_beside_weights, slots_for_kv_alone
from engine.link_speed import measure_link_speed
from engine.model_config import ModelConfig
from engine.offload_setup import PlacedWeights
from engine.process_config import ProcessConfig
from engine.result_bell import ResultBell
from engine.runner_factory import BuiltRunner
from engine.tiered_offload import TieredOffload
from kernels.native_library import NativeLibrary
from offload.device import Device
from offload.errors import OffloadError
from offload.host_tier import HostTier
from offload.kv_disk import DiskTier
from offload.kv_host_pool import KVHostPool
from offload.kv_offload import PRODUCTION_CHECK_SHARE, KVOffload
from offload.link import Link
from offload.load_parts import first_layers
from offload.transfer import Direction
from scheduler.kv_transfer import TierConfig

logger = logging.getLogger(__name__)

MAX_LOAD_PARTS = 8
MIN_PART_BYTES = 4096
"""Of one block in a part: smaller pieces cost more than they weigh."""


@dataclasses.dataclass(frozen=True, slots=True)
class KVRegion:
    """The device's KV blocks; the runner computes on the same memory."""

    model: ModelConfig
    dtype: torch.dtype
    num_blocks: int
    block_size: int
    memory: Tensor
    """At least `num_blocks * block_bytes`, [n] uint8."""

    @property
    def block_bytes(self) -> int:
        return bytes_per_block(self.model, self.dtype, self.block_size)

    @property
    def blocks(self) -> Tensor:
        """[num_blocks, block_bytes] uint8."""
        return self.memory[: self.num_blocks * self.block_bytes].view(self.num_blocks, self.block_bytes)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTiers:
    """KV tiers, before the runner is made that computes beside them."""

    gate: KVTierManager
    config: TierConfig
    link: Link
    host_tier: HostTier
    bell: ResultBell


def check_kv_tier_options(config: ProcessConfig) -> None:
    """What can be seen before anything is loaded.

    Raises:
        EngineStartError: the options contradict each other, or the disk's directory cannot be written.
    """
    offload = config.offload
    if offload.wants_kv_tiers and not config.scheduler.enable_prefix_caching:
        option = "--host-memory" if offload.disk_path is None else "--disk-path"
        raise EngineStartError(
            f"{option} keeps KV blocks for requests with the same prefix, which --no-enable-prefix-caching forbids; "
            "leave one of them away"
        )
    if offload.disk_path is None or config.is_restart:  # then it is opened, or served without
        return
    path = _disk_path(offload.disk_path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise EngineStartError(f"--disk-path {path} is a file; give a directory that can be written") from error
    except OSError as error:
        raise EngineStartError(
            f"--disk-path {path} cannot be used: {error.strerror}; give a directory that can be written"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise EngineStartError(f"--disk-path {path} cannot be written; give a directory that can")


def open_kv_tiers(
    config: ProcessConfig, model: ModelConfig, dtype: torch.dtype, num_blocks: int, max_tokens: int,
    library: NativeLibrary | None,
) -> tuple[KVRegion, OpenTiers]:  # fmt: skip
    """Where all weights stay on the device: the device's blocks, and tiers over a link of their own.

    Args:
        max_tokens: of the longest request.

    Raises:
        EngineStartError: there is no memory for the device's blocks, or none on the host for one.
        OffloadError: the host's memory, the disk or the link cannot be had.
    """
    offload = config.offload
    device = choose_device(config.is_restart, library)
    block_bytes = bytes_per_block(model, dtype, config.scheduler.block_size)
    try:
        memory = device.allocate(num_blocks * block_bytes)
    except MemoryError as error:
        raise EngineStartError(
            f"--kv-cache-memory is {config.engine.kv_cache_memory_bytes:,} bytes, which cannot be had beside the "
            "weights; lower it"
        ) from error
    region = KVRegion(model, dtype, num_blocks, config.scheduler.block_size, memory)
    num_slots = slots_for_kv_alone(offload, block_bytes, region.blocks_for(max_tokens))

    def open_link() -> Link:
        speed = measure_link_speed(lambda expected: device.open_link(expected, {}))
        cap = None if offload.link_gbps is None else offload.link_gbps * 1e9
        return device.open_link(speed.config(cap), {} if cap is None else dict.fromkeys(Direction, cap))

    host_tier = device.open_host_tier(offload.host_memory_bytes)
    tiers = _open(config, region, num_slots, library, device, open_link, host_tier)
    _warn_of_few_slots(tiers.config, region.blocks_for(max_tokens), 0)
    return region, tiers


def open_kv_tiers_beside(
    config: ProcessConfig,
    region: KVRegion,
    max_tokens: int,
    library: NativeLibrary | None,
    device: Device,
    placed: PlacedWeights,
) -> OpenTiers | None:
    """Beside streamed weights and over their link, in what they leave of the host's memory; None: there are none.

    Raises:
        EngineStartError: there is a disk, and no memory on the host for a block.
        OffloadError: the host's memory or the disk cannot be had.
    """
    offload, host_tier = config.offload, placed.host_tier
    if not offload.may_have_kv_tiers or not config.scheduler.enable_prefix_caching:
        return None
    if offload.host_memory_directory_path is not None:  # weights in a file; blocks change all the time
        left = None if offload.host_memory_bytes is None else offload.host_memory_bytes - host_tier.used_bytes
        host_tier = device.open_host_tier(left)
    weights_bytes, blocks_of_longest = placed.host_tier.used_bytes, region.blocks_for(max_tokens)
    num_slots = slots_beside_weights(
        offload, region.block_bytes, region.num_blocks, blocks_of_longest, weights_bytes, device.free_bytes()
    )
    if num_slots == 0:
        logger.info("no host memory is left for KV blocks: they are on the device alone; raise --host-memory")
        return None
    tiers = _open(config, region, num_slots, library, device, lambda: placed.link, host_tier)
    _warn_of_few_slots(tiers.config, blocks_of_longest, weights_bytes)
    return tiers


def with_tiers(built: BuiltRunner, tiers: OpenTiers | None) -> BuiltRunner:
    """The same runner, whose step loop moves KV blocks too."""
    if tiers is None:
        return built
    offload = TieredOffload(built.offload, tiers.gate, tiers.link, tiers.host_tier, tiers.bell)
    return dataclasses.replace(built, offload=offload, tiers=tiers.config)


def _open(
    config: ProcessConfig,
    region: KVRegion,
    num_slots: int,
    library: NativeLibrary | None,
    device: Device,
    open_link: Callable[[], Link],
    host_tier: HostTier,
) -> OpenTiers:
    """The link last: it is a thread."""
    block_bytes, num_layers = region.block_bytes, region.model.num_layers
    disk = _open_disk(config, region, library)
    pool = KVHostPool(host_tier, num_slots, block_bytes)
    num_parts = max(1, min(MAX_LOAD_PARTS, num_layers, block_bytes // MIN_PART_BYTES))
    bell, link = ResultBell(), open_link()
    mover = KVOffload(
        link,
        region.blocks,
        pool,
        disk,
        num_parts,
        num_layers=num_layers,
        check_share=1.0 if config.offload.kv_checksum == "always" else PRODUCTION_CHECK_SHARE,
        record_event=device.record_event,
        on_done=bell.ring,
    )
    check_round_trip(mover, region.blocks)
    tiers = TierConfig(
        num_host_slots=num_slots,
        num_disk_blocks=0 if disk is None else disk.num_blocks,
        block_bytes=block_bytes,
        num_load_parts=num_parts,
        disk_hashes=() if disk is None else disk.hashes,
    )
    _log(tiers, link, disk, config.offload.disk_limit_bytes)
    gate = KVTierManager(mover, first_layers(num_layers, num_parts), link.now_s)
    return OpenTiers(gate, tiers, link, host_tier, bell)


def _open_disk(config: ProcessConfig, region: KVRegion, library: NativeLibrary | None) -> DiskTier | None:
    """None: there shall be none; or on a restart, when it fails: without a disk rather than without service."""
    offload = config.offload
    if offload.disk_path is None:
        return None
    identity = identify_kv(config.engine, region.model, region.dtype, region.block_size, library)
    try:
        return DiskTier(_disk_path(offload.disk_path), identity, region.block_bytes, offload.disk_limit_bytes)
    except OffloadError as error:
        if not config.is_restart:
            raise
        logger.error("this engine process goes on without its disk: %s", error)
        return None


def _warn_of_few_slots(tiers: TierConfig, blocks_of_longest: int, weights_bytes: int) -> None:
    """What comes from the disk is in host slots before it is on the device.

    Args:
        weights_bytes: on the host beside the slots.
    """
    if tiers.num_disk_blocks and tiers.num_host_slots < blocks_of_longest:
        logger.warning(
            "KV on disk: %d of %d blocks of the longest prompt can come from the disk at a time; raise --host-memory "
            "to %dMiB",
            tiers.num_host_slots, blocks_of_longest,
            -(-(weights_bytes + blocks_of_longest * tiers.block_bytes) // 2**20),
        )  # fmt: skip


def _disk_path(text: str) -> Path:
    """A shell leaves `--disk-path=~/kv` as it is, and so do files and variables."""
    return Path(text).expanduser()


def _log(tiers: TierConfig, link: Link, disk: DiskTier | None, disk_limit_bytes: int) -> None:
    """The start log's account of places for KV blocks."""
    status, block_bytes = link.snapshot(), tiers.block_bytes
    logger.info(
        "KV on the host: %d slots of %.1f KiB, %.1f MiB; loads in %d parts at %.3f GB/s, stores at %.3f GB/s",
        tiers.num_host_slots, block_bytes / 2**10, tiers.num_host_slots * block_bytes / 2**20, tiers.num_load_parts,
        status.h2d.p50_bytes_per_s / 1e9, status.d2h.p50_bytes_per_s / 1e9,
    )  # fmt: skip
    if disk is not None:
        num_found = len(tiers.disk_hashes)
        logger.info(
            "KV on disk: room for %d blocks, %.1f MiB, in %s; %d were found there, %.1f MiB",
            tiers.num_disk_blocks, tiers.num_disk_blocks * block_bytes / 2**20, disk.directory, num_found,
            num_found * block_bytes / 2**20,
        )  # fmt: skip
        if (room_bytes := disk.num_blocks * disk.file_bytes) + disk.file_bytes <= disk_limit_bytes:
            logger.warning(
                "KV on disk: --disk-size allows %.1f MiB, the disk has room for %.1f MiB of that",
                disk_limit_bytes / 2**20, room_bytes / 2**20,
            )  # fmt: skip
        if disk.num_foreign_bytes:
            logger.info(
                "KV on disk: %.1f MiB there are of other models or settings; they count against --disk-size and go "
                "when room is needed", disk.num_foreign_bytes / 2**20,
            )  # fmt: skip
