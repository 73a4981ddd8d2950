"""A4, A5: five strategies at equal targets: which meet them, and how much they keep on the host.

    python -m benchmarks.offload_strategies [--quick] [--targets 1.1,1.25,1.5,2,3] [--phases decode,prefill]

Targets are multiples of the same step's time with all weights in place, the link has the ratio of Select-N's
motivation (13.8 decode, 3.5 prefill). Every strategy puts as much on the host as it believes the target to allow, on
the same streamer. `static_fraction` is swept over what it believes of the link: the true bandwidth, a half (two sharers
always), a quarter; and over the assumptions of Select-N's evaluation (peak numbers of an A10 for computation, 0.75 of
the true time in decode and 0.65 in prefill, and two sharers), where the link in truth is alone. `static_group` has the
best group, number and depth by a sweep with the true cost. Freed: device memory, slots paid for. Within: share of steps
that take no longer than the target.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence

from benchmarks.offload_plan import MANY_BYTES, placement_of
from benchmarks.paired_steps import (
    Criterion,
    PairedResult,
    PairPlan,
    Repetition,
    add_arguments,
    heading,
    judge,
    measure_repetition,
    pair_plan,
)
from benchmarks.run_cost import OneStepCost, RunCost, measure_cost, measure_shapes
from benchmarks.streamed_rig import (
    PHASES,
    BaseModel,
    Phase,
    PlacedModel,
    cap_for_ratio,
    open_link,
    resident_burst,
)
from offload.placement import Placement
from offload.plan import Infeasible, Strategy
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.planner import plan
from offload.step_cost import Quantile
from offload.target import ClassTarget

OVERSHOOT = 5.0
"""Of `next_layer`, from where on ours is to meet what it misses."""
MARGIN = 0.97
"""Ours plans for that share of a target; `static_fraction` for all of it."""
PEAK_FACTORS = {"decode": 0.75, "prefill": 0.65}
"""Time at an A10's peak numbers over its true time (reference: 0.75 of memory bandwidth, 0.65 of operations)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Belief:
    """A strategy and what it takes for true."""

    strategy: Strategy
    label: str
    link_factor: float = 1.0
    num_sharers: int = 1
    is_peak: bool = False


