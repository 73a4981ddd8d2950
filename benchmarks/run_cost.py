"""What steps cost as measured at the start of a run, exactly for the loads that the run uses: `StepCost` without a fit.

A performance record answers for any load, of any day; here prediction and measurement shall differ by the event
simulation alone, so the times are those of this very run.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.streamed_rig import BaseModel, Steps, open_link
from engine.interference_probe import BusyLink, measure_interference
from engine.link_probe import LinkBuffers, measure_restart
from engine.profile_grid import StepShape
from offload.host_memory import allocate_host
from offload.measurements import median, p95
from offload.placement import Placement
from offload.predict import StepPrediction, predict_step
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.step_times import ComputeTimes
from offload.transfer import Direction

MIN_SAMPLES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class ShapeTimes:
    """Medians of one shape, all weights in place."""

    shape: StepShape
    forward_s: float
    head_s: float
    p95_factor: float
    """Of a step."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunCost:
    """Implements `StepCost` between the measured loads: straight in sequences (decode) or tokens (prefill)."""

    num_layers: int
    decode: Mapping[int, ShapeTimes]
    """By number of sequences."""
    prefill: Mapping[int, ShapeTimes]
    """By number of tokens."""
    slowdown: Mapping[bool, float]
    """By whether the step decodes: factor on a layer's time while the link copies at its cap."""
    link_bytes_s: float
    restart_s: float

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """One average layer while the link copies."""
        return self.quiet_layer_s(load, quantile) * self.slowdown[load.is_decode]

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        """One average layer while nothing is copied."""
        table = self.decode if load.is_decode else self.prefill
        number = load.num_sequences if load.is_decode else load.num_tokens
        seconds = interpolate({key: times.forward_s for key, times in table.items()}, number) / self.num_layers
        return seconds * self._factor(load.is_decode, quantile)

    def head_s(self, num_rows: int, quantile: Quantile) -> float:
        """Logits of that many rows."""
        rows = {times.shape.num_sequences: times.head_s for times in (*self.prefill.values(), *self.decode.values())}
        return interpolate(rows, num_rows) * self._factor(True, quantile)

    def fixed_s(self) -> float:
        """Nothing: steps are run bare, without scheduler and messages."""
        return 0.0

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:  # noqa: ARG002
        """The cap, in both directions."""
        return self.link_bytes_s

    def compute_times(self, load: StepLoad, *, is_streaming: bool) -> ComputeTimes:
        """Medians of one step."""
        layer_s = (self.layer_s if is_streaming else self.quiet_layer_s)(load, Quantile.P50)
        head_s = self.head_s(load.num_sequences, Quantile.P50)
        return ComputeTimes((layer_s,) * self.num_layers, head_s, 0.0)

    def step_s(self, load: StepLoad) -> float:
        """Without offload, the median."""
        return self.compute_times(load, is_streaming=False).total_s

    def _factor(self, is_decode: bool, quantile: Quantile) -> float:
        if quantile is Quantile.P50:
            return 1.0
        return max(times.p95_factor for times in (self.decode if is_decode else self.prefill).values())


@dataclasses.dataclass(frozen=True, slots=True)
class OneStepCost:
    """Implements `StepCost` where every step is the same: for plans of one phase, as prefill and decode apart have."""

    one_layer_s: float
    """While the link copies."""
    one_quiet_layer_s: float
    one_head_s: float
    link_bytes_s: float

    @staticmethod
    def of(cost: RunCost, load: StepLoad) -> OneStepCost:
        quiet, beside = (cost.compute_times(load, is_streaming=is_streaming) for is_streaming in (False, True))
        return OneStepCost(beside.layer_s[0], quiet.layer_s[0], quiet.head_s, cost.link_bytes_s)

    def believed(self, compute_factor: float) -> OneStepCost:
        """By a planner that takes computation to be that many times as long."""
        layer_s, quiet_s = self.one_layer_s * compute_factor, self.one_quiet_layer_s * compute_factor
        return OneStepCost(layer_s, quiet_s, self.one_head_s * compute_factor, self.link_bytes_s)

    def layer_s(self, load: StepLoad, quantile: Quantile) -> float:  # noqa: ARG002
        """Of the one step."""
        return self.one_layer_s

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:  # noqa: ARG002
        """Of the one step, while nothing is copied."""
        return self.one_quiet_layer_s

    def head_s(self, num_rows: int, quantile: Quantile) -> float:  # noqa: ARG002
        """Of the one step."""
        return self.one_head_s

    def fixed_s(self) -> float:
        """Nothing, as `RunCost`."""
        return 0.0

    def link_bytes_per_s(self, direction: Direction, quantile: Quantile) -> float:  # noqa: ARG002
        """The cap."""
        return self.link_bytes_s


