"""What each strategy may choose from: placements, and how many layers of them are streamed.

- `interval`, ours: every number of layers, re-chosen while serving; all sizes of units and numbers of slots.
- `none`: all weights on the device.
- `next_layer`: every layer is streamed, while the one before it computes (DeepSpeed ZeRO-Inference).
- `static_fraction`: a share of the weights, fixed at start from a probe's peak numbers and a worst-case link
  (FlexGen, modified for a latency target as in the evaluation of Select-N): what one allowed step's estimated
  computation hides. More, if the memory demands it.
- `static_group`: the last n of every G layers, fixed at start (vLLM's prefetch offloader, SGLang's second one), with
  the best G, n and depth that a sweep with the true cost would find.

All run on the same streamer, so that only the decision differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan_request import PlanRequest
from offload.residency import ResidencyOrder, interval_layout
from offload.step_cost import StepCost
from offload.step_times import compute_times
from offload.target import ClassTarget
from offload.transfer import Direction

_USUAL_GROUPS = (4, 8, 16)
"""Sizes of groups of which several layers are streamed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One placement, and the numbers of streamed layers that it may be used with: from `first` to `last`."""

    placement: Placement
    first: int
    last: int
    grows_to_fit: bool = False
    """Whether `first` is what the strategy wants, and memory may demand more up to `last`; then it is fixed."""
    is_forced: bool = False
    """Asked for by an experiment: considered even where it frees nothing."""


def candidates(
    shape: ModelShape, cost: StepCost, targets: Sequence[ClassTarget], request: PlanRequest
) -> Iterator[Candidate]:
    """What the strategy of the request may choose from.

    Raises:
        ValueError: the request asks for a number of streamed layers that the model has not.
    """
    if request.streamed_layers is not None and request.streamed_layers > shape.num_layers:
        raise ValueError(f"streamed_layers is {request.streamed_layers}, the model has {shape.num_layers} layers")
    if request.streamed_layers is not None or request.interval is not None:
        yield from _forced(shape, request)
    elif request.strategy == "none":
        yield _resident(shape)
    elif request.strategy == "next_layer":
        yield _fixed(Placement(shape, request.num_slots or 2), shape.num_layers)
    elif request.strategy == "static_fraction":
        placement = Placement(shape, request.num_slots or 2)
        first = believed_layers(shape, cost, targets, request)
        yield Candidate(placement, first, shape.num_layers, grows_to_fit=True, is_forced=True)
    elif request.strategy == "static_group":
        yield _resident(shape)
        yield from _groups(shape, request)
    else:
        yield _resident(shape)
        for num_parts in range(shape.num_parts, 0, -1) if request.may_cut_layers else (shape.num_parts,):
            for num_slots in request.slots:
                yield Candidate(Placement(shape, num_slots, num_parts=num_parts), 0, shape.num_layers)


def regular_candidates(shape: ModelShape, request: PlanRequest, chosen: Candidate, start: int) -> Iterator[Candidate]:
    """For `interval`, once `start` layers of a spread order would do: orders that begin with every i-th layer.

    An order that is even for every k is not quite regular for most; at 1 in i layers a regular one is up to 5 % faster
    with two slots and 15 % with one.
    """
    if request.strategy != "interval" or chosen.is_forced or start == 0:
        return
    intervals = (shape.num_layers // start, shape.num_layers // start + 1)
    for num_parts in dict.fromkeys((chosen.placement.num_parts, shape.num_parts)):
        for interval in intervals:
            order = ResidencyOrder.of_interval(shape.num_layers, interval)
            for num_slots in request.slots:
                placement = Placement(shape, num_slots, num_parts=num_parts, order=order)
                yield Candidate(placement, 0, shape.num_layers)


def believed_layers(shape: ModelShape, cost: StepCost, targets: Sequence[ClassTarget], request: PlanRequest) -> int:
    """How many layers `static_fraction` believes to be hidden by a step that just meets the tightest target.

    bytes = S L t_est B_worst: S the target over the true time without offload, L t_est the step as estimated from peak
    numbers, B_worst the bandwidth that is left if all sharers copy at once.
    """
    load = request.load.decode()
    believed = request.assumed_cost or cost
    true_s, believed_s = (
        compute_times(shape, each, load, request.quantile, is_copying=False).total_s for each in (cost, believed)
    )
    feasible = [target.tpot_s for target in targets if target.tpot_s >= true_s] or [true_s]
    bandwidth = cost.link_bytes_per_s(Direction.H2D, request.quantile) * request.assumed_link_factor
    num_bytes = min(feasible) / true_s * believed_s * bandwidth / request.assumed_sharers
    return min(shape.num_layers, int(num_bytes / shape.mean_layer_bytes))


def _resident(shape: ModelShape) -> Candidate:
    return Candidate(Placement(shape, 0), 0, 0)


def _fixed(placement: Placement, k: int) -> Candidate:
    return Candidate(placement, k, k, is_forced=True)


def _forced(shape: ModelShape, request: PlanRequest) -> Iterator[Candidate]:
    if request.streamed_layers == 0:
        yield _resident(shape)
        return
    order, k = None, request.streamed_layers
    if request.interval is not None:
        order = ResidencyOrder.of_interval(shape.num_layers, request.interval)
        k = len(interval_layout(shape.num_layers, request.interval)) if k is None else k
    assert k is not None
    for num_slots in request.slots:
        yield _fixed(Placement(shape, num_slots, order=order), k)


def _groups(shape: ModelShape, request: PlanRequest) -> Iterator[Candidate]:
    """The last of every G layers for all G, and the last n of every G for the usual G."""
    num_layers = shape.num_layers
    knobs = [(group, 1) for group in range(1, num_layers + 1)]
    knobs += [(group, num) for group in _USUAL_GROUPS if group <= num_layers for num in range(2, group)]
    for group, num in knobs:
        streamed = [layer for layer in range(num_layers) if layer % group >= group - num]
        order = ResidencyOrder((*streamed, *(layer for layer in range(num_layers) if layer not in streamed)))
        for num_slots in request.slots:
            yield Candidate(Placement(shape, num_slots, order=order), len(streamed), len(streamed))
