"""A real model, scheduler and runner in this process, with KV tiers beside the device's blocks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from engine.kv_cache import bytes_per_block
from engine.kv_tier_manager import KVTierManager
from engine.messages import StepOutputs
from engine.offload_manager import NoOffload
from engine.result_bell import ResultBell
from engine.tiered_offload import TieredOffload
from engine.weights import LoadedModel
from kernels.native_library import NativeLibrary
from offload.host_link import HostLink
from offload.host_tier import HostTier
from offload.kv_disk import DiskTier
from offload.kv_file import KVFileFormat
from offload.kv_fingerprint import KVFingerprint
from offload.kv_host_pool import KVHostPool
from offload.kv_offload import KVOffload
from offload.link_config import LinkConfig
from offload.load_parts import first_layers
from offload.transfer import Direction
from scheduler.kv_transfer import TierConfig
from tests.in_process_engine import InProcessEngine

BLOCK_SIZE = 4
WAIT_S = 20.0
"""Longer than anything takes; who waits that long has found an error."""


class TieredEngine(InProcessEngine):
    """Waits for copies where a server's loop would; checks the books of bytes after every turn."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        num_host_slots: int,
        disk_path: Path | None = None,
        num_disk_blocks: int = 128,
        library: NativeLibrary | None = None,
        bytes_per_s: float | None = None,
        **options: Any,
    ) -> None:
        """`bytes_per_s`: of the link; None: as fast as memory is."""
        config = model.config
        self.block_bytes = bytes_per_block(config, model.dtype, BLOCK_SIZE)
        memory = torch.zeros(num_blocks * self.block_bytes, dtype=torch.uint8)
        speed = bytes_per_s or 5e9
        self.link = HostLink(
            LinkConfig(speed, speed), {} if bytes_per_s is None else dict.fromkeys(Direction, bytes_per_s)
        )
        host_tier = HostTier()
        self.pool = KVHostPool(host_tier, num_host_slots, self.block_bytes)
        self.disk = None
        if disk_path is not None:
            identity = KVFingerprint(
                "tiny", "stored", str(model.dtype), "test", BLOCK_SIZE, config.num_layers, config.num_kv_heads,
                config.head_dim,
            )  # fmt: skip
            self.disk = DiskTier(
                disk_path, identity, self.block_bytes, num_disk_blocks * KVFileFormat("", self.block_bytes).disk_bytes
            )
        num_parts = min(8, config.num_layers)
        bell = ResultBell()
        mover = KVOffload(
            self.link, memory.view(num_blocks, self.block_bytes), self.pool, self.disk, num_parts,
            num_layers=config.num_layers, check_share=1.0, record_event=lambda: None, on_done=bell.ring,
        )  # fmt: skip
        self.tiers = KVTierManager(mover, first_layers(config.num_layers, num_parts), self.link.now_s)
        self.tiered = TieredOffload(NoOffload(), self.tiers, self.link, host_tier, bell)
        self._rung = threading.Semaphore(0)
        self.tiered.call_on_results(self._rung.release)
        super().__init__(
            model,
            num_blocks=num_blocks,
            kv_memory=memory,
            gate=self.tiers,
            make_offload=lambda _: self.tiered,
            library=library,
            tiers=TierConfig(
                num_host_slots,
                0 if self.disk is None else self.disk.num_blocks,
                self.block_bytes,
                num_parts,
                () if self.disk is None else self.disk.hashes,
            ),
            block_size=BLOCK_SIZE,
            **options,
        )

    def turn(self) -> StepOutputs:
        if not self._inbox and self.core.wait_s() != 0.0:
            self._rung.acquire(timeout=WAIT_S)
        outputs = super().turn()
        self.tiered.check()
        return outputs

    def settle(self, max_turns: int = 5000) -> None:
        """Turn until copies that nobody waits for have ended too."""
        for _ in range(max_turns):
            if self.core.wait_s() != 0.0 and self.tiers.num_open == 0:
                return
            self.turn()
        raise AssertionError(f"not settled after {max_turns} turns")

    def close(self) -> None:
        self.tiered.close()
        if self.event_log is not None:
            self.event_log.close()
