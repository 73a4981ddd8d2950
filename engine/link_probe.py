"""Measures a link: copies of many sizes both ways, alone and together, and what it costs to start it again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from engine.trials import Trial, repeat_in_turn
from offload.link import Link, TransferHandle
from offload.measurements import LinkPoint
from offload.transfer import Direction, Transfer, TransferClass

SIZES_BYTES = tuple(4**exponent * 1024 for exponent in range(1, 9))
"""4 KiB to 64 MiB."""
_TIMEOUT_S = 60.0

Allocate = Callable[[int], Tensor]
"""Makes [n] uint8."""


class LinkBuffers:
    """A source and a target for each direction, every byte of them touched."""

    def __init__(self, num_bytes: int, allocate_host: Allocate, allocate_device: Allocate) -> None:
        self.num_bytes = num_bytes
        self._pairs = {
            Direction.H2D: (allocate_host(num_bytes), allocate_device(num_bytes)),
            Direction.D2H: (allocate_device(num_bytes), allocate_host(num_bytes)),
        }
        for source, target in self._pairs.values():
            source.fill_(1)
            target.fill_(2)
        self._starts = {direction: itertools.count() for direction in Direction}

    def transfer(self, direction: Direction, num_bytes: int) -> Transfer:
        """The next stretch of the buffers: no copy finds its bytes in a cache because the last one left them there."""
        source, target = self._pairs[direction]
        num_places = self.num_bytes // num_bytes
        start = next(self._starts[direction]) % num_places * num_bytes
        return Transfer(
            direction,
            TransferClass.WEIGHTS if direction is Direction.H2D else TransferClass.KV_STORE,
            source[start : start + num_bytes],
            target[start : start + num_bytes],
            deadline_s=math.inf,
        )


def measure_link(
    link: Link,
    buffers: LinkBuffers,
    budget_s: float,
    now_s: Callable[[], float],
    progress: Callable[[float], None],
    sizes_bytes: Sequence[int] = SIZES_BYTES,
) -> tuple[LinkPoint, ...]:
    """Seconds of a copy from its submission to its last byte.

    Raises:
        LinkError: a copy failed.
    """
    keys = [
        (direction, size, is_together)
        for size in sizes_bytes
        if size <= buffers.num_bytes
        for direction in Direction
        for is_together in (False, True)
    ]
    samples = dict(
        zip(keys, repeat_in_turn([_copy(link, buffers, *key) for key in keys], budget_s, now_s, progress), strict=True)
    )
    return tuple(
        LinkPoint(direction, size, tuple(samples[direction, size, False]), tuple(samples[direction, size, True]))
        for direction, size, is_together in keys
        if not is_together
    )


def measure_restart(
    link: Link,
    buffers: LinkBuffers,
    slab_bytes: int,
    compute: Callable[[], None],
    budget_s: float,
    now_s: Callable[[], float],
    progress: Callable[[float], None],
) -> tuple[float, ...]:
    """What two copies take longer, one after the end of the other, than when the link knows both: pairs, in turn.

    Args:
        compute: begins while the second copy does, as the next layer's computation would.

    Raises:
        LinkError: a copy failed.
    """
    size = min(slab_bytes, buffers.num_bytes // 2)

    def submit() -> TransferHandle:
        return link.submit(buffers.transfer(Direction.H2D, size))

    def apart() -> float:
        started_s = link.now_s()
        submit().wait(_TIMEOUT_S)
        second = submit()
        compute()
        second.wait(_TIMEOUT_S)
        return _finished_s(second) - started_s

    def at_once() -> float:
        started_s = link.now_s()
        first, second = submit(), submit()
        first.wait(_TIMEOUT_S)
        compute()
        second.wait(_TIMEOUT_S)
        return _finished_s(second) - started_s

    def pair() -> float:
        return apart() - at_once()

    # Many trials of one kind rather than one trial: each repeats a few times only.
    samples = repeat_in_turn([pair] * 4, budget_s, now_s, progress)
    return tuple(itertools.chain.from_iterable(samples))


def _copy(link: Link, buffers: LinkBuffers, direction: Direction, size: int, is_together: bool) -> Trial:
    def run() -> float:
        transfer = buffers.transfer(direction, size)
        others = _others(buffers, direction.opposite, size) if is_together else iter(())
        started_s = link.now_s()
        beside = [link.submit(other) for other in others]
        handle = link.submit(transfer)
        handle.wait(_TIMEOUT_S)
        for other in beside:
            other.wait(_TIMEOUT_S)
        # A clock may not see the shortest copies.
        return max(_finished_s(handle) - started_s, 1e-9)

    return run


def _others(buffers: LinkBuffers, direction: Direction, size: int) -> Iterator[Transfer]:
    yield buffers.transfer(direction, size)


def _finished_s(handle: TransferHandle) -> float:
    assert handle.finished_s is not None, "a transfer that was waited for has ended"
    return handle.finished_s