BELIEFS = (
    Belief("none", "none"),
    Belief("next_layer", "next_layer"),
    Belief("static_fraction", "fraction, true link"),
    Belief("static_fraction", "fraction, half", link_factor=0.5),
    Belief("static_fraction", "fraction, quarter", link_factor=0.25),
    Belief("static_fraction", "fraction, Select-N's", num_sharers=2, is_peak=True),
    Belief("static_group", "group, best"),
    Belief("interval", "interval (ours)"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """What is run; equal ones are run once. Without layers it is the resident model."""

    num_slots: int
    unit_bytes: tuple[int, ...]
    layers: tuple[int, ...]
    """Streamed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What a strategy chooses for a target."""

    belief: Belief
    factor: float
    placement: Placement
    k: int

    @property
    def config(self) -> Config:
        layers = tuple(sorted(self.placement.order.streamed(self.k)))
        return Config(self.placement.num_slots, self.placement.unit_bytes, layers)

    @property
    def freed_bytes(self) -> int:
        """Device memory for KV."""
        return self.placement.net_freed_bytes(self.k) if self.k else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A choice and what came of it."""

    choice: Choice
    result: PairedResult

    @property
    def is_met(self) -> bool:
        return self.result.ratio <= self.choice.factor

    @property
    def overshoot(self) -> float:
        """Median over target."""
        return self.result.ratio / self.choice.factor

    def text(self, phase: Phase) -> str:
        choice, result = self.choice, self.result
        return (
            f"{phase.name:8} {choice.factor:6.2f} {choice.belief.label:22} {choice.k:3} {choice.placement.num_slots:5} "
            f"{choice.placement.host_bytes(choice.k) / 1e6:8.1f} {choice.freed_bytes / 1e6:8.1f} {result.ratio:7.3f} "
            f"{result.subject_p95_s / result.baseline_s:7.3f} {result.share_within(choice.factor):7.0%} "
            f"{self.overshoot:10.2f} {'met' if self.is_met else 'MISSED'}"
        )


HEADER = (
    f"{'phase':8} {'target':>6} {'strategy':22} {'k':>3} {'slots':>5} {'host MB':>8} {'freed MB':>8} {'p50':>7} "
    f"{'p95':>7} {'within':>7} {'p50/target':>10}"
)


def choose(base: BaseModel, phase: Phase, cost: RunCost, belief: Belief, factor: float) -> Choice | None:
    """What a strategy does at a target; None: it has no plan."""
    one = OneStepCost.of(cost, phase.shape.load)
    request = PlanRequest(
        device_bytes=MANY_BYTES,
        objective="host-bytes",
        strategy=belief.strategy,
        load=ReferenceLoad(num_sequences=1, context_tokens=128, prompt_tokens=1, chunk_tokens=1),
        kv_link_share=0.0,
        quantile=Quantile.P50,
        restart_s=cost.restart_s,
        assumed_cost=one.believed(PEAK_FACTORS[phase.name]) if belief.is_peak else None,
        assumed_link_factor=belief.link_factor,
        assumed_sharers=belief.num_sharers,
    )
    target = ClassTarget("target", math.inf, 0.0, factor * cost.step_s(phase.shape.load), "refuse")
    found = plan(base.shape, one, [target], request)
    if isinstance(found, Infeasible):
        return None
    placement, k = placement_of(base, found), found.streamed_layers
    if not placement.copied_bytes(k):
        placement, k = Placement(base.shape, 0), 0  # nobody takes slots to copy nothing
    return Choice(belief, factor, placement, k)


def measure_configs(
    base: BaseModel, phase: Phase, cost: RunCost, choices: Sequence[Choice], pairs: PairPlan
) -> dict[Config, PairedResult]:
    """Every different one once, beside the resident model."""
    baseline = resident_burst(base, phase.shape)
    results: dict[Config, PairedResult] = {}
    link = open_link(cost.link_bytes_s)
    try:
        for choice in {each.config: each for each in choices}.values():
            if not choice.config.layers:
                subject = resident_burst(base, phase.shape)
            else:
                placed = PlacedModel(
                    base, link, choice.placement, num_streamed=choice.k, min_streamed=choice.k, max_streamed=choice.k
                )
                subject = placed.burst(phase.shape, choice.k)
            repetitions: list[Repetition] = []
            for _ in range(pairs.num_repetitions):
                repetitions += measure_repetition(baseline, [subject], pairs)
            results[choice.config] = PairedResult(tuple(repetitions))
    finally:
        link.close()
    return results


def judge_attainment(phase: Phase, rows: Sequence[Row], is_quick: bool) -> Criterion:
    """A4."""
    ours = {row.choice.factor: row for row in rows if row.choice.belief.strategy == "interval"}
    naive = {row.choice.factor: row for row in rows if row.choice.belief.strategy == "next_layer"}
    missed = [f"{factor:g}" for factor, row in ours.items() if not row.is_met]
    over = ", ".join(f"{factor:g}: {row.overshoot:.1f}x" for factor, row in naive.items())
    where = [factor for factor, row in naive.items() if row.overshoot >= OVERSHOOT]
    detail = f"missed: {', '.join(missed) or 'none'} of {len(ours)}; next_layer over its target by {over}."
    if not where:
        detail += f" At no target does next_layer overshoot {OVERSHOOT:g}x here."
    text = "every feasible target is met by interval"
    return judge(f"A4 {phase.name}", text, not missed, detail, [row.result for row in rows], is_quick=is_quick)


def judge_bytes(phase: Phase, rows: Sequence[Row], is_quick: bool) -> list[Criterion]:
    """A5: against each other strategy where that one meets the target too."""
    criteria = []
    ours = {row.choice.factor: row for row in rows if row.choice.belief.strategy == "interval"}
    for belief in BELIEFS:
        if belief.strategy not in ("static_fraction", "static_group"):
            continue
        theirs = [row for row in rows if row.choice.belief is belief and row.choice.factor in ours]
        both = [row for row in theirs if row.is_met and ours[row.choice.factor].is_met]
        pairs = [(row.choice.freed_bytes, ours[row.choice.factor].choice.freed_bytes, row) for row in both]
        parts = [f"{row.choice.factor:g}: {mine / 1e6:.0f} / {his / 1e6:.0f} MB" for his, mine, row in pairs]
        factors = [mine / his for his, mine, _ in pairs if his > 0]
        best = f", up to {max(factors):.2f}x" if factors else ""
        missed = [f"{row.choice.factor:g}" for row in theirs if not row.is_met]
        detail = f"{'; '.join(parts) or 'no target met by both'}{best}" + (
            f"; {belief.label} missed {', '.join(missed)}" if missed else ""
        )
        holds = bool(pairs) and all(mine >= MARGIN * his for his, mine, _ in pairs)
        results = [row.result for row in (*theirs, *ours.values())]
        criteria.append(
            judge(
                f"A5 {phase.name}",
                f"frees as much device memory as '{belief.label}' (margin of 3 %) where both meet the target",
                holds, detail + ".", results, is_quick=is_quick,
            )
        )  # fmt: skip
    return criteria


def run_phase(base: BaseModel, phase: Phase, factors: Sequence[float], pairs: PairPlan) -> list[Criterion]:
    """Plans, measures, prints."""
    times = measure_shapes(base, [phase.shape])
    cap = cap_for_ratio(base.shape.mean_layer_bytes, times[0].forward_s / base.num_layers, phase.ratio)
    cost = measure_cost(base, times, cap, phase.shape)
    print(
        f"\n{phase.name}: a step without offload {cost.step_s(phase.shape.load) * 1e3:.2f} ms, link {cap / 1e9:.2f} "
        f"GB/s (ratio {phase.ratio}). Times over the resident step's:\n{HEADER}"
    )
    chosen = [choose(base, phase, cost, belief, factor) for factor in factors for belief in BELIEFS]
    choices = [choice for choice in chosen if choice is not None]
    results = measure_configs(base, phase, cost, choices, pairs)
    rows = [Row(choice, results[choice.config]) for choice in choices]
    for row in rows:
        print(row.text(phase), flush=True)
    return [judge_attainment(phase, rows, pairs.is_quick), *judge_bytes(phase, rows, pairs.is_quick)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--targets", default=None, help="multiples of the resident step; 1.1,1.25,1.5,2,3")
    parser.add_argument("--phases", default="decode,prefill")
    arguments = parser.parse_args()
    base = BaseModel(arguments.model, arguments.dtype)
    print(heading("A4, A5: attainment and host bytes of five strategies at equal targets"))
    criteria = []
    for phase in (PHASES[name] for name in arguments.phases.split(",")):
        default = "1.25,2" if arguments.quick and phase.name == "prefill" else "1.1,1.25,1.5,2,3"
        factors = [float(value) for value in (arguments.targets or default).split(",")]
        criteria += run_phase(base, phase, factors, pair_plan(arguments))
    print()
    for criterion in criteria:
        print(criterion.line())
    base.close()


if __name__ == "__main__":
    main()
