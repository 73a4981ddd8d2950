"""What weights and KV are computed on, as far as memory and copies are concerned."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from torch import Tensor

from offload.host_slabs import HostMemoryKind
from offload.host_tier import HostTier
from offload.link import Link
from offload.link_config import LinkConfig
from offload.transfer import Direction, StreamEvent


class DeviceKind(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class Device(Protocol):
    """One device. Used by the thread that computes."""

    @property
    def kind(self) -> DeviceKind: ...

    @property
    def name(self) -> str:
        """As its maker calls it."""
        ...

    def total_bytes(self) -> int | None:
        """Of its memory; None: the system does not say."""
        ...

    def free_bytes(self) -> int | None:
        """What can be had of it now; None: the system does not say."""
        ...

    def allocate(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 of zeros on the device, at a multiple of 256 bytes: an arena's region.

        Raises:
            MemoryError: it cannot be had.
        """
        ...

    def open_link(self, config: LinkConfig, caps_bytes_per_s: Mapping[Direction, float]) -> Link:
        """Between the device and the host.

        Args:
            caps_bytes_per_s: of a slower link that is emulated, by direction.

        Raises:
            ValueError: a cap is not positive, or this device emulates no link.
        """
        ...

    def open_host_tier(self, limit_bytes: int | None, directory: Path | None = None) -> HostTier:
        """The host's memory that this device copies from.

        Args:
            limit_bytes: see `HostTier`.
            directory: for a file instead of main memory.
        """
        ...

    def link_share(self, kind: HostMemoryKind) -> float:
        """Which share of the link's bandwidth copies from such memory reach, 0..1, until it has been measured."""
        ...

    def record_event(self) -> StreamEvent | None:
        """Marks what was given to the device so far; None: that has been computed already."""
        ...

    def synchronize(self) -> None:
        """Block until all that was given to the device has been computed."""
        ...
