"""From shape, cost, targets and memory to a plan: how much is streamed, and which classes can be served.

For each placement that the strategy may choose from: the fewest streamed layers that hold a request of
min(2048, `max_model_len`) tokens are the least; the classes that meet their targets with these are open. The most are
those at which a class that is never closed is still served in time. Between them the objective decides, at start.
Placements are then compared: the request held, classes that meet their targets, the KV needed, the time of a step,
bytes copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from offload import plan_text
from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan import ClassPlan, Infeasible, OffloadPlan
from offload.plan_request import START_TOKENS, PlanRequest
from offload.step_cost import StepCost
from offload.step_times import ReferenceTimes, StepTimes
from offload.strategies import Candidate, candidates, regular_candidates
from offload.target import ClassTarget


def plan(
    shape: ModelShape, cost: StepCost, targets: Sequence[ClassTarget], request: PlanRequest
) -> OffloadPlan | Infeasible:
    """The best placement of a model in this memory under these targets. Pure, and fast enough to run while serving.

    Raises:
        ValueError: no targets, or a request that the model cannot fill.
    """
    if not targets:
        raise ValueError("no latency class to plan for; give at least one target")
    planning = _Planning(_Memory(shape, request), ReferenceTimes(shape, cost, request), targets)
    planning.consider(candidates(shape, cost, targets, request))
    if planning.best is not None:
        first = planning.best
        planning.consider(regular_candidates(shape, request, first.candidate, first.start))
        return planning.best.to_plan()
    if planning.closed:
        fastest = min(planning.closed, key=lambda choice: choice.times.tpot_s(choice.least))
        return plan_text.all_closed(shape, request, fastest.times, fastest.least, targets)
    return plan_text.does_not_fit(shape, request)


class _Planning:
    """The best of the candidates so far."""

    def __init__(self, memory: _Memory, times: ReferenceTimes, targets: Sequence[ClassTarget]) -> None:
        self._memory = memory
        self._times = times
        self._targets = targets
        self.best: _Choice | None = None
        self.closed: list[_Choice] = []
        """What fits and serves no class."""

    def consider(self, found: Iterable[Candidate]) -> None:
        """Keep the best; of equal ones the first."""
        for candidate in found:
            times = StepTimes(candidate.placement, self._times)
            choice = _Choice.of(candidate, self._memory, times, self._targets)
            if choice is None or not (choice.frees_memory or candidate.is_forced):
                continue
            # The baselines do not know of classes: they run, and the report says what is missed.
            is_blind = self._memory.request.strategy != "interval"
            if not (choice.num_met or is_blind or any(target.is_never_closed for target in self._targets)):
                self.closed.append(choice)
            elif self.best is None or choice.rank > self.best.rank:
                self.best = choice


class _Memory:
    """KV blocks under the caps."""

    def __init__(self, shape: ModelShape, request: PlanRequest) -> None:
        self.request = request
        self.block_bytes = shape.kv_bytes_per_token * request.block_size
        self.longest_tokens = min(shape.max_position_tokens, request.max_model_len or shape.max_position_tokens)
        self.start_tokens = min(START_TOKENS, self.longest_tokens)

    def blocks(self, placement: Placement, k: int) -> int:
        """What fits beside the weights; 0 where not even they do."""
        free = self.request.device_bytes - self.request.workspace_bytes - placement.device_bytes(k)
        return max(0, free) // self.block_bytes

    def tokens(self, placement: Placement, k: int) -> int:
        return self.blocks(placement, k) * self.request.block_size

    def least(self, placement: Placement, first: int, last: int) -> int | None:
        """The first k that holds a request of `START_TOKENS`, else the last one that holds any; None: none does."""
        for k in range(first, last + 1):
            if self.tokens(placement, k) >= self.start_tokens:
                return k
        return last if last >= first and self.blocks(placement, last) else None

    def last_on_host(self, candidate: Candidate) -> int:
        """The largest k of a candidate whose units the host holds; below its first where there is none."""
        limit = self.request.host_bytes
        k = candidate.last
        while limit is not None and k >= candidate.first and candidate.placement.host_bytes(k) > limit:
            k -= 1
        return k


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """One placement with what follows from memory and targets."""

    candidate: Candidate
    memory: _Memory
    times: StepTimes
    targets: Sequence[ClassTarget]
    class_layers: tuple[int | None, ...]
    """Of each class, the most at which it is served in time and which are allowed; None: it is not at `least`."""
    least: int
    most: int
    start: int
    held_tokens: int
    """Of a request that `least` should hold."""
    needed_tokens: int

    @staticmethod
    def of(candidate: Candidate, memory: _Memory, times: StepTimes, targets: Sequence[ClassTarget]) -> _Choice | None:
        """None: it does not fit the memory."""
        placement, request = candidate.placement, memory.request
        last = memory.last_on_host(candidate)
        least = memory.least(placement, candidate.first, last)
        if least is None:
            return None
        if candidate.grows_to_fit:
            last = least
        found = (times.last_within(target, request.target_margin, last) for target in targets)
        class_layers = tuple(None if k is None or k < least else k for k in found)
        always = [
            k for k, target in zip(class_layers, targets, strict=True) if k is not None and target.is_never_closed
        ]
        met = [k for k in class_layers if k is not None]
        most = max(always or met or [least])
        held = memory.start_tokens
        needed = max(held, int(request.kv_need_tokens * (1.0 + request.kv_need_margin)))
        if request.objective == "host-bytes":
            start = min([most, *met]) if met else least
        else:
            start = next((k for k in range(least, most + 1) if memory.tokens(placement, k) >= needed), most)
        return _Choice(candidate, memory, times, targets, class_layers, least, most, start, held, needed)

    @property
    def placement(self) -> Placement:
        return self.candidate.placement

    @property
    def max_model_len(self) -> int:
        """What the KV holds at most, and no more than the model's."""
        return min(self.memory.longest_tokens, self.memory.tokens(self.placement, self.most))

    @property
    def num_met(self) -> int:
        """Classes that are served in time."""
        return sum(k is not None for k in self.class_layers)

    @property
    def frees_memory(self) -> bool:
        """Streaming at start pays for its slots; or nothing is streamed yet, and what is needed fits beside them."""
        if self.placement.num_slots == 0:
            return True
        if self.start == 0:
            has_use = self.placement.net_freed_bytes(self.most) > 0
            return has_use and self.memory.tokens(self.placement, 0) >= self.needed_tokens
        return self.placement.net_freed_bytes(self.start) > 0

    @property
    def rank(self) -> tuple[float, ...]:
        """The larger, the better. Every entry grows with device memory."""
        placement, memory = self.placement, self.memory
        step = self.times.tpot_s(self.start)
        copied = placement.copied_bytes(self.start)
        kept = sum(memory.tokens(placement, min(k, self.most)) for k in self.class_layers if k is not None)
        needed = min(self.needed_tokens, memory.tokens(placement, self.start))
        held = min(self.held_tokens, memory.tokens(placement, self.least))
        # By powers of two: a somewhat longer request is not worth a slower step.
        served = (held, self.num_met, needed, self.max_model_len.bit_length())
        if memory.request.objective == "host-bytes":
            return (*served, copied, -step, kept, -placement.num_slots)
        return (*served, -step, -copied, kept, -placement.num_slots)

    def to_plan(self) -> OffloadPlan:
        """With the classes and the arithmetic."""
        placement, memory, request = self.placement, self.memory, self.memory.request
        step = self.times.decode_step(self.start)
        blocks = tuple(memory.blocks(placement, k) for k in range(self.least, self.most + 1))
        without = memory.blocks(Placement(placement.shape, 0), 0) * request.block_size
        kv_tokens = memory.tokens(placement, self.start)
        return OffloadPlan(
            strategy=request.strategy,
            streamed_layers=self.start,
            streamed_unit="layer" if placement.is_whole else placement.share,
            unit_bytes=placement.unit_bytes,
            layer_order=placement.order.layers,
            min_streamed_layers=self.least,
            max_streamed_layers=self.most,
            num_slots=placement.num_slots,
            slot_bytes=placement.slot_bytes if placement.num_slots else 0,
            streamed_bytes=placement.copied_bytes(self.start),
            net_freed_bytes=placement.net_freed_bytes(self.start),
            kv_blocks_at_start=memory.blocks(placement, self.start),
            kv_tokens=kv_tokens,
            kv_tokens_gained=kv_tokens - without,
            host_bytes=placement.host_bytes(self.most),
            max_model_len=self.max_model_len,
            predicted_step_s=step.step_s,
            exposed_s=step.exposed_s,
            link_busy_share=step.link_busy_share,
            classes=tuple(self._class_plan(i) for i in range(len(self.targets))),
            ledger=self._ledger(),
            block_bytes=memory.block_bytes,
            kv_blocks_by_k=blocks,
            tpot_s_by_k=self.times.tpots_s(self.least, self.most),
        )

    def _class_plan(self, index: int) -> ClassPlan:
        target, layers, times = self.targets[index], self.class_layers[index], self.times
        is_met = layers is not None
        return ClassPlan(
            name=target.name,
            is_open=is_met or target.is_never_closed,
            is_best_effort=not is_met and target.is_never_closed,
            max_streamed_layers=None if layers is None else min(layers, self.most),
            predicted_ttft_s=times.ttft_s(self.start),
            predicted_tpot_s=times.tpot_s(self.start),
            floor_ttft_s=times.ttft_s(self.least),
            floor_tpot_s=times.tpot_s(self.least),
            explanation=plan_text.explain_class(target, times, self.least, self.most, layers, self.memory.request),
        )

    def _ledger(self) -> dict[str, int]:
        placement, request = self.placement, self.memory.request
        owners = {
            "fixed_weights": placement.shape.fixed_bytes,
            "resident_layers": placement.resident_bytes(self.start),
            "slots": placement.slots_bytes,
            "workspace": request.workspace_bytes,
            "kv_blocks": self.memory.blocks(placement, self.start) * self.memory.block_bytes,
        }
        return {**owners, "free": request.device_bytes - sum(owners.values())}
