"""Where the host's memory comes from on a machine without an accelerator: anonymous pages, or a file."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from offload.host_memory import allocate_host
from offload.host_slabs import HostMemoryKind, HostSlabs, lay_out, total_bytes


class HostBacking(Protocol):
    """Makes slabs."""

    @property
    def takes_memory(self) -> bool:
        """Whether the slabs need main memory; a file's pages go back to the disk instead."""
        ...

    def allocate(self, sizes: Sequence[int]) -> HostSlabs:
        """One slab of each size.

        Raises:
            MemoryError: they cannot be had.
        """
        ...


class AnonymousBacking:
    """One region of anonymous pages; none is taken before it is written."""

    takes_memory = True

    def __init__(self, allocate: Callable[[int], Tensor] = allocate_host) -> None:
        """
        Args:
            allocate: makes a region, [n] uint8.
        """
        self._allocate = allocate

    def allocate(self, sizes: Sequence[int]) -> HostSlabs:
        """As `HostBacking` says."""
        spans = lay_out(sizes)
        num_bytes = total_bytes(spans, 1)
        region = self._allocate(num_bytes)
        slabs = tuple(region[span.start : span.end] for span in spans)
        return HostSlabs(slabs, HostMemoryKind.ANONYMOUS, num_bytes - sum(sizes))


class FileBacking:
    """A file without a name, mapped: for more weights than there is main memory.

    It has its blocks on the disk from the start, so that a full disk is an error here and not a signal on a later
    write; it ends with its last tensor, however the process ends. Slabs are copied in slices from front to back, as
    read-ahead likes it: 12 to 17 GB/s from the page cache and about 2 from the disk were measured on two cores.
    """

    takes_memory = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def allocate(self, sizes: Sequence[int]) -> HostSlabs:
        """As `HostBacking` says."""
        spans = lay_out(sizes)
        num_bytes = total_bytes(spans, mmap.PAGESIZE)
        region = self._map(num_bytes) if spans else torch.empty(0, dtype=torch.uint8)
        slabs = tuple(region[span.start : span.end] for span in spans)
        return HostSlabs(slabs, HostMemoryKind.FILE, num_bytes - sum(sizes))

    def _map(self, num_bytes: int) -> Tensor:
        try:
            with tempfile.TemporaryFile(dir=self._directory, prefix="headrace-weights-") as file:
                _reserve_blocks(file.fileno(), num_bytes)
                region = mmap.mmap(file.fileno(), num_bytes)
        except OSError as error:
            raise MemoryError(
                f"a file in {self._directory} cannot be had: {error.strerror}; give another --host-memory-directory"
            ) from error
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            region.madvise(mmap.MADV_SEQUENTIAL)
        return torch.frombuffer(region, dtype=torch.uint8)


def _reserve_blocks(descriptor: int, num_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:  # macOS: holes, filled as they are written
        os.truncate(descriptor, num_bytes)
