"""Nodes read from a tree of files as the kernel lays it out, and what is asked of the kernel."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from offload.host_memory import allocate_host
from offload.numa import NodeShare, Numa, NumaNode, parse_ranges, share_out

MIB = 1024**2


def machine(root: Path) -> Path:
    """Two nodes with memory, one without; a device on node 2 and one that the firmware says nothing of."""
    folder = root / "sys/devices/system/node"
    for index, (processors, free_kb) in {0: ("0-3,8", 1000), 2: ("4-7", 2000)}.items():
        (folder / f"node{index}").mkdir(parents=True)
        (folder / f"node{index}/cpulist").write_text(f"{processors}\n")
        text = (
            f"Node {index} MemTotal: 9000 kB\nNode {index} MemFree:  {free_kb} kB\nNode {index} Inactive(file): 24 kB\n"
        )
        (folder / f"node{index}/meminfo").write_text(text)
    (folder / "has_memory").write_text("0,2\n")
    for device, node in {"0000:3b:00.0": "2", "0000:01:00.0": "-1"}.items():
        (root / "sys/bus/pci/devices" / device).mkdir(parents=True)
        (root / "sys/bus/pci/devices" / device / "numa_node").write_text(f"{node}\n")
    return root


def test_nodes_are_those_with_memory(tmp_path: Path) -> None:
    assert Numa(machine(tmp_path)).nodes() == (
        NumaNode(0, frozenset({0, 1, 2, 3, 8}), 1024 * 1024),
        NumaNode(2, frozenset({4, 5, 6, 7}), 2024 * 1024),
    )
    assert Numa(tmp_path / "no linux").nodes() == ()


def test_a_devices_node_is_found_by_its_place_on_the_bus(tmp_path: Path) -> None:
    numa = Numa(machine(tmp_path))
    assert numa.node_of_device("0000:3B:00.0") == 2
    assert [numa.node_of_device(address) for address in ("0000:01:00.0", "0000:ff:00.0", None)] == [None] * 3


@pytest.mark.parametrize(("name", "mbind", "get_mempolicy"), [("x86_64", 237, 239), ("aarch64", 235, 236)])
def test_the_kernel_is_asked_by_its_numbers(name: str, mbind: int, get_mempolicy: int) -> None:
    calls: list[tuple[Any, ...]] = []

    def call(number: int, *arguments: Any) -> int:
        calls.append((number, *arguments))
        if number == get_mempolicy:
            arguments[0]._obj.value = 3
        return 0

    numa = Numa(call=call, machine=name)
    assert numa.prefer(4096, 8192, 70) and numa.node_of(4096) == 3
    number, address, size, mode, mask, bits, flags = calls[0]
    assert (number, address.value, size.value, mode.value, flags.value) == (mbind, 4096, 8192, 1, 0)
    words = list(mask._obj)
    assert sum(word << 8 * ctypes.sizeof(ctypes.c_ulong) * i for i, word in enumerate(words)) == 1 << 70
    assert bits.value == 8 * ctypes.sizeof(mask._obj)
    assert calls[1][0] == get_mempolicy and calls[1][4].value == 4096 and calls[1][5].value == 3


def test_a_kernel_that_refuses_or_is_unknown_moves_nothing() -> None:
    for numa in (Numa(call=lambda *_: -1, machine="x86_64"), Numa(machine="riscv64")):
        assert not numa.prefer(4096, 4096, 0) and numa.node_of(4096) is None


def test_this_machine_puts_pages_where_it_is_asked_to_or_says_no() -> None:
    numa, region = Numa(), allocate_host(4 * mmap.PAGESIZE)
    node = next((node.index for node in numa.nodes()), 0)
    is_bound = numa.prefer(region.data_ptr(), len(region), node)
    region.fill_(5)
    assert torch.equal(region, torch.full_like(region, 5))
    if is_bound:
        assert numa.node_of(region.data_ptr()) in (node, None)


def test_slabs_go_to_the_devices_node_first_and_spill_over_by_free_memory() -> None:
    nodes = [NumaNode(0, frozenset(), 10), NumaNode(1, frozenset(), 25), NumaNode(2, frozenset(), 20)]
    assert share_out([10, 10, 10, 10], nodes, 1) == [NodeShare(nodes[1], (0, 1)), NodeShare(nodes[2], (2, 3))]
    assert share_out([20] * 3, nodes, 1) == [NodeShare(nodes[1], (0,)), NodeShare(nodes[2], (1, 2))], (
        "nowhere else left"
    )
    assert share_out([30], nodes, 0) == [NodeShare(nodes[0], (0,))], "no node is large enough"
    assert share_out([5], nodes, None) == share_out([5], [], 1) == [NodeShare(None, (0,))]
    assert share_out([], nodes, 1) == share_out([], [], None) == []


def test_ranges_of_numbers() -> None:
    assert parse_ranges("0-2,5,7-7\n") == {0, 1, 2, 5, 7} and parse_ranges("\n") == set()
