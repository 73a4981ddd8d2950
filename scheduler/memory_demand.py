"""What live requests want of the device's memory, in counts, and what they bear of streaming."""

from __future__ import annotations

from scheduler.block_pool import BlockPool
from scheduler.link import LinkSnapshot
from scheduler.output import MemoryDemand
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from scheduler.step_timing import DecodePace
from scheduler.waiting_queue import WaitingQueue


def memory_demand(
    running: RunningSet,
    waiting: WaitingQueue,
    pool: BlockPool,
    num_seats: int,
    classes: SLOClasses,
    link: LinkSnapshot,
    pace: DecodePace | None,
) -> MemoryDemand:
    """After what a step takes.

    Args:
        num_seats: waiting requests that could run beside those that do.
        pace: of the step's decodes; None: nothing is known of it.
    """
    live = {name for name, _ in running.promises}
    live.update(name for name, count in waiting.num_requests_by_class.items() if count)
    num_waiting_blocks = waiting.num_blocks_of_first(num_seats) if waiting.num_requests else 0
    tightest_s = _tightest_tpot_s(running, classes, link)
    is_late = pace is not None and tightest_s is not None and pace.p95_s > tightest_s
    return MemoryDemand(
        pool.num_used_blocks + num_waiting_blocks,
        pool.num_used_beyond,
        tuple(name for name in classes.names if name in live),
        tightest_s,
        None if pace is None else pace.p95_s,
        is_late and pace is not None and pace.p95_with_fewer_s < pace.p95_s,
    )


def _tightest_tpot_s(running: RunningSet, classes: SLOClasses, link: LinkSnapshot) -> float | None:
    """Of protected running requests whose promise can be kept at the floor in force; None: there is none."""
    tightest_s: float | None = None
    for name, own_s in running.promises:
        slo_class, floor = classes.get(name), link.floor(name)
        if not slo_class.protected or (floor is not None and floor.is_late(own_s)):
            continue
        tpot_s = slo_class.tpot_s if own_s is None else own_s
        tightest_s = tpot_s if tightest_s is None else min(tightest_s, tpot_s)
    return tightest_s
