"""Streams the weights of a runner by a plan, and changes how many layers are streamed by need and by the link."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from engine.device_weights import DeviceWeights
from engine.kv_bytes import KVBytes
from engine.link_report import link_direction, link_direction_stats
from engine.messages import ClassFloorStats, OffloadStats
from offload.arena import Arena
from offload.compute_watch import ComputeWatch
from offload.errors import OffloadError
from offload.host_tier import HostTier
from offload.link import Link
from offload.plan import ClassPlan, OffloadPlan
from offload.residency_controller import ResidencyController, ResidencyNeed
from offload.step_load import StepLoad
from scheduler.kv_transfer import TransferResult
from scheduler.link import ClassFloor, LinkSnapshot
from scheduler.output import MemoryDemand, SchedulerOutput

logger = logging.getLogger(__name__)

MOVING_WAKEUP_S = 0.02
"""How soon an idle loop looks again while a layer is on its way back."""
IDLE_WAKEUP_S = 0.25
"""And while fewer layers may be streamed before long."""
FORGET_S = 10.0
"""Without a step, after which the record counts again: what closed a class may be over, which only steps show."""
FORGETTING_WAKEUP_S = 1.0
"""How soon an idle loop looks whether it is time for that."""
SPARE_TO_OPEN = 0.1
"""A class that was closed opens once it is met with that much less bandwidth and longer times: no flapping."""
REPLAN_SHARE = 0.1
"""By how much the bandwidth must differ from the plan's for another plan."""

Replan = Callable[[float, float], OffloadPlan]
"""The plan of the same placement at another bandwidth (5th percentile, bytes per second), with times of computing that
are the recorded ones times a factor."""
PredictCompute = Callable[[StepLoad, bool], float]
"""Seconds that the record says a step computes, beside copies or not, scheduling apart."""


@dataclasses.dataclass(slots=True)
class _Totals:
    """Since the engine started."""

    num_steps: int = 0
    weight_bytes: int = 0
    num_loads: int = 0
    hidden_s: float = 0.0
    exposed_s: float = 0.0
    compute_s: float = 0.0
    quiet_compute_s: float = 0.0
    num_raised: int = 0
    num_lowered: int = 0
    num_replans: int = 0


