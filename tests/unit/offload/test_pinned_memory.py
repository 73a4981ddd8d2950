"""What surrounds the pinning of host memory, with a runtime that is none: every way to fail, and what is left then."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import offload.pinned_memory
from offload.available_memory import available_memory_bytes
from offload.host_slabs import HostMemoryKind, HostSlabs
from offload.host_tier import HostMemoryError, HostTier
from offload.numa import Numa
from offload.pinned_memory import PinnedBacking, PinTools
from tests.fake_cudart import FakeCudart, any_bounce, no_bounce

PAGE = mmap.PAGESIZE
GIB = 1024**3
SIZES = (3 * PAGE, 100, 2 * PAGE + 1, 5 * PAGE, PAGE)
MAX_CHUNK = 5 * PAGE
BOUNCE = 4096


class FakeNuma(Numa):
    """Two nodes of four processors. Pages lie on `lies_on`, or where they were wanted, or where they were touched."""

    def __init__(self, root: Path, free_pages: Iterable[int] = (1000, 1000), is_obeyed: bool = True) -> None:
        super().__init__(root)
        self.wanted: list[int] = []
        self.is_obeyed = is_obeyed
        self.lies_on: int | None = None
        self._placed: list[tuple[int, int, int]] = []
        folder = root / "sys/devices/system/node"
        for index, free in enumerate(free_pages):
            (folder / f"node{index}").mkdir(parents=True)
            (folder / f"node{index}/cpulist").write_text(f"{4 * index}-{4 * index + 3}\n")
            free_kb = free * PAGE // 1024
            (folder / f"node{index}/meminfo").write_text(
                f"Node {index} MemFree:   {free_kb} kB\nNode {index} X: 7 kB\n"
            )
        (folder / "has_memory").write_text("0-1\n")

    def prefer(self, address: int, num_bytes: int, node: int) -> bool:
        self.wanted.append(node)
        if self.is_obeyed:
            self._placed.append((address, num_bytes, node))
        return self.is_obeyed

    def node_of(self, address: int) -> int | None:
        if self.lies_on is not None:
            return self.lies_on
        return next((node for start, size, node in self._placed if start <= address < start + size), None)


class Rig:
    """Slabs of `SIZES` on a fake device at node 1."""

    def __init__(self, root: Path, cudart: FakeCudart, **changed: Any) -> None:
        self.cudart = cudart
        self.numa = changed.pop("numa", None) or FakeNuma(root)
        self.touched: list[tuple[int, frozenset[int]]] = []
        node = changed.pop("node", 1)
        self.available: Callable[[], int | None] = changed.pop("available_bytes", lambda: GIB)
        tools = PinTools(
            cudart,
            changed.pop("allocate_bounce", any_bounce),
            self.numa,
            touch=lambda memory, processors: self.touched.append((len(memory), processors)),
            available_bytes=self.available,
            lockable_bytes=lambda: changed.get("lockable"),
        )
        self.tier = HostTier(None, PinnedBacking(tools, node, BOUNCE, MAX_CHUNK), self.available)

    def take(self) -> HostSlabs:
        """With a pattern in each, so that they are shown to be memory of their own."""
        held = self.tier.take("weights", SIZES)
        for index, slab in enumerate(held.slabs):
            slab.fill_(index + 1)
        assert [len(slab) for slab in held.slabs] == list(SIZES)
        assert all(int(slab.min()) == int(slab.max()) == index + 1 for index, slab in enumerate(held.slabs))
        self.tier.check()
        self.cudart.launch()
        return held


def test_slabs_are_pinned_whole_in_chunks_and_released(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeCudart())
    held = rig.take()
    assert held.kind is HostMemoryKind.PINNED and not held.remarks
    assert all(map(rig.cudart.is_pinned, held.slabs)), "no copy may span two registrations"
    assert rig.cudart.sizes == [4 * PAGE, 3 * PAGE, 5 * PAGE, PAGE]
    assert all(address % PAGE == 0 for address in rig.cudart.registered)
    assert sum(rig.cudart.sizes) == sum(SIZES) + held.rounding_bytes, "exact: whole pages and no more"
    rig.tier.close()
    assert not rig.cudart.registered
    held.release()
    rig.cudart.launch()


def test_a_chunk_as_large_as_no_registration_can_be_is_not_tried(tmp_path: Path) -> None:
    """512 GiB at a time always fail, scaled down: together the slabs are beyond that, each chunk is below."""
    rig = Rig(tmp_path, FakeCudart(lambda _, num_bytes: num_bytes > MAX_CHUNK))
    assert sum(SIZES) > MAX_CHUNK and rig.take().kind is HostMemoryKind.PINNED


@pytest.mark.parametrize("first_failing", [0, 1, 3])
def test_a_chunk_that_fails_unpins_the_others_and_leaves_no_error(tmp_path: Path, first_failing: int) -> None:
    rig = Rig(tmp_path, FakeCudart(lambda call, _: call >= first_failing))
    held = rig.take()  # an error left behind would come up in its `launch`
    assert held.kind is HostMemoryKind.PAGEABLE and not rig.cudart.registered
    assert len(rig.cudart.sizes) == first_failing + 1
    assert f"chunk {first_failing + 1} of 4" in held.remarks[0] and "out of memory" in held.remarks[0]
    assert "bounce buffers" in held.remarks[0]
    rig.tier.give_back("weights")
    assert rig.take().kind is HostMemoryKind.PAGEABLE
    assert len(rig.cudart.sizes) == first_failing + 1, "what has failed is not tried again"


def test_without_bounce_buffers_either_it_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeCudart(lambda *_: True), allocate_bounce=no_bounce)
    with pytest.raises(HostMemoryError, match=r"chunk 1 of 4.*--host-memory"):
        rig.tier.take("weights", SIZES)
    rig.cudart.launch()
    assert rig.tier.used_bytes == 0


def test_the_limit_of_locked_memory_is_named_where_pinning_fails(tmp_path: Path) -> None:
    """NVIDIA's driver goes beyond it, so it alone is no reason not to try."""
    failing = Rig(tmp_path / "failing", FakeCudart(lambda *_: True), lockable=8 * 1024)
    remark = failing.take().remarks[0]
    assert "may lock 8,192 bytes" in remark and f"{13 * PAGE:,} are wanted" in remark and "RLIMIT_MEMLOCK" in remark
    enough = Rig(tmp_path / "enough", FakeCudart(lambda *_: True), lockable=13 * PAGE)
    assert "lock" not in enough.take().remarks[0]
    beyond = Rig(tmp_path / "beyond", FakeCudart(), lockable=8 * 1024).take()
    assert beyond.kind is HostMemoryKind.PINNED and not beyond.remarks


