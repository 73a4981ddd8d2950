"""Predicted times of the reference load, for every number of streamed layers of a placement."""

from __future__ import annotations

import dataclasses

from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan_request import PlanRequest
from offload.predict import StepPrediction, predict_step
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from offload.target import ClassTarget
from offload.transfer import Direction


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeTimes:
    """Of one step, all weights on the device."""

    layer_s: tuple[float, ...]
    head_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        return sum(self.layer_s) + self.head_s + self.fixed_s


def compute_times(
    shape: ModelShape, cost: StepCost, load: StepLoad, quantile: Quantile, *, is_copying: bool
) -> ComputeTimes:
    """What a step of that load computes, beside copies or not.

    A layer's time when decoding is that of its bytes; else they are equal.
    """
    mean_s = (cost.layer_s if is_copying else cost.quiet_layer_s)(load, quantile)
    if load.is_decode:
        layer_s = tuple(mean_s * num_bytes / shape.mean_layer_bytes for num_bytes in shape.layer_bytes)
    else:
        layer_s = (mean_s,) * shape.num_layers
    # One row of logits for every sequence, also for the one that reads its prompt.
    return ComputeTimes(layer_s, cost.head_s(load.num_sequences, quantile), cost.fixed_s())


class ReferenceTimes:
    """What the reference load computes, and the link as weights may use it: the same for all placements."""

    def __init__(self, shape: ModelShape, cost: StepCost, request: PlanRequest) -> None:
        def times(load: StepLoad, is_copying: bool) -> ComputeTimes:
            return compute_times(shape, cost, load, request.quantile, is_copying=is_copying)

        self.load = request.load
        self._decode = {is_copying: times(request.load.decode(), is_copying) for is_copying in (False, True)}
        self._prefill = {
            is_copying: tuple((times(load, is_copying), weight) for load, weight in request.load.sampled_prefill())
            for is_copying in (False, True)
        }
        link = cost.link_bytes_per_s(Direction.H2D, request.quantile)
        self.link_bytes_per_s = link * (1.0 - request.kv_link_share)
        self.restart_s = request.restart_s

    def decode(self, is_copying: bool) -> ComputeTimes:
        """Of a step in which all sequences decode."""
        return self._decode[is_copying]

    def prefill(self, is_copying: bool) -> tuple[tuple[ComputeTimes, float], ...]:
        """Of steps that read the prompt, and for how many each stands."""
        return self._prefill[is_copying]


class StepTimes:
    """Of one placement; computed as they are asked for.

    No number of streamed layers is taken to be faster than a smaller one, so that all below a limit are within it.
    """

    def __init__(self, placement: Placement, times: ReferenceTimes) -> None:
        self.placement = placement
        self.times = times
        self._tpot_s: list[float] = []
        self._ttft_s: list[float] = []

    def tpot_s(self, k: int) -> float:
        """Of a decode step of the reference load."""
        while len(self._tpot_s) <= k:
            self._append(self._tpot_s, self.decode_step(len(self._tpot_s)).step_s)
        return self._tpot_s[k]

    def tpots_s(self, first: int, last: int) -> tuple[float, ...]:
        """Likewise, for every k from `first` to `last`."""
        return tuple(map(self.tpot_s, range(first, last + 1)))

    def ttft_s(self, k: int) -> float:
        """Of a prompt that does not queue: the sum of its chunks' steps."""
        while len(self._ttft_s) <= k:
            self._append(self._ttft_s, self._prefill_s(len(self._ttft_s)))
        return self._ttft_s[k]

    def decode_step(self, k: int) -> StepPrediction:
        """All that is predicted of a decode step."""
        return self._predict(self.computing(k), k)

    def computing(self, k: int) -> ComputeTimes:
        """What a decode step computes, beside its copies if there are any."""
        return self.times.decode(self._is_copying(k))

    def _prefill_s(self, k: int) -> float:
        chunks = self.times.prefill(self._is_copying(k))
        return sum(weight * self._predict(compute, k).step_s for compute, weight in chunks)

    def _is_copying(self, k: int) -> bool:
        return self.placement.copied_bytes(k) > 0

    def last_within(self, target: ClassTarget, margin: float, last: int) -> int | None:
        """The largest k up to `last` at which all of a class's targets are met; None: not even at 0."""
        prompt_tokens = self.times.load.prompt_tokens
        for k in range(last + 1):
            if self.tpot_s(k) > margin * target.tpot_s or self.ttft_s(k) > margin * target.ttft_s(prompt_tokens):
                return k - 1 if k else None
        return last

    def _predict(self, compute: ComputeTimes, k: int) -> StepPrediction:
        return predict_step(
            compute.layer_s,
            compute.head_s,
            self.placement.units(k),
            max(1, self.placement.num_slots),
            self.times.link_bytes_per_s,
            restart_s=self.times.restart_s,
            fixed_s=compute.fixed_s,
        )

    @staticmethod
    def _append(series: list[float], value: float) -> None:
        series.append(max(value, series[-1]) if series else value)
