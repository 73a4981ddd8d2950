"""How fast a link is, in a few milliseconds: what a server without a performance record expects of it at first."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from offload.host_memory import allocate_host
from offload.link import Link
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass

SLICE_BYTES = 2**20
BUFFER_BYTES = 8 * SLICE_BYTES
BUDGET_S = 0.004
"""For each of three measurements: both directions alone, and together."""
_TIMEOUT_S = 10.0
GUESS = LinkConfig(5e9, 5e9)
"""What the link that is measured is told of itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Bytes per second of a direction alone; and the share of it that is left while the other carries data."""

    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    coupling: float

    def config(self, cap_bytes_per_s: float | None) -> LinkConfig:
        """What to expect of it, or of a slower one that it emulates."""
        if cap_bytes_per_s is None:
            return LinkConfig(self.h2d_bytes_per_s, self.d2h_bytes_per_s, self.coupling)
        h2d, d2h = min(cap_bytes_per_s, self.h2d_bytes_per_s), min(cap_bytes_per_s, self.d2h_bytes_per_s)
        # Both at once are held back only where the memory below cannot carry both.
        left = self.coupling * min(self.h2d_bytes_per_s / h2d, self.d2h_bytes_per_s / d2h)
        return LinkConfig(h2d, d2h, min(1.0, left))


def measure_link_speed(open_link: Callable[[LinkConfig], Link]) -> LinkSpeed:
    """Copies within main memory, as a CPU's link does them.

    Args:
        open_link: an idle link; it is closed here.

    Raises:
        LinkError: a copy failed.
        MemoryError: there is no memory for the buffers.
    """
    buffers = {direction: (allocate_host(BUFFER_BYTES), allocate_host(BUFFER_BYTES)) for direction in Direction}
    for source, target in buffers.values():
        source.fill_(1)
        target.fill_(2)
    link = open_link(GUESS)

    def copy(*directions: Direction) -> float:
        """Bytes per second of each of them."""
        num_bytes, started_s = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - started_s) < BUDGET_S or num_bytes == 0:
            handles = [link.submit(transfer) for direction in directions for transfer in slices(direction)]
            for handle in handles:
                handle.wait(_TIMEOUT_S)
            num_bytes += BUFFER_BYTES
        return num_bytes / elapsed_s

    def slices(direction: Direction) -> list[Transfer]:
        source, target = buffers[direction]
        transfer_class = TransferClass.KV_LOAD if direction is Direction.H2D else TransferClass.KV_STORE
        ranges = [slice(start, start + SLICE_BYTES) for start in range(0, BUFFER_BYTES, SLICE_BYTES)]
        return [Transfer(direction, transfer_class, source[each], target[each], math.inf) for each in ranges]

    try:
        h2d, d2h = copy(Direction.H2D), copy(Direction.D2H)
        both = copy(Direction.H2D, Direction.D2H)
    finally:
        link.close()
    return LinkSpeed(h2d, d2h, min(1.0, max(0.1, both / min(h2d, d2h))))