def test_a_control_group_smaller_than_the_machine_is_found_before_any_page_is_taken(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{10 * PAGE}\n")
    (group / "memory.current").write_text("0\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {GIB // 1024} kB\n")
    rig = Rig(tmp_path, FakeCudart(), available_bytes=lambda: available_memory_bytes(tmp_path))
    with pytest.raises(HostMemoryError, match=f"{sum(SIZES):,} bytes.* {10 * PAGE:,} can be had .*--host-memory"):
        rig.tier.take("weights", SIZES)
    assert not rig.touched and not rig.cudart.sizes


def test_memory_that_would_leave_nothing_to_others_is_not_pinned(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeCudart(), available_bytes=lambda: int(sum(SIZES) * 1.04))
    held = rig.take()
    assert held.kind is HostMemoryKind.PAGEABLE and not rig.cudart.sizes
    assert "leave less than 5%" in held.remarks[0]


def test_each_node_has_one_mapping_the_devices_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeCudart(), numa=FakeNuma(tmp_path, free_pages=(100, 8)))
    held = rig.take()
    assert rig.numa.wanted == [1, 0] and len(rig.touched) == 2
    assert held.kind is HostMemoryKind.PINNED and all(map(rig.cudart.is_pinned, held.slabs))
    assert len(held.remarks) == 1 and "the device's, 1 (6 on node 0)" in held.remarks[0]


def test_pages_on_another_node_than_asked_for_are_reported(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeCudart())
    rig.numa.lies_on = 0
    held = rig.take()
    assert held.kind is HostMemoryKind.PINNED
    assert "13 of 13 sampled pages" in held.remarks[0] and "13 on node 0" in held.remarks[0]


def test_where_the_system_binds_no_memory_the_nodes_processors_touch_it(tmp_path: Path) -> None:
    obeyed = Rig(tmp_path / "obeyed", FakeCudart())
    obeyed.take()
    assert obeyed.touched == [(13 * PAGE, frozenset())]
    refused = Rig(tmp_path / "refused", FakeCudart(), numa=FakeNuma(tmp_path / "r", is_obeyed=False))
    refused.take()
    assert refused.touched == [(13 * PAGE, frozenset({4, 5, 6, 7}))]


@pytest.mark.parametrize("node", [None, 7])
def test_a_device_of_no_known_node_has_its_memory_anywhere(tmp_path: Path, node: int | None) -> None:
    rig = Rig(tmp_path, FakeCudart(), node=node)
    held = rig.take()
    assert held.kind is HostMemoryKind.PINNED and not held.remarks and not rig.numa.wanted


def test_the_end_of_the_process_unpins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], None]] = []

    class Exit:
        register = staticmethod(at_exit.append)
        unregister = staticmethod(lambda done: at_exit.remove(done) if done in at_exit else None)

    monkeypatch.setattr(offload.pinned_memory, "atexit", Exit)
    rig = Rig(tmp_path, FakeCudart())
    held = rig.take()
    assert len(at_exit) == 1 and rig.cudart.registered
    at_exit[0]()
    assert not rig.cudart.registered and not at_exit
    held.release()
    rig.cudart.launch()


def test_a_chunk_that_cannot_be_unpinned_is_said_and_the_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, FakeCudart())
    rig.take()
    del rig.cudart.registered[min(rig.cudart.registered)]
    rig.tier.close()
    rig.cudart.launch()
    assert not rig.cudart.registered and "could not be unpinned: error 713" in caplog.text


def test_nothing_to_pin_is_pinned(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FakeCudart())
    held = rig.tier.take("weights", ())
    assert held.slabs == () and not rig.cudart.sizes


def test_real_pages_are_touched_and_survive(tmp_path: Path) -> None:
    """With this machine's nodes, calls and threads: bytes of registered memory are those that were written."""
    tools = PinTools(FakeCudart(), any_bounce)
    backing = PinnedBacking(tools, 0 if Numa().nodes() else None, BOUNCE)
    held = backing.allocate([3 * PAGE, 2 * PAGE])
    held.slabs[1].fill_(9)
    assert held.kind is HostMemoryKind.PINNED
    assert ctypes.string_at(held.slabs[1].data_ptr(), 2 * PAGE) == b"\x09" * 2 * PAGE
    assert torch.equal(held.slabs[0], torch.zeros(3 * PAGE, dtype=torch.uint8))
    held.release()