class WeightOffload:
    """Streams weights by a plan, and changes k by need.

    A layer comes back in three moves, each at a step boundary: from the next step on no block of its place is handed
    out (the fence), once none is used its copy starts, and once that has arrived the layer is resident.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        arena: Arena,
        link: Link,
        plan: OffloadPlan,
        replan: Replan,
        predict: PredictCompute,
        set_border: Callable[[int], None],
        host_tier: HostTier | None = None,
        watch: ComputeWatch | None = None,
    ) -> None:
        """
        Args:
            replan: judges the classes anew; memory stays as it is.
            predict: what steps are compared with, so that a wrong record or a slower processor is noticed.
            set_border: told how many KV blocks exist from now on, between steps.
            watch: decides when times of computing are news; None: by its defaults.
            host_tier: of the weights' copies on the host; None: nobody accounts for them.
        """
        self._set_border = set_border
        self._host_tier = host_tier
        self._weights = weights
        self._arena = arena
        self._link = link
        self._plan = plan
        self._replan = replan
        self._predict = predict
        self._watch = watch or ComputeWatch()
        self._first_plan = plan
        self._last_step_s: float | None = None
        """When the last step began, on the caller's clock."""
        self._step_load: StepLoad | None = None
        """Of the step under way."""
        self._step_begin_s = 0.0
        self._first_bytes_per_s = self._planned_bytes_per_s = link.snapshot().h2d.p5_bytes_per_s
        self._controller = ResidencyController(plan)
        self._fence: int | None = None
        """The k to come down to once no block stands in its way."""
        self._fence_reason = ""
        """As in `ResidencyChange`."""
        self._last_step_bytes = 0
        self._totals = _Totals()
        set_border(weights.num_kv_blocks)

    @property
    def plan(self) -> OffloadPlan:
        return self._plan

    def snapshot(self) -> LinkSnapshot:
        """As `OffloadManager` says."""
        status = self._link.snapshot()
        weights, fence = self._weights, self._fence
        num_layers = len(self._plan.unit_bytes)
        return LinkSnapshot(
            h2d=link_direction(status.h2d),
            d2h=link_direction(status.d2h),
            coupling=status.coupling,
            kv_link_share=status.kv_link_share,
            num_resident_layers=num_layers - weights.num_streamed,
            num_streamed_layers=weights.num_streamed,
            num_blocks=weights.num_kv_blocks if fence is None else weights.kv_blocks_at(fence),
            classes=tuple(map(_floor, self._plan.classes)),
        )

    def begin(self, output: SchedulerOutput, now_s: float) -> None:
        """As `OffloadManager` says."""
        self._follow_link()
        self._follow_need(output.demand, now_s)
        self._set_border(self._weights.num_kv_blocks)
        if not output.scheduled:
            self._forget_if_idle(now_s)
            return
        self._last_step_s = now_s
        budget_s = self._plan.predicted_step_s if output.budget_s is None else output.budget_s
        self._step_load = _load_of(output)
        self._step_begin_s = self._link.now_s()
        self._weights.begin_step(self._step_begin_s + budget_s)

    def end(self) -> None:
        """As `OffloadManager` says."""
        load, self._step_load = self._step_load, None
        if load is None:
            return
        transfers, totals = self._weights.end_step(), self._totals
        compute_s = self._link.now_s() - self._step_begin_s - transfers.exposed_s
        self._follow_compute(load, compute_s)
        totals.compute_s += compute_s
        totals.quiet_compute_s += self._predict(load, False)
        totals.num_steps += 1
        totals.weight_bytes += transfers.num_bytes
        totals.num_loads += transfers.num_loads
        totals.hidden_s += transfers.hidden_s
        totals.exposed_s += transfers.exposed_s
        self._last_step_bytes = transfers.num_bytes

    def collect(self) -> tuple[TransferResult, ...]:
        """Weights are nobody's blocks."""
        return ()

    def void_requests(self, output: SchedulerOutput) -> frozenset[str]:  # noqa: ARG002 - of those with loads
        """A step without its weights fails as a whole."""
        return frozenset()

    def has_results(self) -> bool:
        """As `collect`."""
        return False

    def call_on_results(self, wake: Callable[[], None]) -> None:
        """As `collect`."""

    def verify(self) -> None:
        """As `OffloadManager` says."""
        plan, k = self._plan, self._weights.num_streamed
        streamed = sum(plan.unit_bytes[layer] for layer in plan.layer_order[:k])
        planned = streamed if k > plan.num_slots else 0  # units that all have a slot are copied once and stay
        if self._last_step_bytes != planned:
            raise OffloadError(
                f"a step with {k} streamed layers moved {self._last_step_bytes:,} bytes, the plan has {planned:,}: "
                "what is said of memory and time would not be true"
            )

    def wakeup_s(self) -> float | None:
        """As `OffloadManager` says."""
        if self._weights.is_moving or self._fence is not None:
            return MOVING_WAKEUP_S
        if self._weights.num_streamed > self._plan.min_streamed_layers:
            return IDLE_WAKEUP_S
        return None if self._plan is self._first_plan else FORGETTING_WAKEUP_S

    def stats(self) -> OffloadStats:
        """As `OffloadManager` says."""
        status, totals, plan = self._link.snapshot(), self._totals, self._plan
        return OffloadStats(
            num_layers=len(plan.unit_bytes),
            num_streamed_layers=self._weights.num_streamed,
            num_slots=plan.num_slots,
            num_steps=totals.num_steps,
            num_weight_bytes=totals.weight_bytes,
            num_loads=totals.num_loads,
            hidden_s=totals.hidden_s,
            exposed_s=totals.exposed_s,
            compute_s=totals.compute_s,
            quiet_compute_s=totals.quiet_compute_s,
            num_raised=totals.num_raised,
            num_lowered=totals.num_lowered,
            num_replans=totals.num_replans,
            h2d=link_direction_stats(status.h2d),
            d2h=link_direction_stats(status.d2h),
            ledger=dict(self._arena.ledger()),
            host_bytes=self._weights.host_bytes,
            classes=tuple(map(_floor_stats, plan.classes)),
        )

    def kv_bytes(self) -> KVBytes | None:
        """As `collect`."""
        return None

    def close(self) -> None:
        """As `OffloadManager` says."""
        self._link.close()
        if self._host_tier is not None:
            self._host_tier.close()

    def check(self) -> None:
        """Assert that the border and the fence agree with the weights."""
        self._weights.check()
        if self._host_tier is not None:
            self._host_tier.check()
        assert self._fence is None or self._fence == self._weights.num_streamed - 1
        plan = self._plan
        assert plan.min_streamed_layers <= self._weights.num_streamed <= plan.max_streamed_layers

    def _follow_link(self) -> None:
        """Where the link is not what the plan was made for, judge the classes anew."""
        bytes_per_s = self._link.snapshot().h2d.p5_bytes_per_s
        if abs(bytes_per_s / self._planned_bytes_per_s - 1.0) <= REPLAN_SHARE:
            return
        planned, self._planned_bytes_per_s = self._planned_bytes_per_s, bytes_per_s
        self._plan_anew(f"the link carries {bytes_per_s / 1e9:.3f} GB/s where {planned / 1e9:.3f} were planned with")

    def _follow_compute(self, load: StepLoad, measured_s: float) -> None:
        """Where steps do not compute as fast as the record says, likewise."""
        before = self._watch.factor
        if measured_s > 0.0 and self._watch.observe(self._predict(load, self._weights.step_bytes > 0), measured_s):
            self._plan_anew(
                f"steps compute {self._watch.factor:.2f} times as long as recorded, {before:.2f} were planned with"
            )

    def _plan_anew(self, reason: str) -> None:
        before = self._plan
        after = self._replan(self._planned_bytes_per_s, self._watch.factor)
        if any(map(_is_better, after.classes, before.classes)):
            spare = self._replan(
                self._planned_bytes_per_s * (1.0 - SPARE_TO_OPEN), self._watch.factor * (1.0 + SPARE_TO_OPEN)
            )
            classes = map(_with_hysteresis, before.classes, after.classes, spare.classes)
            after = dataclasses.replace(after, classes=tuple(classes))
        self._adopt(after)
        change = _describe_change(before, self._plan)
        if change is None:
            logger.debug("%s: every class stays as it was", reason)
        else:
            logger.warning("%s: %s", reason, change)

    def _forget_if_idle(self, now_s: float) -> None:
        """No step has shown for a while how fast link and processor are: judge by the record again."""
        if self._last_step_s is None:
            self._last_step_s = now_s
        if self._plan is self._first_plan or now_s - self._last_step_s < FORGET_S:
            return
        self._link.forget_bandwidth()
        self._watch.forget()
        self._planned_bytes_per_s = self._first_bytes_per_s
        logger.info("no step for %.0f s: the classes are judged by the record again", now_s - self._last_step_s)
        self._adopt(self._first_plan)

    def _adopt(self, plan: OffloadPlan) -> None:
        self._plan = plan
        self._controller.adopt(plan)
        self._totals.num_replans += 1

    def _follow_need(self, demand: MemoryDemand, now_s: float) -> None:
        weights = self._weights
        if weights.is_moving:
            weights.set_streamed(weights.num_streamed - 1)  # takes note of a copy that has arrived
            if weights.is_moving:
                return
        need = ResidencyNeed(
            demand.num_wanted_blocks, demand.classes, demand.tightest_tpot_s, demand.decode_s, demand.is_late
        )
        change = self._controller.decide(weights.num_streamed, need, now_s)
        if change is not None and change.streamed_layers > weights.num_streamed:
            self._fence = None
            self._go_to(change.streamed_layers, change.reason)
        elif change is not None and self._fence is None:
            self._fence, self._fence_reason = change.streamed_layers, change.reason
        elif change is None and self._fence is not None and self._is_needed(need):
            self._fence = None
        elif self._fence is not None and demand.num_blocks_beyond == 0:
            fence, self._fence = self._fence, None
            # Those who are late at this k do not wait until the link is idle.
            is_urgent = change is not None or self._fence_reason in ("class", "late")
            self._go_to(fence, self._fence_reason, self._link.now_s() if is_urgent else None)

    def _is_needed(self, need: ResidencyNeed) -> bool:
        """Whether coming down would leave too little memory by now."""
        assert self._fence is not None
        return need.num_blocks > self._weights.kv_blocks_at(self._fence)

    def _go_to(self, streamed_layers: int, reason: str, deadline_s: float | None = None) -> None:
        before = self._weights.num_streamed
        self._weights.set_streamed(streamed_layers, deadline_s)
        if streamed_layers > before:
            self._totals.num_raised += streamed_layers - before
        else:
            self._totals.num_lowered += before - streamed_layers
        logger.info(
            "streaming %d layers instead of %d (%s): room for %d KV blocks",
            streamed_layers,
            before,
            reason,
            self._weights.kv_blocks_at(streamed_layers),
        )