def predict(
    cost: RunCost, load: StepLoad, placement: Placement, k: int, quiet_s: float | None = None
) -> StepPrediction:
    """A step with k layers of a placement streamed.

    Args:
        quiet_s: of the same step without offload, as measured beside; None: as measured at the start of the run.
    """
    is_streaming = placement.copied_bytes(k) > 0
    times = cost.compute_times(load, is_streaming=is_streaming)
    if quiet_s is not None:
        times = scaled_to(times, cost.step_s(load), quiet_s)
    return predict_step(
        times.layer_s, times.head_s, placement.units(k), max(1, placement.num_slots), cost.link_bytes_s,
        restart_s=cost.restart_s, fixed_s=times.fixed_s,
    )  # fmt: skip


def interpolate(points: Mapping[int, float], at: float) -> float:
    """Straight between the two nearest points; beyond the last one along the last two, before the first its value."""
    ordered = sorted(points.items())
    if len(ordered) == 1 or at <= ordered[0][0]:
        return ordered[0][1]
    segments = list(itertools.pairwise(ordered))
    (low, low_value), (high, high_value) = next((each for each in segments if at <= each[1][0]), segments[-1])
    return low_value + (high_value - low_value) * (at - low) / (high - low)


def scaled_to(times: ComputeTimes, quiet_s: float, step_s: float) -> ComputeTimes:
    """The same step on a machine whose quiet step takes `step_s` now and took `quiet_s` when it was measured."""
    factor = step_s / quiet_s
    return ComputeTimes(tuple(layer * factor for layer in times.layer_s), times.head_s * factor, times.fixed_s * factor)


def measure_shapes(base: BaseModel, shapes: Sequence[StepShape], num_samples: int = MIN_SAMPLES) -> list[ShapeTimes]:
    """All shapes in turn, without streaming."""
    steps = [Steps(base.model.decoder, shape) for shape in shapes]
    taken: list[list[tuple[float, float]]] = [[] for _ in shapes]
    for each in steps:
        each.run()
    for _ in range(num_samples):
        for samples, each in zip(taken, steps, strict=True):
            samples.append((_timed(each.forward), _timed(each.head)))
    results = []
    for shape, samples in zip(shapes, taken, strict=True):
        totals = [forward + head for forward, head in samples]
        forward_s, head_s = (median([sample[part] for sample in samples]) for part in (0, 1))
        results.append(ShapeTimes(shape, forward_s, head_s, p95(totals) / median(totals)))
    return results


def measure_cost(
    base: BaseModel, times: Sequence[ShapeTimes], link_bytes_per_s: float, beside: StepShape, budget_s: float = 1.0
) -> RunCost:
    """A link of that pace beside computation of `beside`, and the cost of the shapes measured before."""
    num_layers, layer_bytes = base.num_layers, int(base.shape.mean_layer_bytes)
    link = open_link(link_bytes_per_s)
    buffers = LinkBuffers(8 * layer_bytes, allocate_host, allocate_host)
    step = Steps(base.model.decoder, beside)
    try:
        point = measure_interference(
            beside, step.forward, num_layers, BusyLink(link, buffers, layer_bytes), link_bytes_per_s,
            budget_s, time.perf_counter, lambda _: None,
        )  # fmt: skip
        restarts = measure_restart(link, buffers, layer_bytes, step.head, budget_s, time.perf_counter, lambda _: None)
    finally:
        link.close()
    decode = {each.shape.num_sequences: each for each in times if each.shape.tokens_each == 1}
    prefill = {each.shape.tokens_each: each for each in times if each.shape.tokens_each > 1}
    return RunCost(
        num_layers, decode, prefill, dict.fromkeys((True, False), point.slowdown), link_bytes_per_s,
        max(0.0, median(restarts)),
    )  # fmt: skip


def _timed(run: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s
