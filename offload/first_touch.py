"""Makes the system give a region its pages, by several threads at once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

_PIECE_BYTES = 64 * 1024**2
MAX_THREADS = 32
"""The kernel clears pages at the speed of main memory before that many."""


def bind_thread(processors: Iterable[int]) -> None:
    """Have the calling thread run on these alone."""
    os.sched_setaffinity(0, processors)


def touch(
    region: Tensor,
    processors: frozenset[int] = frozenset(),
    *,
    bind: Callable[[Iterable[int]], None] = bind_thread,
    num_threads: int | None = None,
) -> None:
    """Write a zero to each page of `region`, [n] uint8 from a page's first byte.

    Args:
        processors: the threads run on these, so that pages lie in the memory next to them; empty: anywhere.
        num_threads: None: one per processor, up to `MAX_THREADS`.
    """
    pages = region.numpy()[:: mmap.PAGESIZE]  # numpy: it lets go of the interpreter's lock, and has no pool of its own
    step = _PIECE_BYTES // mmap.PAGESIZE
    pieces = [pages[start : start + step] for start in range(0, len(pages), step)]
    count = num_threads or min(MAX_THREADS, len(processors) or os.cpu_count() or 1)
    start_thread = (lambda: bind(processors)) if processors else None
    with ThreadPoolExecutor(min(count, max(1, len(pieces))), "headrace-touch", start_thread) as pool:
        list(pool.map(lambda piece: piece.fill(0), pieces))
