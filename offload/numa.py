"""Which processors and which memory of a machine belong together, and on which of its nodes pages lie.

Through the kernel's own calls, so that libnuma need not be there. Sources: mbind(2), get_mempolicy(2), and the kernel's
Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

_MBIND = {"x86_64": 237, "aarch64": 235}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_PREFERRED = 1
"""MPOL_PREFERRED: a full node lends from the others, where MPOL_BIND would end the process."""
_NODE_OF_ADDRESS = 1 | 2
"""MPOL_F_NODE | MPOL_F_ADDR."""
_MASK_BITS = 1024
_MASK_WORDS = _MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong))

SystemCall = Callable[..., int]
"""Number and arguments as for syscall(2); -1 where it fails."""


@dataclasses.dataclass(frozen=True, slots=True)
class NumaNode:
    """One node with memory."""

    index: int
    processors: frozenset[int]
    free_bytes: int
    """Free, or of files that are not in use."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeShare:
    """Slabs, by their place in a list, that go to one node; None: nobody knows of nodes."""

    node: NumaNode | None
    slabs: tuple[int, ...]


class Numa:
    """The nodes of this machine. Where the system does not say there are none, and nothing is moved."""

    def __init__(
        self, root: Path = Path("/"), call: SystemCall | None = None, machine: str = platform.machine()
    ) -> None:
        """
        Args:
            root: where `sys` is.
            call: None: that of the C library.
            machine: whose numbers the calls have.
        """
        self._root = root
        self._call = call
        self._machine = machine

    def nodes(self) -> tuple[NumaNode, ...]:
        """Those with memory, by index."""
        folder = self._root / "sys/devices/system/node"
        indices = parse_ranges(_text(folder / "has_memory") or _text(folder / "online"))
        return tuple(self._node(folder / f"node{index}", index) for index in sorted(indices))

    def node_of_device(self, pci_address: str | None) -> int | None:
        """Of a device such as "0000:3b:00.0"; None: unknown, or the machine has one node."""
        if pci_address is None:
            return None
        text = _text(self._root / "sys/bus/pci/devices" / pci_address.lower() / "numa_node").strip()
        return int(text) if text.isdigit() else None  # -1: none

    def prefer(self, address: int, num_bytes: int, node: int) -> bool:
        """Have pages that are not touched yet lie on that node; whether the system does it.

        Args:
            address: of a page's first byte.
        """
        number = _MBIND.get(self._machine)
        if number is None or not 0 <= node < _MASK_BITS - 1:
            return False
        mask = (ctypes.c_ulong * _MASK_WORDS)()
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask[node // bits] = 1 << node % bits
        arguments = (ctypes.c_void_p(address), ctypes.c_ulong(num_bytes), ctypes.c_int(_PREFERRED))
        rest = (ctypes.byref(mask), ctypes.c_ulong(_MASK_BITS), ctypes.c_uint(0))
        return self._system_call(number, *arguments, *rest) == 0

    def node_of(self, address: int) -> int | None:
        """On which node a touched page lies."""
        number = _GET_MEMPOLICY.get(self._machine)
        if number is None:
            return None
        found = ctypes.c_int(-1)
        arguments = (ctypes.byref(found), ctypes.c_void_p(), ctypes.c_ulong(0), ctypes.c_void_p(address))
        failed = self._system_call(number, *arguments, ctypes.c_ulong(_NODE_OF_ADDRESS)) != 0
        return None if failed or found.value < 0 else found.value

    def _system_call(self, number: int, *arguments: object) -> int:
        if self._call is not None:
            return self._call(number, *arguments)
        return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments))

    def _node(self, folder: Path, index: int) -> NumaNode:
        free_kb = 0
        for line in _text(folder / "meminfo").splitlines():  # Node 0 MemFree:   1234 kB
            _, _, rest = line.partition(f"Node {index} ")
            key, _, value = rest.partition(":")
            if key in {"MemFree", "Inactive(file)"}:
                free_kb += int(value.split()[0])
        return NumaNode(index, frozenset(parse_ranges(_text(folder / "cpulist"))), free_kb * 1024)


def share_out(sizes: Sequence[int], nodes: Sequence[NumaNode], preferred: int | None) -> list[NodeShare]:
    """Slabs in order, first on the node of the device, then on whichever has most memory free.

    What fits nowhere goes to the last node used: there it may spill over, as the system will have it.
    """
    rest = list(range(len(sizes)))
    if preferred is None or not any(node.index == preferred for node in nodes):
        return [NodeShare(None, tuple(rest))] if rest else []
    ordered = sorted(nodes, key=lambda node: (node.index != preferred, -node.free_bytes))
    shares = []
    for node in ordered:
        taken, free = [], node.free_bytes
        while rest and sizes[rest[0]] <= free:
            free -= sizes[rest[0]]
            taken.append(rest.pop(0))
        if taken:
            shares.append(NodeShare(node, tuple(taken)))
    if rest:
        last = shares.pop() if shares else NodeShare(ordered[0], ())
        shares.append(NodeShare(last.node, (*last.slabs, *rest)))
    return shares


def parse_ranges(text: str) -> set[int]:
    """ "0-2,5" → {0, 1, 2, 5}."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
