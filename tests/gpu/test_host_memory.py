"""Host memory pinned for a device, on a device: registered, copied from beside computation, and given back."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from offload.cuda_device import CudaDevice
from offload.cuda_link import CudaLink, allocate_pinned
from offload.cudart import SUCCESS, LoadedCudart, loaded_runtimes
from offload.host_memory import allocate_host
from offload.host_slabs import HostMemoryKind, HostSlabs
from offload.link_config import LinkConfig
from offload.pinned_memory import PinnedBacking, PinTools
from offload.transfer import Direction, Transfer, TransferClass

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

MIB = 1024**2
WAIT_S = 60.0
SIZES = (24 * MIB, 7 * MIB + 4096, 3 * MIB + 1, 40 * MIB, 256)
"""In chunks of 32 MiB: one of two slabs, one too large for a chunk, and small ones."""


class NeverPins(LoadedCudart):
    """Each registration fails, and leaves its error behind, by asking for no bytes."""

    def register(self, address: int, num_bytes: int) -> int:
        return super().register(address, 0)


def take(cudart: LoadedCudart) -> HostSlabs:
    backing = PinnedBacking(PinTools(cudart, allocate_pinned), None, MIB, 32 * MIB)
    held = backing.allocate(SIZES)
    for seed, slab in enumerate(held.slabs):
        generator = torch.Generator().manual_seed(seed)
        slab.copy_(torch.randint(0, 256, slab.shape, dtype=torch.uint8, generator=generator))
    return held


def checksum(values: Tensor) -> str:
    return hashlib.sha256(values.numpy()).hexdigest()


def round_trip(link: CudaLink, source: Tensor) -> str:
    """Checksum of what comes back from the device."""
    there = torch.zeros(len(source), dtype=torch.uint8, device="cuda")
    back = torch.zeros(len(source), dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()
    link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, source, there, 0.0)).wait(WAIT_S)
    link.submit(Transfer(Direction.D2H, TransferClass.KV_STORE, there, back, 0.0)).wait(WAIT_S)
    return checksum(back)


@pytest.fixture
def link() -> Iterator[CudaLink]:
    link = CudaDevice(torch.cuda.current_device()).open_link(LinkConfig(20e9, 20e9), {})
    yield link
    link.check()
    link.close()


def test_registered_slabs_are_pinned_and_every_byte_arrives(link: CudaLink) -> None:
    held = take(LoadedCudart())
    assert held.kind is HostMemoryKind.PINNED, held.remarks
    assert all(slab.is_pinned() for slab in held.slabs)
    assert all(round_trip(link, slab) == checksum(slab) for slab in held.slabs)
    link.drain()
    held.release()
    assert not any(slab.is_pinned() for slab in held.slabs)
    assert round_trip(link, held.slabs[1]) == checksum(held.slabs[1]), "by bounce buffers, now that it is not pinned"


def test_a_failed_registration_falls_back_and_leaves_no_error(link: CudaLink) -> None:
    held = take(NeverPins())
    (torch.ones(1000, device="cuda") + 1).sum().item()  # where an error left behind would come up
    assert held.kind is HostMemoryKind.PAGEABLE and "chunk 1 of" in held.remarks[0]
    assert all(round_trip(link, slab) == checksum(slab) for slab in held.slabs)


def test_the_error_of_a_registration_is_cleared() -> None:
    assert loaded_runtimes(), "the runtime that torch has loaded is not found among the files of this process"
    cudart, region = LoadedCudart(), allocate_host(4 * MIB)
    assert cudart.register(region.data_ptr(), 4 * MIB) == SUCCESS
    code = cudart.register(region.data_ptr(), 4 * MIB)
    assert code != SUCCESS and str(code) in cudart.describe(code)
    cudart.clear_error()
    (torch.ones(1000, device="cuda") + 1).sum().item()
    assert cudart.unregister(region.data_ptr()) == SUCCESS


def test_a_copy_ends_while_the_device_computes(link: CudaLink, record_property: Callable[..., None]) -> None:
    held = take(LoadedCudart())
    source = held.slabs[3]
    target = torch.zeros(len(source), dtype=torch.uint8, device="cuda")
    matrix = torch.zeros(4096, 4096, dtype=torch.float16, device="cuda")
    device = CudaDevice(torch.cuda.current_device())
    _ = matrix @ matrix
    device.synchronize()
    begun_s = time.perf_counter()
    for _ in range(2000):
        torch.mm(matrix, matrix)
    computed = device.record_event()
    link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, source, target, 0.0)).wait(WAIT_S)
    copied_s = time.perf_counter() - begun_s
    is_computing = not computed.query()
    device.synchronize()
    record_property("overlap", {"copied_s": copied_s, "computed_s": time.perf_counter() - begun_s})
    assert is_computing, "the copy waited for the computation"
    assert torch.equal(target.cpu(), source)
    link.drain()
    held.release()


def test_the_device_says_what_it_is_and_has() -> None:
    device = CudaDevice(torch.cuda.current_device())
    region = device.allocate(64 * MIB)
    assert region.is_cuda and region.data_ptr() % 256 == 0 and not region.any().item()
    assert 0 < device.free_bytes() < device.total_bytes()
    assert device.name == torch.cuda.get_device_name()
    with pytest.raises(MemoryError, match="--device-memory"):
        device.allocate(2 * device.total_bytes())


SCRIPT = """
import signal, sys, torch
from offload.cuda_device import CudaDevice
tier = CudaDevice(0).open_host_tier(None)
held = tier.take("weights", [256 * 1024**2] * 4)
print(held.kind, flush=True)
if sys.argv[1] == "killed":
    signal.pause()
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_process_with_pinned_memory_ends_soon(how: str, record_property: Callable[..., None]) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == "pinned"
        begun_s = time.perf_counter()
        if how == "killed":
            process.kill()
        status = process.wait(WAIT_S)
    record_property("end_s", time.perf_counter() - begun_s)
    assert status == (-signal.SIGKILL if how == "killed" else 0)
