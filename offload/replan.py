"""The same placement judged anew: what the classes get when the link is not what the plan was made for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from offload import plan_text
from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan import ClassPlan, OffloadPlan
from offload.plan_request import PlanRequest
from offload.residency import ResidencyOrder
from offload.step_cost import StepCost
from offload.step_times import ReferenceTimes, StepTimes
from offload.target import ClassTarget


def replan(
    plan: OffloadPlan, shape: ModelShape, cost: StepCost, targets: Sequence[ClassTarget], request: PlanRequest
) -> OffloadPlan:
    """A plan of equal memory and slots, whose classes and times are those at `cost`.

    Args:
        plan: made for the same shape, targets and request.
    """
    num_parts = next(n for n in range(1, shape.num_parts + 1) if shape.tail_bytes(n) == plan.unit_bytes)
    placement = Placement(shape, plan.num_slots, num_parts=num_parts, order=ResidencyOrder(plan.layer_order))
    times = StepTimes(placement, ReferenceTimes(shape, cost, request))
    step = times.decode_step(plan.streamed_layers)
    return dataclasses.replace(
        plan,
        predicted_step_s=step.step_s,
        exposed_s=step.exposed_s,
        link_busy_share=step.link_busy_share,
        classes=tuple(_judge(target, times, plan, request) for target in targets),
        tpot_s_by_k=times.tpots_s(plan.min_streamed_layers, plan.max_streamed_layers),
    )


def _judge(target: ClassTarget, times: StepTimes, plan: OffloadPlan, request: PlanRequest) -> ClassPlan:
    least, most = plan.min_streamed_layers, plan.max_streamed_layers
    layers = times.last_within(target, request.target_margin, most)
    if layers is not None and layers < least:
        layers = None
    is_met = layers is not None
    return ClassPlan(
        name=target.name,
        is_open=is_met or target.is_never_closed,
        is_best_effort=not is_met and target.is_never_closed,
        max_streamed_layers=layers,
        predicted_ttft_s=times.ttft_s(plan.streamed_layers),
        predicted_tpot_s=times.tpot_s(plan.streamed_layers),
        floor_ttft_s=times.ttft_s(least),
        floor_tpot_s=times.tpot_s(least),
        explanation=plan_text.explain_class(target, times, least, most, layers, request),
    )
