"""Device memory with a hard cap and a ledger: whatever lives on the device is carved from it.

Pieces are taken from either end and given back in reverse, like two stacks whose tops face each other. KV blocks grow
from the front, resident weights from the back, so that the border between them moves without copies.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable

from torch import Tensor

from offload.errors import OffloadError
from offload.host_memory import allocate_host

ALIGNMENT_BYTES = 256
FREE = "free"
"""The ledger's entry for what nobody holds."""


class ArenaFull(OffloadError):
    """A piece does not fit under the cap."""


@dataclasses.dataclass(slots=True)
class _Piece:
    owner: str
    num_bytes: int


class Arena:
    """`capacity_bytes` of memory. Pieces lie at multiples of 256 bytes and are charged as such multiples."""

    def __init__(self, capacity_bytes: int, allocate: Callable[[int], Tensor] = allocate_host) -> None:
        """
        Args:
            allocate: makes the region, [n] uint8 at a multiple of 256 bytes, on the device.

        Raises:
            ValueError: the capacity is not positive.
            MemoryError: it cannot be had.
        """
        if capacity_bytes < 1:
            raise ValueError(f"an arena of {capacity_bytes} bytes; it must have at least 1")
        self.region = allocate(capacity_bytes)
        """[capacity_bytes] uint8."""
        self._front: list[_Piece] = []
        self._back: list[_Piece] = []
        self._reserved: Counter[str] = Counter()

    @property
    def capacity_bytes(self) -> int:
        return len(self.region)

    @property
    def free_bytes(self) -> int:
        """Between both ends, less what is reserved without an address."""
        return self._usable_bytes - _sum(self._front) - _sum(self._back) - self._reserved.total()

    def take(self, owner: str, num_bytes: int, from_end: bool = False) -> Tensor:
        """A view [num_bytes] uint8 next to the pieces of that end; neighbours of one owner become one piece.

        Raises:
            ArenaFull: it does not fit.
        """
        size = aligned(num_bytes)
        self._require(owner, size)
        pieces = self._back if from_end else self._front
        if pieces and pieces[-1].owner == owner:
            pieces[-1].num_bytes += size
        else:
            pieces.append(_Piece(owner, size))
        start = self._usable_bytes - _sum(self._back) if from_end else _sum(self._front) - size
        return self.region[start : start + num_bytes]

    def reserve(self, owner: str, num_bytes: int) -> None:
        """Charge memory that lies elsewhere: the workspace of the computation.

        Raises:
            ArenaFull: it does not fit.
        """
        size = aligned(num_bytes)
        self._require(owner, size)
        self._reserved[owner] += size

    def give_back(self, owner: str, num_bytes: int, from_end: bool = False) -> None:
        """Return what was taken last at that end, or a part of it.

        Raises:
            OffloadError: the innermost piece of that end is another's, or smaller.
        """
        size = aligned(num_bytes)
        pieces = self._back if from_end else self._front
        if not pieces or pieces[-1].owner != owner or pieces[-1].num_bytes < size:
            innermost = f"{pieces[-1].num_bytes:,} bytes of {pieces[-1].owner}" if pieces else "nothing"
            raise OffloadError(f"{owner} gives back {size:,} bytes, innermost at its end of the arena is {innermost}")
        pieces[-1].num_bytes -= size
        if not pieces[-1].num_bytes:
            pieces.pop()

    def release(self, owner: str, num_bytes: int) -> None:
        """Return what was reserved, or a part of it.

        Raises:
            OffloadError: less was reserved.
        """
        size = aligned(num_bytes)
        if self._reserved[owner] < size:
            raise OffloadError(f"{owner} releases {size:,} bytes, {self._reserved[owner]:,} are reserved for it")
        self._reserved[owner] -= size

    def ledger(self) -> dict[str, int]:
        """Owner → bytes, and "free"; adds up to the capacity."""
        sizes = Counter(+self._reserved)
        for piece in (*self._front, *self._back):
            sizes[piece.owner] += piece.num_bytes
        return {**sizes, FREE: self.capacity_bytes - sizes.total()}

    def check(self) -> None:
        """Assert that both ends and the reservations fit, and that the ledger adds up."""
        pieces = (*self._front, *self._back)
        assert all(piece.num_bytes > 0 and piece.num_bytes % ALIGNMENT_BYTES == 0 for piece in pieces)
        assert all(a.owner != b.owner for end in (self._front, self._back) for a, b in itertools.pairwise(end))
        assert min(self._reserved.values(), default=0) >= 0
        assert self.free_bytes >= 0
        ledger = self.ledger()
        assert sum(ledger.values()) == self.capacity_bytes and ledger[FREE] >= self.free_bytes

    @property
    def _usable_bytes(self) -> int:
        """Whole multiples of the alignment."""
        return self.capacity_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES

    def _require(self, owner: str, num_bytes: int) -> None:
        if num_bytes <= 0:
            raise ValueError(f"{owner} takes {num_bytes} bytes; it must be at least 1")
        if num_bytes <= self.free_bytes:
            return
        held = ", ".join(f"{name} {size:,}" for name, size in self.ledger().items())
        raise ArenaFull(
            f"{owner} needs {num_bytes:,} bytes of device memory, {self.free_bytes:,} of {self.capacity_bytes:,} are "
            f"free (held: {held}); raise --device-memory, or stream more layers"
        )


def aligned(num_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _sum(pieces: list[_Piece]) -> int:
    return sum(piece.num_bytes for piece in pieces)
