"""The calls of the CUDA runtime that pin memory, without one: with its rules, and its way of remembering errors."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch
from torch import Tensor

OUT_OF_MEMORY = 2
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713


class FakeCudart:
    """Registers ranges by page. A failed call's error stays until it is cleared, and then comes up in `launch`."""

    def __init__(self, fails: Callable[[int, int], bool] = lambda _call, _num_bytes: False) -> None:
        """
        Args:
            fails: whether the n-th registration, of that many bytes, does.
        """
        self.fails = fails
        self.registered: dict[int, int] = {}
        self.sizes: list[int] = []
        """Of all that was asked for."""
        self.pending = 0

    def register(self, address: int, num_bytes: int) -> int:
        self.sizes.append(num_bytes)
        if self.fails(len(self.sizes) - 1, num_bytes):
            return self._fail(OUT_OF_MEMORY)
        pages = self._pages(address, num_bytes)
        if any(pages & self._pages(*other) for other in self.registered.items()):
            return self._fail(ALREADY_REGISTERED)
        self.registered[address] = num_bytes
        return 0

    def unregister(self, address: int) -> int:
        return 0 if self.registered.pop(address, None) is not None else self._fail(NOT_REGISTERED)

    def clear_error(self) -> None:
        self.pending = 0

    def describe(self, code: int) -> str:
        return {OUT_OF_MEMORY: "out of memory"}.get(code, f"error {code}")

    def launch(self) -> None:
        """An unrelated call."""
        if self.pending:
            raise RuntimeError(f"CUDA error {self.pending} in an unrelated call")

    def is_pinned(self, slab: Tensor) -> bool:
        """Whether one registration holds all of it: a copy of it is one call."""
        start, end = slab.data_ptr(), slab.data_ptr() + len(slab)
        return any(first <= start and end <= first + size for first, size in self.registered.items())

    def _fail(self, code: int) -> int:
        self.pending = code
        return code

    @staticmethod
    def _pages(address: int, num_bytes: int) -> set[int]:
        return set(range(address // mmap.PAGESIZE, -(-(address + num_bytes) // mmap.PAGESIZE)))


def no_bounce(num_bytes: int) -> Tensor:
    """A device that can pin nothing."""
    raise RuntimeError(f"CUDA error: out of memory ({num_bytes} bytes)")


def any_bounce(num_bytes: int) -> Tensor:
    """One that can pin a little."""
    return torch.empty(num_bytes, dtype=torch.uint8)
