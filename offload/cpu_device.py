"""The processor as a device: a part of main memory, and a thread that copies to it from the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from kernels.block_copy import BlockCopier, copy_blocks
from offload.available_memory import available_memory_bytes, total_memory_bytes
from offload.device import DeviceKind
from offload.fingerprint import identify_processor
from offload.host_backing import AnonymousBacking, FileBacking
from offload.host_link import HostLink, copy_slice
from offload.host_memory import allocate_host
from offload.host_slabs import HostMemoryKind
from offload.host_tier import HostTier
from offload.link_config import LinkConfig
from offload.transfer import Direction, StreamEvent


class CpuDevice:
    """Implements `Device`. A cap on memory and on the link makes it an accelerator's likeness."""

    kind = DeviceKind.CPU

    def __init__(
        self,
        available_bytes: Callable[[], int | None] = available_memory_bytes,
        copy_blocks: BlockCopier = copy_blocks,
    ) -> None:
        """
        Args:
            available_bytes: main memory that this process may still take; None where nobody says.
            copy_blocks: how its links copy blocks; `kernels.native.block_copy` does so in one call a slice.
        """
        self._available_bytes = available_bytes
        self._copy_slice = functools.partial(copy_slice, copy_blocks=copy_blocks)
        self._promised_bytes = 0
        """Of regions, whose pages are taken only when they are written."""

    @property
    def name(self) -> str:
        return identify_processor().name

    def total_bytes(self) -> int | None:
        return total_memory_bytes()

    def free_bytes(self) -> int | None:
        """Less all regions, as long as this device lives and whether their pages are taken or not."""
        available = self._available_bytes()
        return None if available is None else max(0, available - self._promised_bytes)

    def allocate(self, num_bytes: int) -> Tensor:
        """As `Device` says."""
        free = self.free_bytes()
        if free is not None and num_bytes > free:
            raise MemoryError(
                f"{num_bytes:,} bytes of device memory, which a CPU takes from main memory; {free:,} can be had (of "
                "the machine, or of this process's control group): lower --device-memory"
            )
        region = allocate_host(num_bytes)
        self._promised_bytes += num_bytes
        return region

    def open_link(self, config: LinkConfig, caps_bytes_per_s: Mapping[Direction, float]) -> HostLink:
        return HostLink(config, caps_bytes_per_s, self._copy_slice)

    def open_host_tier(self, limit_bytes: int | None, directory: Path | None = None) -> HostTier:
        """As `Device` says; open it when all regions are allocated."""
        backing = AnonymousBacking() if directory is None else FileBacking(directory)
        return HostTier(limit_bytes, backing, self.free_bytes)

    def link_share(self, kind: HostMemoryKind) -> float:  # noqa: ARG002 - one memory is like the other to a processor
        return 1.0

    def record_event(self) -> StreamEvent | None:
        return None

    def synchronize(self) -> None:
        """The thread that asks is the one that computes."""
