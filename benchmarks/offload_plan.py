"""A3, A9: the plan meets its target and one more streamed layer does not; what cannot be met is refused before a token.

    python -m benchmarks.offload_plan [--quick] [--targets 1.1,1.25,1.5,2,3]

Targets are multiples of the same step's time with all weights in place. The planner looks for the most bytes on the
host that the target allows (`--offload-objective host-bytes`), at the medians measured in this run and with its margin
of 3 %; no KV shares the link. Its k and k + 1 are run beside the resident model. k + 1 is asserted to miss only where
it is predicted to take more than 1.03 times the target.
For A9 the real scheduler, runner and streamer serve a model of which 12 layers must be streamed, with one class below
its floor: it must be refused with the arithmetic while nothing has been computed, and the other class served.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence

from benchmarks.paired_steps import (
    Criterion,
    PairedResult,
    PairPlan,
    add_arguments,
    heading,
    judge,
    measure_repetition,
    pair_plan,
)
from benchmarks.run_cost import OneStepCost, RunCost, measure_cost, measure_shapes, predict
from benchmarks.streamed_rig import (
    BLOCK_SIZE,
    PHASES,
    BaseModel,
    Phase,
    PlacedModel,
    cap_for_ratio,
    open_link,
    resident_burst,
)
from engine.clock import MonotonicClock
from engine.core import EngineCore
from engine.kv_cache import KVCache
from engine.messages import AddGroup, SLORequest, StepOutputs
from engine.model_runner import ModelRunner
from engine.profile_grid import StepShape
from engine.sampling_params import SamplingParams
from engine.weight_offload import WeightOffload
from offload.placement import Placement
from offload.plan import Infeasible, OffloadPlan
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.planner import plan
from offload.residency import ResidencyOrder
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.target import ClassTarget
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLOClasses

ASSERTED_FACTOR = 1.03
MANY_BYTES = 2**36
"""Device memory where it shall not be what limits."""
PROMPT = StepShape(num_sequences=1, tokens_each=32, context_each=32)
"""Of the requests of A9."""
FORCED_LAYERS = 12
"""Of the model of A9."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One target: k and k + 1, predicted over the resident step's time, and measured."""

    factor: float
    placement: Placement
    k: int
    predicted: tuple[float, float]
    measured: tuple[PairedResult, PairedResult | None]

    @property
    def is_met(self) -> bool:
        return self.measured[0].ratio <= self.factor

    @property
    def is_next_asserted(self) -> bool:
        return self.measured[1] is not None and self.predicted[1] > ASSERTED_FACTOR * self.factor

    @property
    def is_next_missed(self) -> bool:
        return self.measured[1] is not None and self.measured[1].ratio > self.factor

    def text(self, phase: Phase, num_layers: int) -> str:
        placement, (this, following) = self.placement, self.measured
        share = sum(placement.unit_bytes) / sum(placement.shape.layer_bytes)
        interval = num_layers / (self.k * share) if self.k else math.inf
        after = "-"
        if following is not None:
            after = f"{following.ratio:.3f} {'misses' if self.is_next_missed else 'meets'}"
            after += "" if self.is_next_asserted else " (not asserted)"
        return (
            f"{phase.name:8} {self.factor:6.2f} {self.k:3} {share:6.0%} {placement.num_slots:5} {interval:8.1f} "
            f"{placement.host_bytes(self.k) / 1e6:8.1f} {self.predicted[0]:9.3f} {this.ratio:8.3f} "
            f"{this.subject_p95_s / this.baseline_s:7.3f} {this.share_within(self.factor):7.0%} "
            f"{'met' if self.is_met else 'MISSED':>7} {self.predicted[1]:9.3f} {after:>8}"
        )


HEADER = (
    f"{'phase':8} {'target':>6} {'k':>3} {'unit':>6} {'slots':>5} {'interval':>8} {'host MB':>8} {'predicted':>9} "
    f"{'measured':>8} {'p95':>7} {'within':>7} {'':7} {'k+1 pred.':>9} {'measured':>8}"
)


def make_plan(
    base: BaseModel, cost: OneStepCost, quiet_s: float, factor: float, restart_s: float
) -> OffloadPlan | Infeasible:
    """The most on the host at that multiple of the resident step."""
    request = PlanRequest(
        device_bytes=MANY_BYTES,
        objective="host-bytes",
        load=ReferenceLoad(num_sequences=1, context_tokens=128, prompt_tokens=1, chunk_tokens=1),
        kv_link_share=0.0,
        quantile=Quantile.P50,
        restart_s=restart_s,
    )
    return plan(base.shape, cost, [ClassTarget("target", math.inf, 0.0, factor * quiet_s, "refuse")], request)


