"""What a link is told of itself when it is opened."""

from __future__ import annotations

import dataclasses

from offload.bandwidth import BandwidthRules
from offload.transfer import Direction


@dataclasses.dataclass(frozen=True, slots=True)
class LinkConfig:
    """Bandwidths are those to expect until slices have been measured: of the record, or the emulation cap.

    `coupling` is the share of its bandwidth that a direction keeps while the other carries data. Weights leave KV the
    share of the bandwidth that KV is measured to ask for, within the two bounds.

    Raises:
        ValueError: a value is out of bounds.
    """

    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    coupling: float = 1.0
    min_kv_link_share: float = 0.15
    max_kv_link_share: float = 0.5
    rules: BandwidthRules = dataclasses.field(default_factory=BandwidthRules)

    def __post_init__(self) -> None:
        for name in ("h2d_bytes_per_s", "d2h_bytes_per_s"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}; a link carries a positive, finite number of bytes per second")
        if not 0 < self.coupling <= 1:
            raise ValueError(f"coupling is {self.coupling}; it must be above 0 and at most 1 (independent directions)")
        if not 0 <= self.min_kv_link_share <= self.max_kv_link_share < 1:
            raise ValueError(
                f"the bounds of kv_link_share are {self.min_kv_link_share} and {self.max_kv_link_share}; they must be "
                "in order, from 0 to below 1"
            )

    def bytes_per_s(self, direction: Direction) -> float:
        return self.h2d_bytes_per_s if direction is Direction.H2D else self.d2h_bytes_per_s
