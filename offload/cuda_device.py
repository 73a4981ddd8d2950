"""A CUDA device: its memory, its link, and pinned memory on the host's side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from offload.available_memory import available_memory_bytes
from offload.cuda_link import CudaLink, allocate_pinned
from offload.cudart import Cudart, LoadedCudart
from offload.device import DeviceKind
from offload.host_backing import FileBacking
from offload.host_slabs import HostMemoryKind
from offload.host_tier import HostTier
from offload.link_book import MAX_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.numa import Numa
from offload.pinned_memory import PinnedBacking, PinTools
from offload.transfer import Direction, StreamEvent

BOUNCE_LINK_SHARE = 0.5
"""Of the pinned bandwidth: copies from pageable memory were measured at about half of it (llama.cpp's issue 20978). The
link measures its own slices from the first one on, and the plan follows."""


class DeviceProperties(Protocol):
    """Of `torch.cuda.get_device_properties`; the place on the bus is there in newer versions of torch only."""

    name: str
    total_memory: int


class CudaDevice:
    """Implements `Device`."""

    kind = DeviceKind.CUDA

    def __init__(
        self,
        index: int = 0,
        *,
        cuda: Any = torch.cuda,
        make_cudart: Callable[[], Cudart] = LoadedCudart,
        make_region: Callable[[int, torch.device], Tensor] | None = None,
        numa: Numa | None = None,
    ) -> None:
        """
        Args:
            index: of the device.
            cuda: what touches it can be replaced, to test the rest without one.
            make_cudart: called when host memory is to be pinned.
            make_region: [n] uint8 of zeros on the device.
            numa: None: this machine's.
        """
        self._cuda = cuda
        self._make_cudart = make_cudart
        self._make_region = make_region or _zeros
        self._numa = numa or Numa()
        self.torch_device = torch.device("cuda", index)
        self._properties: DeviceProperties = cuda.get_device_properties(self.torch_device)

    @staticmethod
    def is_available(cuda: Any = torch.cuda) -> bool:
        """Whether torch was built for CUDA and finds a device and a driver."""
        return bool(cuda.is_available())

    @property
    def name(self) -> str:
        return self._properties.name

    @property
    def pci_address(self) -> str | None:
        """Such as "0000:3b:00.0"; None where torch does not say."""
        parts = [getattr(self._properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        if not all(isinstance(part, int) for part in parts):
            return None
        domain, bus, device = parts
        return f"{domain:04x}:{bus:02x}:{device:02x}.0"

    def total_bytes(self) -> int:
        return self._properties.total_memory

    def free_bytes(self) -> int:
        return int(self._cuda.mem_get_info(self.torch_device)[0])

    def allocate(self, num_bytes: int) -> Tensor:
        """As `Device` says."""
        try:
            return self._make_region(num_bytes, self.torch_device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"{num_bytes:,} bytes of device memory, {self.free_bytes():,} of {self.total_bytes():,} are free on "
                f"{self.name}: lower --device-memory, or end what else runs there"
            ) from error

    def open_link(self, config: LinkConfig, caps_bytes_per_s: Mapping[Direction, float]) -> CudaLink:
        """As `Device` says; no link is emulated."""
        if caps_bytes_per_s:
            caps = ", ".join(f"{direction} {value / 1e9:g} GB/s" for direction, value in caps_bytes_per_s.items())
            raise ValueError(f"a slower link ({caps}) is emulated on a CPU only; leave out --link-gbps and --emulate")
        return CudaLink(config, self.torch_device, cuda=self._cuda)

    def open_host_tier(self, limit_bytes: int | None, directory: Path | None = None) -> HostTier:
        """As `Device` says; in main memory it is pinned, a file's is not."""
        if directory is not None:
            return HostTier(limit_bytes, FileBacking(directory))
        tools = PinTools(self._make_cudart(), allocate_pinned, self._numa, available_bytes=available_memory_bytes)
        backing = PinnedBacking(tools, self._numa.node_of_device(self.pci_address), MAX_SLICE_BYTES)
        return HostTier(limit_bytes, backing)

    def link_share(self, kind: HostMemoryKind) -> float:
        return 1.0 if kind is HostMemoryKind.PINNED else BOUNCE_LINK_SHARE

    def record_event(self) -> StreamEvent:
        event: StreamEvent = self._cuda.Event(blocking=True)
        event.record(self._cuda.current_stream(self.torch_device))  # type: ignore[attr-defined]
        return event

    def synchronize(self) -> None:
        self._cuda.synchronize(self.torch_device)


def _zeros(num_bytes: int, device: torch.device) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