def placement_of(base: BaseModel, found: OffloadPlan) -> Placement:
    """What a plan places."""
    num_parts = next(n for n in range(1, base.shape.num_parts + 1) if base.shape.tail_bytes(n) == found.unit_bytes)
    return Placement(base.shape, found.num_slots, num_parts=num_parts, order=ResidencyOrder(found.layer_order))


def measure_targets(
    base: BaseModel, phase: Phase, cost: RunCost, factors: Sequence[float], pairs: PairPlan
) -> list[Row]:
    """Plans and measures every target, and prints its row."""
    load, baseline = phase.shape.load, resident_burst(base, phase.shape)
    quiet_s = cost.step_s(load)
    link = open_link(cost.link_bytes_s)
    rows = []
    try:
        for factor in factors:
            found = make_plan(base, OneStepCost.of(cost, load), quiet_s, factor, cost.restart_s)
            if isinstance(found, Infeasible) or not found.num_slots:
                print(f"{phase.name:8} {factor:6.2f} nothing can be streamed: {getattr(found, 'reason', 'no layer')}")
                continue
            placement, k = placement_of(base, found), found.streamed_layers
            following = min(k + 1, base.num_layers)
            placed = PlacedModel(base, link, placement, num_streamed=k, min_streamed=k, max_streamed=following)
            subjects = [placed.burst(phase.shape, number) for number in dict.fromkeys((k, following))]
            taken = [measure_repetition(baseline, subjects, pairs) for _ in range(pairs.num_repetitions)]
            results = [PairedResult(tuple(each)) for each in zip(*taken, strict=True)]
            predicted = tuple(predict(cost, load, placement, number).step_s / quiet_s for number in (k, following))
            row = Row(
                factor, placement, k, (predicted[0], predicted[1]), (results[0], results[1] if results[1:] else None)
            )
            rows.append(row)
            print(row.text(phase, base.num_layers), flush=True)
    finally:
        link.close()
    return rows


def judge_rows(phase: Phase, rows: Sequence[Row], is_quick: bool) -> list[Criterion]:
    results = [result for row in rows for result in row.measured if result is not None]
    missed = [f"{row.factor:g}" for row in rows if not row.is_met]
    asserted = [row for row in rows if row.is_next_asserted]
    kept = [f"{row.factor:g}" for row in asserted if not row.is_next_missed]
    met_text = f"{len(rows) - len(missed)} of {len(rows)} targets" + (
        f", missed: {', '.join(missed)}" if missed else ""
    )
    next_text = f"{len(asserted) - len(kept)} of {len(asserted)} asserted" + (
        f", not: {', '.join(kept)}" if kept else ""
    )
    if not asserted:
        next_text = f"nothing to assert: no k + 1 is predicted beyond {ASSERTED_FACTOR} times its target"
    return [
        judge(
            f"A3 {phase.name}", "the plan's k meets its target at p50", not missed and bool(rows), met_text + ".",
            results, is_quick=is_quick,
        ),
        judge(
            f"A3 {phase.name}", "one more streamed layer misses it", not kept, next_text + ".", results,
            is_quick=is_quick,
        ),
    ]  # fmt: skip


def refuse_infeasible(base: BaseModel, cost: RunCost) -> Criterion:
    """A9: by the real scheduler, before anything is computed; nothing is timed here."""
    device_bytes = Placement(base.shape, 2).device_bytes(FORCED_LAYERS) + 160 * base.block_bytes
    one = OneStepCost.of(cost, StepLoad.decode(1, 128))
    request = PlanRequest(
        device_bytes=device_bytes, block_size=BLOCK_SIZE, max_model_len=2048, kv_link_share=0.0,
        quantile=Quantile.P50, load=ReferenceLoad(1, 128, 1, 1), restart_s=cost.restart_s,
    )  # fmt: skip
    quiet_s = cost.step_s(StepLoad.decode(1, 128))
    classes = _classes({"realtime": 1.5 * quiet_s, "standard": 1000 * quiet_s})
    targets = [ClassTarget(c.name, c.ttft_base_s, c.ttft_per_1k_tokens_s, c.tpot_s, c.when_infeasible) for c in classes]
    found = plan(base.shape, one, targets, request)
    alone = plan(base.shape, one, targets[:1], request)
    assert isinstance(found, OffloadPlan), found.reason
    floor = found.classes[0]
    print(
        f"\nA9: a device of {device_bytes / 1e6:.0f} MB, {found.streamed_layers} of {base.num_layers} layers streamed; "
        f"realtime wants {classes.get('realtime').tpot_s * 1e3:.1f} ms, its floor is {floor.floor_tpot_s * 1e3:.1f} ms"
    )
    if isinstance(alone, Infeasible):
        print(f"  planned for alone: refused at start: {alone.reason}")
    refused, served, num_before = _serve(base, cost, found, classes, device_bytes)
    print(f"  its request: {refused}")
    holds = not floor.is_open and isinstance(alone, Infeasible) and bool(refused) and num_before == 0 and served > 0
    detail = f"{num_before} tokens before the verdict; the other class got {served} tokens."
    return Criterion("A9", "an infeasible class is refused before a token, others are served", holds, detail)


