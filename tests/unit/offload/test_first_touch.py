"""Pages of a region, touched by threads."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable

import pytest

from offload.first_touch import touch
from offload.host_memory import allocate_host

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("num_bytes", [0, 1, PAGE, 3 * PAGE + 1])
def test_every_page_is_written_and_nothing_else(num_bytes: int) -> None:
    region = allocate_host(num_bytes)
    region.fill_(7)
    touch(region)
    assert int((region[::PAGE] != 0).sum()) == 0
    assert int((region == 0).sum()) == len(region[::PAGE])


def test_threads_are_bound_to_the_processors_before_they_touch() -> None:
    bound: dict[int, frozenset[int]] = {}

    def bind(processors: Iterable[int]) -> None:
        bound[threading.get_ident()] = frozenset(processors)

    region = allocate_host(130 * 1024**2)
    touch(region, frozenset({2, 3}), bind=bind)
    assert 1 <= len(bound) <= 2 and set(bound.values()) == {frozenset({2, 3})}
    assert threading.get_ident() not in bound, "the thread that asks stays where it is"
