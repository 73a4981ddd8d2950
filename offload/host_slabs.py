"""Pieces of host memory of given sizes: how they came about, and where they lie in one region."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from torch import Tensor

from offload.arena import aligned


class HostMemoryKind(StrEnum):
    """What the pages of the host's memory are."""

    ANONYMOUS = "anonymous"
    FILE = "file"
    PINNED = "pinned"
    PAGEABLE = "pageable"
    """Beside an accelerator, and not pinned: copies go through bounce buffers."""


def keep() -> None:
    """Memory that ends with the last tensor over it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HostSlabs:
    """What an allocation gave."""

    slabs: tuple[Tensor, ...]
    """Each [n] uint8, in the order asked for."""
    kind: HostMemoryKind
    rounding_bytes: int = 0
    """Taken beyond the slabs themselves."""
    remarks: tuple[str, ...] = ()
    """What is not as it should be, in words."""
    release: Callable[[], None] = keep
    """Undoes what the end of the tensors does not. Idempotent; no slab may be used any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, start + num_bytes) of a region."""

    start: int
    num_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.num_bytes


def lay_out(sizes: Sequence[int], alignment_bytes: int = 1) -> tuple[Span, ...]:
    """Slabs back to back, each at a multiple of `alignment_bytes`, and of the arena's alignment in any case.

    Raises:
        ValueError: a size is not positive.
    """
    if any(size < 1 for size in sizes):
        raise ValueError(f"a slab of {min(sizes)} bytes; each must have at least 1")
    steps = [_rounded(aligned(size), alignment_bytes) for size in sizes]
    starts = itertools.accumulate(steps[:-1], initial=0)
    return tuple(Span(start, size) for start, size in zip(starts, sizes, strict=False))


def total_bytes(spans: Sequence[Span], alignment_bytes: int) -> int:
    """Of the region that `spans` were laid out in."""
    return _rounded(aligned(spans[-1].end), alignment_bytes) if spans else 0


def chunks(spans: Sequence[Span], alignment_bytes: int, max_bytes: int) -> Iterator[Span]:
    """Runs of whole slabs of at most `max_bytes`; a larger slab is one by itself. None shares a page with another.

    Args:
        spans: of `lay_out` at the same alignment, of whole pages.
    """
    start = end = 0
    for span in spans:
        slab_end = _rounded(span.end, alignment_bytes)
        if start < end and slab_end - start > max_bytes:
            yield Span(start, end - start)
            start = end
        end = slab_end
    if start < end:
        yield Span(start, end - start)


def _rounded(num_bytes: int, alignment_bytes: int) -> int:
    return -(-num_bytes // alignment_bytes) * alignment_bytes