def _classes(tpot_s: dict[str, float]) -> SLOClasses:
    chosen = [c for c in DEFAULT_CLASSES if c.name in tpot_s]
    return SLOClasses(tuple(dataclasses.replace(c, tpot_s=tpot_s[c.name]) for c in chosen))


def _serve(
    base: BaseModel, cost: RunCost, found: OffloadPlan, classes: SLOClasses, device_bytes: int
) -> tuple[str, int, int]:
    """The refusal's text, tokens of the other class, tokens before the refusal."""
    link = open_link(cost.link_bytes_s)
    try:
        placed = PlacedModel(
            base, link, placement_of(base, found), num_streamed=found.streamed_layers,
            min_streamed=found.min_streamed_layers, max_streamed=found.max_streamed_layers, device_bytes=device_bytes,
        )  # fmt: skip
        weights = placed.weights
        config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256, block_size=BLOCK_SIZE)
        model = dataclasses.replace(base.model, decoder=placed.decoder)
        runner = ModelRunner(
            model, weights.max_kv_blocks, BLOCK_SIZE, config.max_num_seqs, config.max_num_batched_tokens, 256,
            weights.kv_memory,
        )  # fmt: skip
        cache: KVCache = runner.kv_cache
        manager = WeightOffload(
            weights,
            placed.arena,
            link,
            found,
            lambda _bytes_per_s, _compute_factor: found,
            lambda load, is_copying: cost.compute_times(load, is_streaming=is_copying).total_s,
            cache.set_border,
        )
        core = EngineCore(
            Scheduler(config, classes, weights.max_kv_blocks, 256), runner, MonotonicClock(), block_size=BLOCK_SIZE,
            eos_token_ids=frozenset(), offload=manager,
        )  # fmt: skip
        first = core.turn([_group("asks", "realtime")])
        refusals = [f"{each.reason}: {each.message}" for each in first.refused if each.group_id == "asks"]
        outputs = [core.turn([_group("works", "standard")])]
        outputs += [core.turn([]) for _ in range(7)]
        weights.drain()
        return (refusals or [""])[0], _num_tokens(outputs), _num_tokens([first])
    finally:
        link.close()


def _group(group_id: str, class_name: str) -> AddGroup:
    return AddGroup(
        group_id=group_id, prompts=(tuple(range(1, PROMPT.tokens_each + 1)),), n=1,
        sampling=SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True),
        slo=SLORequest(requested=class_name, granted=class_name), arrival_s=MonotonicClock().now_s(),
    )  # fmt: skip


def _num_tokens(outputs: Sequence[StepOutputs]) -> int:
    return sum(len(delta.token_ids) for output in outputs for delta in output.deltas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--targets", default=None, help="multiples of the resident step; 1.1,1.25,1.5,2,3")
    parser.add_argument("--phases", default="decode,prefill")
    arguments = parser.parse_args()
    pairs = pair_plan(arguments)
    base = BaseModel(arguments.model, arguments.dtype)
    print(heading("A3, A9: the plan against the measured step"))
    criteria = []
    for phase in (PHASES[name] for name in arguments.phases.split(",")):
        factors = [float(value) for value in (arguments.targets or "1.1,1.25,1.5,2,3").split(",")]
        times = measure_shapes(base, [phase.shape])
        cap = cap_for_ratio(base.shape.mean_layer_bytes, times[0].forward_s / base.num_layers, phase.ratio)
        cost = measure_cost(base, times, cap, phase.shape)
        print(
            f"\n{phase.name}: a step without offload {cost.step_s(phase.shape.load) * 1e3:.2f} ms, link "
            f"{cap / 1e9:.2f} GB/s (ratio {phase.ratio}). Times over the resident step's:\n{HEADER}"
        )
        criteria += judge_rows(phase, measure_targets(base, phase, cost, factors, pairs), pairs.is_quick)
    alone = dataclasses.replace(PHASES["decode"].shape, num_sequences=1)
    times = measure_shapes(base, [alone, PROMPT])
    cap = cap_for_ratio(base.shape.mean_layer_bytes, times[0].forward_s / base.num_layers, PHASES["decode"].ratio)
    criteria.append(refuse_infeasible(base, measure_cost(base, times, cap, alone)))
    print()
    for criterion in criteria:
        print(criterion.line())
    base.close()


if __name__ == "__main__":
    main()
