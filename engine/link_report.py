"""What a link says of itself, as the scheduler reads it and as metrics show it."""

from __future__ import annotations

from engine.messages import LinkDirectionStats
from offload.link import DirectionStatus
from offload.transfer import TransferClass
from scheduler.link import LinkDirection


def link_direction(status: DirectionStatus) -> LinkDirection:
    """One direction in a `LinkSnapshot`."""
    queued = status.queued_bytes
    return LinkDirection(
        status.p50_bytes_per_s,
        status.p5_bytes_per_s,
        queued.get(TransferClass.WEIGHTS, 0),
        queued.get(TransferClass.KV_LOAD, 0),
        queued.get(TransferClass.KV_STORE, 0),
        queued.get(TransferClass.BACKGROUND, 0),
    )


def link_direction_stats(status: DirectionStatus) -> LinkDirectionStats:
    """One direction in the engine's messages."""
    return LinkDirectionStats(
        p50_bytes_per_s=status.p50_bytes_per_s,
        p5_bytes_per_s=status.p5_bytes_per_s,
        is_derated=status.is_derated,
        num_drops=status.num_drops,
        num_bytes={kind.value: totals.num_bytes for kind, totals in status.totals.items()},
        busy_s={kind.value: totals.busy_s for kind, totals in status.totals.items()},
        num_late_slices={kind.value: totals.num_late_slices for kind, totals in status.totals.items()},
        num_failed={kind.value: totals.num_failed for kind, totals in status.totals.items()},
    )
