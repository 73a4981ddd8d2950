"""What the planner decides: how much is streamed, what it frees, and which classes can be served; or why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Strategy = Literal["none", "next_layer", "static_fraction", "static_group", "interval"]
"""`interval` is ours; the others are what published systems do, for comparison. See `offload/strategies.py`."""
Objective = Literal["kv", "host-bytes"]
"""`kv`: the least streaming that yields the KV needed. `host-bytes`: as much on the host as the targets allow."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClassPlan:
    """What a latency class gets."""

    name: str
    is_open: bool
    """False: its targets cannot be met, and its requests are degraded with consent or refused."""
    is_best_effort: bool
    """Its targets cannot be met, but it is never closed: served as fast as it can be, and counted as missed."""
    max_streamed_layers: int | None
    """The most at which its targets are met; None: not even at the plan's `min_streamed_layers`."""
    predicted_ttft_s: float
    """At the plan's `streamed_layers`."""
    predicted_tpot_s: float
    floor_ttft_s: float
    """At the plan's `min_streamed_layers`: the fastest this memory allows."""
    floor_tpot_s: float
    explanation: str
    """The arithmetic."""


@dataclasses.dataclass(frozen=True, slots=True)
class OffloadPlan:
    """Where weights and KV go. Every k between `min_streamed_layers` and `max_streamed_layers` fits the memory."""

    strategy: Strategy
    streamed_layers: int
    """k at start: how many layers have their unit on the host."""
    streamed_unit: Literal["layer"] | float
    """What of a streamed layer is on the host: all of it, or this share of its bytes, the end of its slab."""
    unit_bytes: tuple[int, ...]
    """Of each layer, what is on the host and copied if it is streamed: that many bytes from the end of its slab."""
    layer_order: tuple[int, ...]
    """All layers; the first k are streamed when k are."""
    min_streamed_layers: int
    max_streamed_layers: int
    num_slots: int
    """0: nothing is ever streamed."""
    slot_bytes: int
    """Of one slot: the largest unit."""
    streamed_bytes: int
    """Copied to the device every step at `streamed_layers`."""
    net_freed_bytes: int
    """Device memory that streaming frees at `streamed_layers`, the slots paid for."""
    kv_blocks_at_start: int
    kv_tokens: int
    """What the KV blocks hold at `streamed_layers`."""
    kv_tokens_gained: int
    """More than there would be with all weights on the device (none, for a model that does not fit)."""
    host_bytes: int
    """Copies of every unit that may be streamed, at `max_streamed_layers`."""
    max_model_len: int
    """In force: what the KV holds at `max_streamed_layers`, and no more than the model's."""
    predicted_step_s: float
    """A decode step of the reference load at `streamed_layers`."""
    exposed_s: float
    """Of it, what the layers wait for copies."""
    link_busy_share: float
    classes: tuple[ClassPlan, ...]
    ledger: Mapping[str, int]
    """Owner of device memory at start → bytes; adds up to the cap."""
    block_bytes: int
    kv_blocks_by_k: tuple[int, ...]
    """Entry j: blocks at k = `min_streamed_layers` + j."""
    tpot_s_by_k: tuple[float, ...]
    """Likewise: predicted time of a decode step of the reference load. Never less for more layers."""

    def kv_blocks_at(self, streamed_layers: int) -> int:
        """Blocks that fit while that many layers are streamed.

        Raises:
            ValueError: outside `min_streamed_layers`..`max_streamed_layers`.
        """
        return self.kv_blocks_by_k[self._index(streamed_layers)]

    def tpot_s_at(self, streamed_layers: int) -> float:
        """Predicted time of a decode step of the reference load while that many layers are streamed.

        Raises:
            ValueError: outside `min_streamed_layers`..`max_streamed_layers`.
        """
        return self.tpot_s_by_k[self._index(streamed_layers)]

    def _index(self, streamed_layers: int) -> int:
        if not self.min_streamed_layers <= streamed_layers <= self.max_streamed_layers:
            raise ValueError(
                f"{streamed_layers} streamed layers: this plan has {self.min_streamed_layers}.."
                f"{self.max_streamed_layers}"
            )
        return streamed_layers - self.min_streamed_layers

    @property
    def streamed(self) -> frozenset[int]:
        """Layers that are streamed at start."""
        return frozenset(self.layer_order[: self.streamed_layers])

    def to_json(self) -> dict[str, Any]:
        """Plain values under the names of the fields."""
        values = {**dataclasses.asdict(self), "ledger": dict(self.ledger)}
        return {"feasible": True, **values}


@dataclasses.dataclass(frozen=True, slots=True)
class Infeasible:
    """No placement serves any class."""

    reason: str
    """The arithmetic."""
    options: tuple[str, ...]
    """What would make it feasible."""

    def to_json(self) -> dict[str, Any]:
        """Plain values under the names of the fields."""
        return {"feasible": False, "reason": self.reason, "options": list(self.options)}