def _is_better(after: ClassPlan, before: ClassPlan) -> bool:
    """Whether a class's targets are met that were not."""
    return after.max_streamed_layers is not None and before.max_streamed_layers is None


def _with_hysteresis(before: ClassPlan, after: ClassPlan, spare: ClassPlan) -> ClassPlan:
    """`after`; but a class whose targets were not met stays as it was until they are met with something to spare."""
    if not _is_better(after, before) or spare.max_streamed_layers is not None:
        return after
    return dataclasses.replace(
        after, is_open=before.is_open, is_best_effort=before.is_best_effort, max_streamed_layers=None
    )


def _load_of(output: SchedulerOutput) -> StepLoad:
    contexts = sum(s.num_computed_tokens + s.num_tokens for s in output.scheduled)
    return StepLoad(output.num_tokens, len(output.scheduled), contexts)


def _floor(plan: ClassPlan) -> ClassFloor:
    return ClassFloor(
        plan.name, plan.is_open, plan.is_best_effort, plan.floor_ttft_s, plan.floor_tpot_s, plan.max_streamed_layers
    )


def _floor_stats(plan: ClassPlan) -> ClassFloorStats:
    return ClassFloorStats(
        name=plan.name,
        is_open=plan.is_open,
        is_best_effort=plan.is_best_effort,
        floor_ttft_s=plan.floor_ttft_s,
        floor_tpot_s=plan.floor_tpot_s,
        max_streamed_layers=plan.max_streamed_layers,
    )


def _describe_change(before: OffloadPlan, after: OffloadPlan) -> str | None:
    """Which classes open or close; None: none does."""
    was = {plan.name: plan for plan in before.classes}
    parts = [
        f"class {plan.name} is now {_state(plan)} (was {_state(was[plan.name])}): {plan.explanation}"
        for plan in after.classes
        if _state(plan) != _state(was[plan.name])
    ]
    return "; ".join(parts) or None


def _state(plan: ClassPlan) -> str:
    if plan.is_best_effort:
        return "best effort"
    return "open" if plan.is_open else "closed"
