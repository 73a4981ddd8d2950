"""What live requests want of the device's memory, in counts."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.block_pool import BlockPool
from scheduler.output import MemoryDemand
from scheduler.running_set import RunningSet
from scheduler.waiting_queue import WaitingQueue


def memory_demand(
    running: RunningSet, waiting: WaitingQueue, pool: BlockPool, num_seats: int, class_names: Iterable[str]
) -> MemoryDemand:
    """After what a step takes.

    Args:
        num_seats: waiting requests that could run beside those that do.
        class_names: of all classes, by rank.
    """
    classes = {request.spec.slo.granted for request in running}
    classes.update(name for name, count in waiting.num_requests_by_class.items() if count)
    num_waiting_blocks = waiting.num_blocks_of_first(num_seats) if waiting.num_requests else 0
    return MemoryDemand(
        pool.num_used_blocks + num_waiting_blocks,
        pool.num_used_beyond,
        tuple(name for name in class_names if name in classes),
    )
