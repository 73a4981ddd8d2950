"""A CPU and a CUDA device behind one interface; the latter on a stand-in for `torch.cuda`."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.block_copy import BlockPieces, copy_blocks
from offload.block_transfer import BlockTransfer
from offload.cpu_device import CpuDevice
from offload.cuda_device import CudaDevice
from offload.cuda_link import CudaLink
from offload.device import Device, DeviceKind
from offload.host_link import HostLink
from offload.host_slabs import HostMemoryKind
from offload.host_tier import HostMemoryError
from offload.link_config import LinkConfig
from offload.numa import Numa
from offload.transfer import Direction, Transfer, TransferClass
from tests.fake_cuda import FakeCuda, FakeStream
from tests.fake_cudart import FakeCudart

CONFIG = LinkConfig(1e9, 1e9)
GB = 10**9


class DeviceCuda(FakeCuda):
    """With a device to ask for."""

    def __init__(self, **place: int) -> None:
        super().__init__()
        self.properties = SimpleNamespace(name="Imaginary GPU", total_memory=24 * GB, **place)
        self.computing = FakeStream(self)
        self.streams.append(self.computing)
        self.num_waits = 0

    def is_available(self) -> bool:
        return True

    def get_device_properties(self, device: torch.device) -> Any:
        return self.properties

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 5 * GB, 24 * GB

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.computing

    def synchronize(self, device: torch.device) -> None:
        self.num_waits += 1
        self.run_all()


def zeros(num_bytes: int, device: torch.device) -> Tensor:
    if num_bytes > 5 * GB:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return torch.zeros(num_bytes, dtype=torch.uint8)


def cuda_device(cuda: DeviceCuda, cudart: FakeCudart | None = None, numa: Numa | None = None) -> CudaDevice:
    return CudaDevice(1, cuda=cuda, make_cudart=lambda: cudart or FakeCudart(), make_region=zeros, numa=numa)


def test_a_cpu_promises_no_more_than_main_memory_has() -> None:
    device: Device = CpuDevice(lambda: 10_000)
    assert device.kind is DeviceKind.CPU and device.name
    region = device.allocate(6000)
    assert len(region) == 6000 and not region.any() and device.free_bytes() == 4000
    with pytest.raises(MemoryError, match=r"5,000 bytes of device memory.* 4,000 can be had.*--device-memory"):
        device.allocate(5000)
    with pytest.raises(HostMemoryError, match="4,001 bytes of host memory, 4,000 can be had"):
        device.open_host_tier(None).take("weights", (4001,))
    assert device.open_host_tier(None).take("weights", (4000,)).kind is HostMemoryKind.ANONYMOUS


def test_what_a_cpu_does_not_know_bounds_nothing() -> None:
    device = CpuDevice(lambda: None)
    device.allocate(1000)
    assert device.free_bytes() is None and device.open_host_tier(None).free_bytes is None


def test_a_cpus_link_copies_at_the_emulated_speed(tmp_path: Path) -> None:
    device = CpuDevice()
    link = device.open_link(CONFIG, {Direction.H2D: 1e9})
    held = device.open_host_tier(None, tmp_path).take("weights", (1000,))
    assert held.kind is HostMemoryKind.FILE and device.link_share(held.kind) == 1.0
    held.slabs[0].fill_(3)
    target = device.allocate(1000)
    link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, held.slabs[0], target, math.inf)).wait(30)
    link.close()
    assert isinstance(link, HostLink) and torch.equal(held.slabs[0], target)
    assert device.record_event() is None
    device.synchronize()


def test_a_cpus_link_copies_blocks_as_it_is_told() -> None:
    asked: list[tuple[int, int]] = []

    def copy(pieces: BlockPieces, start: int, end: int) -> None:
        asked.append((start, end))
        copy_blocks(pieces, start, end)

    source, target = torch.arange(120, dtype=torch.uint8).view(4, 30), torch.zeros(2, 30, dtype=torch.uint8)
    load = BlockTransfer(Direction.H2D, TransferClass.KV_LOAD, source, (3, 1), target, (0, 1), 0, 30, math.inf)
    link = CpuDevice(copy_blocks=copy).open_link(CONFIG, {})
    link.submit(load).wait(30)
    link.close()
    assert asked == [(0, 60)] and torch.equal(target, source[[3, 1]])


def test_this_machine_has_as_much_as_it_says() -> None:
    total, free = CpuDevice().total_bytes(), CpuDevice().free_bytes()
    assert total is not None and free is not None and 0 < free <= total


def test_a_cuda_device_says_what_it_is() -> None:
    cuda = DeviceCuda(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    device: Device = cuda_device(cuda)
    assert (device.kind, device.name, device.total_bytes(), device.free_bytes()) == (
        DeviceKind.CUDA, "Imaginary GPU", 24 * GB, 5 * GB,
    )  # fmt: skip
    assert cuda_device(cuda).pci_address == "0000:3b:00.0" and cuda_device(DeviceCuda()).pci_address is None
    assert CudaDevice.is_available(cuda) and not CudaDevice.is_available(SimpleNamespace(is_available=lambda: False))


def test_a_cuda_device_without_memory_says_what_there_is() -> None:
    device = cuda_device(DeviceCuda())
    assert len(device.allocate(1000)) == 1000
    with pytest.raises(MemoryError, match=r"6,000,000,000 bytes.* 5,000,000,000 of 24,000,000,000 .*--device-memory"):
        device.allocate(6 * GB)


def test_an_event_is_behind_what_was_given_to_the_device() -> None:
    cuda = DeviceCuda()
    device = cuda_device(cuda)
    done: list[str] = []
    cuda.computing.work.append(lambda: done.append("layer"))
    event = device.record_event()
    assert not event.query() and not done
    device.synchronize()
    assert event.query() and done == ["layer"] and cuda.num_waits == 1


def test_a_cuda_devices_link_is_as_fast_as_it_is() -> None:
    device = cuda_device(DeviceCuda())
    with pytest.raises(ValueError, match=r"h2d 2 GB/s.*on a CPU only.*--link-gbps"):
        device.open_link(CONFIG, {Direction.H2D: 2e9})
    link = device.open_link(CONFIG, {})
    assert isinstance(link, CudaLink)
    link.close()


def test_host_memory_of_a_cuda_device_is_pinned_near_it(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    bus.mkdir(parents=True)
    (bus / "numa_node").write_text("0\n")
    nodes = tmp_path / "sys/devices/system/node"
    (nodes / "node0").mkdir(parents=True)
    (nodes / "has_memory").write_text("0\n")
    (nodes / "node0/cpulist").write_text("0\n")
    (nodes / "node0/meminfo").write_text("Node 0 MemFree: 1000 kB\n")
    asked: list[int] = []

    def call(number: int, address: Any, *rest: Any) -> int:
        asked.append(number)
        return -1 if len(rest) < 4 else 0

    cudart = FakeCudart()
    cuda = DeviceCuda(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    device = cuda_device(cuda, cudart, Numa(tmp_path, call, "x86_64"))
    held = device.open_host_tier(100_000).take("weights", (8192, 5000))
    assert held.kind is HostMemoryKind.PINNED and all(map(cudart.is_pinned, held.slabs)) and asked[0] == 237
    assert device.link_share(held.kind) == 1.0
    held.release()


def test_host_memory_that_is_not_pinned_is_slower(tmp_path: Path) -> None:
    device = cuda_device(DeviceCuda())
    held = device.open_host_tier(None, tmp_path).take("weights", (1000,))
    assert held.kind is HostMemoryKind.FILE
    assert device.link_share(held.kind) == device.link_share(HostMemoryKind.PAGEABLE) == 0.5
