"""Host memory that a CUDA device copies from at full speed: exact in size, near the device, pinned in chunks.

torch's `pin_memory` rounds each piece up to a power of two and knows of no nodes. Here the share of each node is one
mapping, its pages are touched by many threads, and whole slabs are registered, at most 64 GiB at a time: a registration
of 512 GiB or more always fails, and a copy must not span two (vLLM's pull request 51081). Where pinning fails, copies
go through bounce buffers; where not even these can be had, the start ends.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import mmap
from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from offload.available_memory import available_memory_bytes
from offload.cudart import SUCCESS, Cudart
from offload.first_touch import touch
from offload.host_memory import allocate_host
from offload.host_slabs import HostMemoryKind, HostSlabs, Span, chunks, lay_out, total_bytes
from offload.locked_memory import lockable_bytes
from offload.numa import NodeShare, Numa, NumaNode, share_out

logger = logging.getLogger(__name__)

MAX_CHUNK_BYTES = 64 * 1024**3
SPARE_SHARE = 0.05
"""Of the memory that can be had, left unpinned: pinned pages cannot be taken back from a process."""
NUM_SAMPLES = 64
"""Pages of a region whose node is asked for."""


class PinError(Exception):
    """Memory cannot be pinned; the message says why. Never leaves this file."""


@dataclasses.dataclass(frozen=True, slots=True)
class PinTools:
    """What pinning works with, to be replaced where there is no device."""

    cudart: Cudart
    allocate_bounce: Callable[[int], Tensor]
    """[n] uint8 that the device reaches, by another way than registration; raises RuntimeError."""
    numa: Numa = dataclasses.field(default_factory=Numa)
    allocate: Callable[[int], Tensor] = allocate_host
    touch: Callable[[Tensor, frozenset[int]], None] = touch
    available_bytes: Callable[[], int | None] = available_memory_bytes
    lockable_bytes: Callable[[], int | None] = lockable_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class _Region:
    """One mapping, and the slabs in it."""

    node: NumaNode | None
    memory: Tensor
    slabs: tuple[int, ...]
    """Their places among all."""
    spans: tuple[Span, ...]

    def chunks(self, max_bytes: int) -> list[Span]:
        """Address and size of what is registered at a time."""
        start = self.memory.data_ptr()
        return [Span(start + one.start, one.num_bytes) for one in chunks(self.spans, mmap.PAGESIZE, max_bytes)]


class _Registration:
    """Pinned chunks: until `release`, or the end of this process.

    Without that, the kernel unpins while it ends the process, which takes tens of seconds for hundreds of GB.
    """

    def __init__(self, cudart: Cudart, memory: Sequence[Tensor]) -> None:
        """
        Args:
            memory: kept for as long as it is pinned.
        """
        self._cudart = cudart
        self._memory = tuple(memory)
        self._addresses: list[int] = []
        atexit.register(self.release)

    def register(self, chunk: Span) -> int:
        """The error's code, which no later call will report again."""
        code = self._cudart.register(chunk.start, chunk.num_bytes)
        if code == SUCCESS:
            self._addresses.append(chunk.start)
        else:
            self._cudart.clear_error()
        return code

    def release(self) -> None:
        """Unpin all; idempotent."""
        atexit.unregister(self.release)
        while self._addresses:
            code = self._cudart.unregister(self._addresses.pop())
            if code != SUCCESS:
                self._cudart.clear_error()
                logger.warning("a chunk of host memory could not be unpinned: %s", self._cudart.describe(code))
        self._memory = ()


