"""What the scheduler knows of the link between device and host, taken once a step."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of the link at the start of a step. No bandwidth is known where it is 0."""

    p50_bytes_per_s: float = 0.0
    p5_bytes_per_s: float = 0.0
    queued_weights_bytes: int = 0
    queued_kv_load_bytes: int = 0
    queued_kv_store_bytes: int = 0
    queued_background_bytes: int = 0

    @property
    def queued_bytes(self) -> int:
        return (
            self.queued_weights_bytes
            + self.queued_kv_load_bytes
            + self.queued_kv_store_bytes
            + self.queued_background_bytes
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ClassFloor:
    """What the plan in force can promise a latency class, as predicted at the fewest layers streamed.

    `max_streamed_layers` is the most layers that may be streamed while the class runs; None where no number meets its
    target. A class that is not open takes no requests; one that is best effort is served at its floor.
    """

    name: str
    is_open: bool = True
    is_best_effort: bool = False
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    max_streamed_layers: int | None = None

    def is_late(self, own_tpot_s: float | None) -> bool:
        """Whether a request that is served cannot be in time: by its class's targets, or by one of its own."""
        return self.is_best_effort if own_tpot_s is None else own_tpot_s < self.tpot_s


@dataclasses.dataclass(frozen=True, slots=True)
class LinkSnapshot:
    """The link and the placement of weights at the start of a step.

    `coupling` is the share of its bandwidth that a direction keeps while the other carries data. `kv_link_share` is the
    share that weights leave to KV. `num_blocks` is how many device blocks of KV may be handed out now, None for all.
    `classes` is empty where every class is open and nothing is known of floors.
    """

    h2d: LinkDirection = LinkDirection()
    d2h: LinkDirection = LinkDirection()
    coupling: float = 1.0
    kv_link_share: float = 0.0
    num_resident_layers: int = 0
    num_streamed_layers: int = 0
    num_blocks: int | None = None
    classes: tuple[ClassFloor, ...] = ()
    disk_read_bytes_per_s: float = 0.0
    """Of the disk tier, lately; 0: not known."""

    def floor(self, class_name: str) -> ClassFloor | None:
        """What is promised to a class; None where nothing is known of it."""
        return next((floor for floor in self.classes if floor.name == class_name), None)


NO_LINK = LinkSnapshot()
