"""When to stream more layers, and when to bring some back: the rules of a change of k at step boundaries.

Streaming one layer more frees its device copy at once, so need is met at once, as far as the tightest promise of those
that run bears it with something to spare. Bringing one back costs a slab of link and of KV memory, so it is done only
when the need for memory has been lower for a while, or at once where a class that is being served cannot meet its
target at the present k, or the decodes of the moment are late at it.

The plan knows times at its reference load, the caller those of the moment. A step is taken to last as long as the
larger of both: where copies bound it, the plan is right for any load, and where computing does, k matters little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from offload.plan import OffloadPlan

HOLD_S = 1.0
"""How long less must have been enough before a layer comes back."""
SPARE_SHARE = 0.05
"""Of the wanted blocks, on top of them: what running requests grow by until the next decision takes effect."""
SPARE_TO_RAISE = 0.05
"""Of the tightest promise: what must be left of it where more layers are streamed."""
LATE_HOLD_S = 10.0
"""How long a k at which requests were late is not gone back to, while any as tight run: no flapping."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResidencyNeed:
    """What live requests ask of device memory."""

    num_blocks: int
    """KV blocks in use and wanted by what waits."""
    classes: Collection[str]
    """Latency classes that are being served."""
    tightest_tpot_s: float | None = None
    """The least time per output token that was promised to a request that runs; None: nothing was."""
    decode_s: float | None = None
    """What the decodes of the moment take at the present k; None: nobody knows."""
    is_late: bool = False
    """That is more than the tightest promise, and fewer layers would make it less."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResidencyChange:
    """How many layers shall be streamed, and why."""

    streamed_layers: int
    reason: str
    """memory, class, late or idle."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Lateness:
    """Requests were late while so many layers were streamed."""

    streamed_layers: int
    tightest_tpot_s: float
    until_s: float


class ResidencyController:
    """Decides on k within a plan. No clock of its own: the same calls give the same answers."""

    def __init__(self, plan: OffloadPlan, hold_s: float = HOLD_S) -> None:
        self._plan = plan
        self._hold_s = hold_s
        self._lower_since_s: float | None = None
        self._lower_peak = 0
        """The most layers that were needed since then."""
        self._lateness: _Lateness | None = None

    def adopt(self, plan: OffloadPlan) -> None:
        """Another plan is in force, as after a drop of the link."""
        self._plan = plan
        self._lower_since_s = None
        self._lateness = None

    def decide(self, streamed_layers: int, need: ResidencyNeed, now_s: float) -> ResidencyChange | None:
        """The k to go to from `streamed_layers`; None: stay.

        Upwards by as many layers as are needed, downwards by one at a time.
        """
        # Layers that all have a slot are copied once: to stream fewer of them saves no time.
        if need.is_late and streamed_layers > max(self._plan.min_streamed_layers, self._plan.num_slots):
            assert need.tightest_tpot_s is not None
            self._lower_since_s = None
            self._lateness = _Lateness(streamed_layers, need.tightest_tpot_s, now_s + LATE_HOLD_S)
            return ResidencyChange(streamed_layers - 1, "late")
        limit = self._limit(need.classes)
        wanted = min(self._for_blocks(need.num_blocks), limit)
        if wanted > streamed_layers:
            wanted = self._borne(streamed_layers, wanted, need, now_s)
        if wanted > streamed_layers:
            self._lower_since_s = None
            return ResidencyChange(wanted, "memory")
        if wanted == streamed_layers:
            self._lower_since_s = None
            return None
        if streamed_layers > limit:
            self._lower_since_s = None
            return ResidencyChange(streamed_layers - 1, "class")
        return self._after_a_while(streamed_layers, wanted, now_s)

    def _after_a_while(self, streamed_layers: int, wanted: int, now_s: float) -> ResidencyChange | None:
        if self._lower_since_s is None:
            self._lower_since_s, self._lower_peak = now_s, wanted
            return None
        self._lower_peak = max(self._lower_peak, wanted)
        if now_s - self._lower_since_s < self._hold_s:
            return None
        self._lower_since_s = None
        if self._lower_peak >= streamed_layers:
            return None
        return ResidencyChange(streamed_layers - 1, "idle")

    def _borne(self, streamed_layers: int, wanted: int, need: ResidencyNeed, now_s: float) -> int:
        """As many layers of those wanted as the tightest promise bears; not fewer than there are."""
        if need.tightest_tpot_s is None:
            return wanted
        if self._lateness is not None and now_s >= self._lateness.until_s:
            self._lateness = None
        if self._lateness is not None and need.tightest_tpot_s <= self._lateness.tightest_tpot_s:
            wanted = min(wanted, self._lateness.streamed_layers - 1)
        bound_s = (1.0 - SPARE_TO_RAISE) * need.tightest_tpot_s
        if need.decode_s is not None and need.decode_s > bound_s:
            return streamed_layers
        while wanted > streamed_layers and self._plan.tpot_s_at(wanted) > bound_s:
            wanted -= 1
        return max(wanted, streamed_layers)

    def _for_blocks(self, num_blocks: int) -> int:
        """The fewest layers that leave room for that many blocks and some to spare; else the most there are."""
        wanted = num_blocks + int(num_blocks * SPARE_SHARE) + 1
        lowest = self._plan.min_streamed_layers
        for index, capacity in enumerate(self._plan.kv_blocks_by_k):
            if capacity >= wanted:
                return lowest + index
        return self._plan.max_streamed_layers

    def _limit(self, names: Collection[str]) -> int:
        """The most layers at which every class served meets its targets; those that cannot are not asked."""
        limits = [
            plan.max_streamed_layers
            for plan in self._plan.classes
            if plan.name in names and not plan.is_best_effort and plan.max_streamed_layers is not None
        ]
        limit = min([*limits, self._plan.max_streamed_layers])
        return max(limit, self._plan.min_streamed_layers)