class PinnedBacking:
    """Slabs of pinned memory; after a failure, and from then on, of pageable memory.

    Used by one thread, which is the one that a failure of the runtime would come up in again.
    """

    takes_memory = True

    def __init__(
        self,
        tools: PinTools,
        device_node: int | None,
        bounce_bytes: int,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
    ) -> None:
        """
        Args:
            device_node: the node that the device is attached to; None: unknown, or there is one.
            bounce_bytes: of a bounce buffer.
            max_chunk_bytes: registered at a time; a larger slab is registered whole.
        """
        self._tools = tools
        self._device_node = device_node
        self._bounce_bytes = bounce_bytes
        self._max_chunk_bytes = max_chunk_bytes
        self._failure: str | None = None

    def allocate(self, sizes: Sequence[int]) -> HostSlabs:
        """As `HostBacking` says.

        Raises:
            MemoryError: there is no memory, or neither it nor a bounce buffer can be pinned.
        """
        try:
            self._require_spare(sum(sizes))
        except PinError as error:
            self._failure = str(error)
        regions = self._map(sizes)
        remarks = [remark for region in regions for remark in self._misplaced(region)]
        slabs = {
            index: region.memory[span.start : span.end]
            for region in regions
            for index, span in zip(region.slabs, region.spans, strict=True)
        }
        ordered = tuple(slabs[index] for index in range(len(sizes)))
        rounding = sum(len(region.memory) for region in regions) - sum(sizes)
        if self._failure is None:
            try:
                release = self._register(regions)
            except PinError as error:
                self._failure = str(error)
            else:
                return HostSlabs(ordered, HostMemoryKind.PINNED, rounding, tuple(remarks), release)
        self._require_bounce(self._failure)
        remarks.insert(0, f"not pinned, copies go through bounce buffers at a lower speed: {self._failure}")
        return HostSlabs(ordered, HostMemoryKind.PAGEABLE, rounding, tuple(remarks))

    def _require_spare(self, wanted: int) -> None:
        available = self._tools.available_bytes()
        if available is not None and wanted > (1.0 - SPARE_SHARE) * available:
            raise PinError(
                f"{wanted:,} of {available:,} bytes of main memory that can be had (of the machine, or of this "
                f"process's control group) leave less than {SPARE_SHARE:.0%} of it to everything else; "
                "keep less on the host with --host-memory"
            )

    def _require_bounce(self, failure: str) -> None:
        """Better no start than one whose first copy fails."""
        try:
            self._tools.allocate_bounce(self._bounce_bytes)
        except RuntimeError as error:
            self._tools.cudart.clear_error()
            raise MemoryError(
                f"neither it nor a bounce buffer of {self._bounce_bytes:,} bytes can be pinned: {failure}; {error}"
            ) from error

    def _map(self, sizes: Sequence[int]) -> list[_Region]:
        """One touched mapping for each node that slabs go to."""
        page = mmap.PAGESIZE
        nodes = self._tools.numa.nodes()
        return [
            self._map_share(share, lay_out([sizes[index] for index in share.slabs], page))
            for share in share_out(sizes, nodes, self._device_node)
        ]

    def _map_share(self, share: NodeShare, spans: tuple[Span, ...]) -> _Region:
        memory = self._tools.allocate(total_bytes(spans, mmap.PAGESIZE))
        processors: frozenset[int] = frozenset()
        if share.node is not None and not self._tools.numa.prefer(memory.data_ptr(), len(memory), share.node.index):
            processors = share.node.processors  # else pages lie next to who touches them first
        self._tools.touch(memory, processors)
        return _Region(share.node, memory, share.slabs, spans)

    def _misplaced(self, region: _Region) -> list[str]:
        """Where pages lie elsewhere than next to the device."""
        wanted = self._device_node
        if wanted is None or region.node is None:
            return []
        num_pages = len(region.memory) // mmap.PAGESIZE
        step = max(1, num_pages // NUM_SAMPLES)
        start = region.memory.data_ptr()
        sampled = [self._tools.numa.node_of(start + page * mmap.PAGESIZE) for page in range(0, num_pages, step)]
        found = Counter(node for node in sampled if node is not None)
        num_elsewhere = found.total() - found[wanted]
        if not num_elsewhere:
            return []
        where = ", ".join(f"{count} on node {node}" for node, count in sorted(found.items()))
        return [
            f"{num_elsewhere} of {found.total()} sampled pages of {len(region.memory):,} bytes lie on another node "
            f"than the device's, {wanted} ({where}): copies from there were measured at 0.35 to 0.67 of the speed; "
            f"free memory on node {wanted}, or keep less on the host with --host-memory"
        ]

    def _register(self, regions: Sequence[_Region]) -> Callable[[], None]:
        """Pin all, or nothing; how to undo it."""
        cudart = self._tools.cudart
        wanted = [chunk for region in regions for chunk in region.chunks(self._max_chunk_bytes)]
        registration = _Registration(cudart, [region.memory for region in regions])
        for index, chunk in enumerate(wanted):
            code = registration.register(chunk)
            if code != SUCCESS:
                registration.release()
                raise PinError(
                    f"chunk {index + 1} of {len(wanted)} ({chunk.num_bytes:,} bytes) cannot be registered: "
                    f"{cudart.describe(code)}{self._locking_text(sum(one.num_bytes for one in wanted))}"
                )
        return registration.release

    def _locking_text(self, wanted: int) -> str:
        """NVIDIA's driver on Linux pins beyond this limit, so it is no reason not to try; others keep to it."""
        limit = self._tools.lockable_bytes()
        if limit is None or limit >= wanted:
            return ""
        return (
            f"; this process may lock {limit:,} bytes, {wanted:,} are wanted: raise RLIMIT_MEMLOCK (ulimit -l, "
            "LimitMEMLOCK= of a service, --ulimit memlock=-1 of a container)"
        )
