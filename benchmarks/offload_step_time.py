"""A1, A2: the predicted time of a step against the measured one, for every k and interval, with one slot and with two.

    python -m benchmarks.offload_step_time [--quick] [--step-k 1] [--phases decode,prefill] [--slots 1,2]

k layers spread evenly, or the last of every i (the layout of Select-N), are streamed over a link whose cap makes a
layer's copy take 13.8 times its computation (decode, 8 sequences) or 3.5 times (a prompt of 128 tokens). The baseline,
all weights in place, runs in turn with every subject; the prediction is the event simulation of `offload.predict` on
the layer's time of the same repetition. Link-bound: layers are predicted to wait for more than 5 % of the step.
The last table is the spread of each layer's time: (A2) standard deviation over mean of its repetitions.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks.paired_steps import (
    Criterion,
    PairedResult,
    PairPlan,
    add_arguments,
    foreign_reasons,
    heading,
    judge,
    measure_repetition,
    pair_plan,
    read_processor_times,
)
from benchmarks.run_cost import RunCost, measure_cost, measure_shapes, predict
from benchmarks.streamed_rig import (
    PHASES,
    BaseModel,
    Phase,
    PlacedModel,
    Steps,
    cap_for_ratio,
    open_link,
    resident_burst,
)
from engine.layers.layer_access import LayerAccess, ResidentLayers
from engine.layers.slab import Slab
from offload.measurements import median
from offload.placement import Placement
from offload.predict import StepPrediction
from offload.residency import ResidencyOrder, interval_layout

LINK_BOUND_SHARE = 0.05
"""Of the step that layers are predicted to wait: from here on the link decides."""
TOLERANCE = 0.05
MAX_SUBJECTS = 4
"""Beside one baseline: a repetition is to be short."""
QUICK_K = {"decode": (3, 10, 30), "prefill": (8, 15, 30)}
QUICK_INTERVALS = {"decode": (3, 10), "prefill": (2,)}


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A layout on so many slots."""

    placement: Placement
    k: int
    interval: int | None

    @property
    def label(self) -> str:
        return f"k={self.k}" if self.interval is None else f"i={self.interval}"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What was predicted and measured of a point."""

    phase: Phase
    point: Point
    prediction: StepPrediction
    result: PairedResult

    @property
    def error(self) -> float:
        return self.prediction.step_s / self.result.subject_s - 1.0

    @property
    def is_link_bound(self) -> bool:
        return self.prediction.exposed_s > LINK_BOUND_SHARE * self.prediction.step_s

    def text(self) -> str:
        result, prediction = self.result, self.prediction
        return (
            f"{self.phase.name:8} {self.point.label:>5} {self.point.placement.num_slots:5} "
            f"{self.point.k:3} {result.transfers('num_bytes') / 1e6:8.1f} {result.baseline_s * 1e3:8.2f} "
            f"{prediction.step_s * 1e3:9.2f} {result.subject_s * 1e3:9.2f} {result.subject_p95_s * 1e3:8.2f} "
            f"{self.error:+7.1%} {prediction.exposed_s * 1e3:8.2f} {result.transfers('exposed_s') * 1e3:8.2f} "
            f"{result.transfers('hidden_s') * 1e3:7.2f} {'link' if self.is_link_bound else 'compute':>8}"
        )


HEADER = (
    f"{'phase':8} {'':>5} {'slots':>5} {'k':>3} {'MB/step':>8} {'base ms':>8} {'predicted':>9} {'measured':>9} "
    f"{'p95':>8} {'error':>7} {'exp.pred':>8} {'exp.meas':>8} {'hidden':>7} {'bound by':>8}"
)


class PhaseRun:
    """All points of one phase over one link."""

    def __init__(self, base: BaseModel, phase: Phase, cost: RunCost, plan: PairPlan) -> None:
        self._base, self._phase, self._cost, self._plan = base, phase, cost, plan
        self._baseline = resident_burst(base, phase.shape)

    def measure(self, points: Sequence[Point]) -> Iterator[Row]:
        """Points of one placement share it; all repetitions of a placement follow each other."""
        placements: dict[int, list[Point]] = {}
        for point in points:
            placements.setdefault(id(point.placement), []).append(point)
        link = open_link(self._cost.link_bytes_s)
        try:
            for group in placements.values():
                placed = PlacedModel(
                    self._base, link, group[0].placement, num_streamed=group[0].k,
                    min_streamed=min(point.k for point in group) if group[0].interval else 0,
                    max_streamed=max(point.k for point in group),
                )  # fmt: skip
                for start in range(0, len(group), MAX_SUBJECTS):
                    yield from self._rows(placed, group[start : start + MAX_SUBJECTS])
        finally:
            link.close()

    def _rows(self, placed: PlacedModel, points: Sequence[Point]) -> Iterator[Row]:
        """Beside the same bursts of the baseline."""
        subjects = [placed.burst(self._phase.shape, point.k) for point in points]
        taken = [measure_repetition(self._baseline, subjects, self._plan) for _ in range(self._plan.num_repetitions)]
        for point, repetitions in zip(points, zip(*taken, strict=True), strict=True):
            result = PairedResult(tuple(repetitions))
            load = self._phase.shape.load
            prediction = predict(self._cost, load, point.placement, point.k, result.baseline_s)
            yield Row(self._phase, point, prediction, result)


def make_points(base: BaseModel, phase: Phase, slots: Sequence[int], is_quick: bool, step_k: int) -> list[Point]:
    """Every k and every interval; or every `step_k`-th k and the last, and the smallest interval of each k."""
    num_layers = base.num_layers
    ks = [*range(1, num_layers + 1, step_k), num_layers]
    intervals: Sequence[int] = range(1, num_layers + 1)
    if step_k > 1:
        by_k = {num_layers // interval: interval for interval in reversed(intervals)}
        intervals = list(by_k.values())
    if is_quick:
        ks = [min(k, num_layers) for k in QUICK_K[phase.name]]
        intervals = QUICK_INTERVALS[phase.name]
    points = []
    for num_slots in slots:
        even = Placement(base.shape, num_slots)
        points += [Point(even, k, None) for k in dict.fromkeys(ks)]
        for interval in intervals:
            order = ResidencyOrder.of_interval(num_layers, interval)
            k = len(interval_layout(num_layers, interval))
            points.append(Point(Placement(base.shape, num_slots, order=order), k, interval))
    return points


class TimedLayers:
    """All layers in place, each computed by a call of its own and timed."""

    def __init__(self, layers: LayerAccess, num_layers: int) -> None:
        self._layers = layers
        self.streamed_layers = tuple(range(num_layers))
        self.times_s: list[list[float]] = [[] for _ in range(num_layers)]
        self._started_s = 0.0

    def acquire(self, layer: int) -> Slab:
        slab = self._layers.acquire(layer)
        self._started_s = time.perf_counter()
        return slab

    def release(self, layer: int) -> None:
        self.times_s[layer].append(time.perf_counter() - self._started_s)


def print_spread(base: BaseModel, phases: Sequence[Phase], num_steps: int) -> list[Criterion]:
    """A2."""
    print(f"\n{'phase':8} {'layer us':>9} {'CV p50':>7} {'CV max':>7} {'layers apart':>13}")
    criteria = []
    for phase in phases:
        timed = TimedLayers(ResidentLayers([base.slab(n) for n in range(base.num_layers)]), base.num_layers)
        steps = Steps(base.decoder_over(timed), phase.shape)
        before = read_processor_times()
        for _ in range(2 + num_steps):
            steps.run()
        foreign = read_processor_times().foreign_share(before)
        layers = [times[2:] for times in timed.times_s]
        spreads = [statistics.pstdev(times) / statistics.fmean(times) for times in layers]
        medians = [median(times) for times in layers]
        apart = statistics.pstdev(medians) / statistics.fmean(medians)
        print(f"{phase.name:8} {median(medians) * 1e6:9.1f} {median(spreads):7.1%} {max(spreads):7.1%} {apart:13.1%}")
        criteria.append(
            Criterion(
                f"A2 {phase.name}", "a layer's time is the same in every step (CV below 10 %)",
                median(spreads) < 0.10, f"CV {median(spreads):.1%} in {num_steps} steps.",
                tuple(foreign_reasons(foreign)),
            )
        )  # fmt: skip
    return criteria


def judge_rows(phase: Phase, rows: Sequence[Row], is_quick: bool) -> Criterion:
    """A1: within 5 % when link-bound."""
    bound = [row for row in rows if row.is_link_bound]
    errors = [abs(row.error) for row in bound]
    worst = max(bound, key=lambda row: abs(row.error))
    rest = [abs(row.error) for row in rows if not row.is_link_bound]
    detail = (
        f"{sum(error <= TOLERANCE for error in errors)} of {len(errors)} link-bound points, median "
        f"{median(errors):.1%}, worst {worst.error:+.1%} ({worst.point.label}, {worst.point.placement.num_slots} slots)"
        + (f"; {len(rest)} others, median {median(rest):.1%}" if rest else "")
        + "."
    )
    text = f"predicted within {TOLERANCE:.0%} of measured when link-bound"
    results = [row.result for row in rows]
    return judge(f"A1 {phase.name}", text, max(errors) <= TOLERANCE, detail, results, is_quick=is_quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--phases", default="decode,prefill")
    parser.add_argument("--slots", default="1,2")
    parser.add_argument(
        "--step-k", type=int, default=1, help="every that many numbers of streamed layers; above 1, fewer intervals"
    )
    arguments = parser.parse_args()
    plan = pair_plan(arguments)
    base = BaseModel(arguments.model, arguments.dtype)
    phases = [PHASES[name] for name in arguments.phases.split(",")]
    slots = [int(value) for value in arguments.slots.split(",")]
    print(heading("A1, A2: time of a step, predicted and measured"))
    criteria = []
    for phase in phases:
        times = measure_shapes(base, [phase.shape])
        layer_s = times[0].forward_s / base.num_layers
        cap = cap_for_ratio(base.shape.mean_layer_bytes, layer_s, phase.ratio)
        cost = measure_cost(base, times, cap, phase.shape)
        print(
            f"\n{phase.name}: {phase.shape.num_sequences} x {phase.shape.tokens_each} tokens, a layer "
            f"{layer_s * 1e6:.0f} us of computation and {phase.ratio} times that of copying: {cap / 1e9:.2f} GB/s; "
            f"beside copies x {cost.slowdown[True]:.3f}, restart {cost.restart_s * 1e3:.2f} ms\n{HEADER}"
        )
        rows = []
        points = make_points(base, phase, slots, arguments.quick, arguments.step_k)
        for row in PhaseRun(base, phase, cost, plan).measure(points):
            rows.append(row)
            print(row.text(), flush=True)
        criteria.append(judge_rows(phase, rows, plan.is_quick))
    criteria += print_spread(base, phases, num_steps=40)
    print()
    for criterion in criteria:
        print(criterion.line())
    base.close()


if __name__ == "__main__":
    main()
