"""What fits into one device beside a placement, and how many sequences a step of a target then takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from benchmarks.offload_strategies import PEAK_FACTORS, Belief
from benchmarks.run_cost import OneStepCost, RunCost, predict
from benchmarks.streamed_rig import BLOCK_SIZE, DECODE, BaseModel
from engine.profile_grid import StepShape
from offload.placement import Placement
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.step_cost import Quantile
from offload.strategies import candidates
from offload.target import ClassTarget

MARGIN = 0.97
"""Predicted steps must take at most that share of their target."""
MAX_BATCH = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Of a run: what holds for a while."""

    target_s: float
    link_factor: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A placement with k layers streamed and a batch."""

    placement: Placement
    k: int
    batch: int
    predicted_s: float

    @property
    def rate(self) -> float:
        """Predicted output tokens a second."""
        return self.batch / self.predicted_s


class Cap:
    """One device: what fits beside a placement, and the best that can be done within a target."""

    def __init__(self, base: BaseModel, cost: RunCost, device_bytes: int, context_tokens: int) -> None:
        self.base, self.cost, self.device_bytes, self.context_tokens = base, cost, device_bytes, context_tokens
        self.blocks_each = -(-context_tokens // BLOCK_SIZE)

    def kv_tokens(self, placement: Placement, k: int) -> int:
        free = self.device_bytes - placement.device_bytes(k)
        return max(0, free) // self.base.block_bytes * BLOCK_SIZE

    def shape(self, batch: int) -> StepShape:
        return StepShape(batch, 1, self.context_tokens)

    def step_s(self, placement: Placement, k: int, batch: int, link_factor: float = 1.0) -> float:
        cost = dataclasses.replace(self.cost, link_bytes_s=self.cost.link_bytes_s * link_factor)
        return predict(cost, self.shape(batch).load, placement, k).step_s

    def best_batch(self, placement: Placement, k: int, part: Part) -> Choice | None:
        """The most sequences within memory and target; None: not even one is."""
        low, high = 0, min(MAX_BATCH, self.kv_tokens(placement, k) // (self.blocks_each * BLOCK_SIZE))
        while low < high:
            middle = (low + high + 1) // 2
            if self.step_s(placement, k, middle, part.link_factor) <= MARGIN * part.target_s:
                low = middle
            else:
                high = middle - 1
        return Choice(placement, k, low, self.step_s(placement, k, low, part.link_factor)) if low else None

    def open_to(self, belief: Belief, part: Part) -> Iterator[tuple[Placement, int]]:
        """Placements and k that a strategy may choose at a target; those whose copies alone miss it left out."""
        load = self.shape(DECODE.shape.num_sequences).load
        one = OneStepCost.of(self.cost, load)
        request = PlanRequest(
            device_bytes=self.device_bytes, strategy=belief.strategy, kv_link_share=0.0, quantile=Quantile.P50,
            load=ReferenceLoad(1, 128, 1, 1), assumed_link_factor=belief.link_factor,
            assumed_sharers=belief.num_sharers,
            assumed_cost=one.believed(PEAK_FACTORS["decode"]) if belief.is_peak else None,
        )  # fmt: skip
        target = ClassTarget("target", math.inf, 0.0, part.target_s, "refuse")
        link_bytes = self.cost.link_bytes_s * part.link_factor * part.target_s
        for candidate in candidates(self.base.shape, one, [target], request):
            last = candidate.first if candidate.grows_to_fit else candidate.last
            if candidate.grows_to_fit and not candidate.placement.copied_bytes(candidate.first):
                yield Placement(self.base.shape, 0), 0  # nobody takes slots to copy nothing
                continue
            for k in range(candidate.first, last + 1):
                if belief.strategy == "next_layer" or candidate.placement.copied_bytes(k) <= link_bytes:
                    yield candidate.placement, k

    def best(self, belief: Belief, part: Part) -> Choice | None:
        """With the most predicted tokens a second; what misses the target whatever the batch is filled by memory."""
        options = list(self.open_to(belief, part))
        found = [choice for option in options if (choice := self.best_batch(*option, part)) is not None]
        if found:
            return max(found, key=lambda choice: choice.rate)
        late = dataclasses.replace(part, target_s=math.inf)
        return next((choice for option in options if (choice := self.best_batch(*option, late)) is not None), None)
