"""The host's memory for weights and KV: who holds how much of it, under a cap."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

from offload.arena import FREE, aligned
from offload.available_memory import available_memory_bytes
from offload.errors import OffloadError
from offload.host_backing import AnonymousBacking, HostBacking
from offload.host_slabs import HostMemoryKind, HostSlabs

ROUNDING = "rounding"
"""The ledger's entry for what an allocation took beyond its slabs; it does not count against the cap."""


class HostMemoryError(OffloadError):
    """The host's memory does not suffice: less than the cap allows, or than the machine has."""


class HostTier:
    """Slabs by owner. Used by one thread."""

    def __init__(
        self,
        limit_bytes: int | None = None,
        backing: HostBacking | None = None,
        available_bytes: Callable[[], int | None] = available_memory_bytes,
    ) -> None:
        """
        Args:
            limit_bytes: of all owners together (`--host-memory`); None: as much as the machine has.
            backing: None: anonymous pages.
            available_bytes: main memory that may still be had; None where nobody says.
        """
        self.limit_bytes = limit_bytes
        self._backing = backing or AnonymousBacking()
        self._available_bytes = available_bytes
        self._held: dict[str, HostSlabs] = {}

    @property
    def used_bytes(self) -> int:
        """Of the slabs of all owners."""
        return sum(map(_size, self._held.values()))

    @property
    def kinds(self) -> frozenset[HostMemoryKind]:
        """Of the memory that is held."""
        return frozenset(held.kind for held in self._held.values())

    @property
    def free_bytes(self) -> int | None:
        """What can still be taken: under the cap, and of main memory where that is what is taken; None: unknown."""
        available = self._available_bytes() if self._backing.takes_memory else None
        under_cap = None if self.limit_bytes is None else self.limit_bytes - self.used_bytes
        known = [value for value in (available, under_cap) if value is not None]
        return max(0, min(known)) if known else None

    def take(self, owner: str, sizes: Sequence[int]) -> HostSlabs:
        """One slab of each size, each at a multiple of 256 bytes.

        Raises:
            HostMemoryError: over the cap, or more than there is. What is held stays as it was.
            ValueError: the owner holds slabs, or a size is not positive.
        """
        if owner in self._held:
            raise ValueError(
                f"{owner} holds {_size(self._held[owner]):,} bytes of host memory; it gives them back first"
            )
        wanted = sum(sizes)
        self._require_cap(owner, wanted)
        if self._backing.takes_memory:
            self._require_memory(owner, wanted)
        try:
            taken = self._backing.allocate(sizes)
        except MemoryError as error:
            raise HostMemoryError(
                f"{owner}: {wanted:,} bytes of host memory cannot be had ({error or 'the system refuses'}); "
                "keep less on the host with --host-memory, or quantise the weights"
            ) from error
        self._held[owner] = taken
        return taken

    def give_back(self, owner: str) -> None:
        """All slabs of an owner, who uses them no more.

        Raises:
            ValueError: it holds none.
        """
        if owner not in self._held:
            raise ValueError(f"{owner} holds no host memory")
        self._held.pop(owner).release()

    def close(self) -> None:
        """Give everything back; idempotent. No slab may be used any more."""
        while self._held:
            self._held.popitem()[1].release()

    def ledger(self) -> dict[str, int]:
        """Owner → bytes; with a cap "free" too, which makes them add up to it; "rounding" lies beyond."""
        sizes = {owner: _size(held) for owner, held in self._held.items()}
        if self.limit_bytes is not None:
            sizes[FREE] = self.limit_bytes - sum(sizes.values())
        return {**sizes, ROUNDING: sum(held.rounding_bytes for held in self._held.values())}

    def check(self) -> None:
        """Assert that slabs are aligned, apart from each other and under the cap."""
        slabs = [slab for held in self._held.values() for slab in held.slabs]
        ranges = sorted((slab.data_ptr(), slab.data_ptr() + len(slab)) for slab in slabs)
        assert all(start == aligned(start) for start, _ in ranges)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
        assert self.limit_bytes is None or self.used_bytes <= self.limit_bytes

    def _require_cap(self, owner: str, wanted: int) -> None:
        if self.limit_bytes is not None and self.used_bytes + wanted > self.limit_bytes:
            held = ", ".join(f"{name} {_size(slabs):,}" for name, slabs in self._held.items()) or "nothing"
            raise HostMemoryError(
                f"{owner} needs {wanted:,} bytes of host memory, --host-memory allows {self.limit_bytes:,} (held: "
                f"{held}); raise it, or raise --device-memory so that less lies on the host"
            )

    def _require_memory(self, owner: str, wanted: int) -> None:
        """Pages are taken as they are written: too many end the process then, without a word."""
        available = self._available_bytes()
        if available is not None and wanted > available:
            raise HostMemoryError(
                f"{owner} needs {wanted:,} bytes of host memory, {max(0, available):,} can be had (of the machine, or "
                "of this process's control group, less what the device's memory takes); keep less on the host with "
                "--host-memory, quantise the weights, or give --host-memory-directory, for a file instead"
            )


def _size(held: HostSlabs) -> int:
    return sum(map(len, held.slabs))


def take_anonymous(sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Slabs that nobody keeps account of.

    Raises:
        MemoryError: they cannot be had.
    """
    return AnonymousBacking().allocate(sizes).slabs
