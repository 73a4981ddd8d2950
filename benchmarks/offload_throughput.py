"""A6: KV tokens, batch and output tokens/s at one device cap and equal targets, steady and while mix or link change.

    python -m benchmarks.offload_throughput [--quick] [--targets 1.25,1.5,2,3] [--resident-batch 4] [--context 64]

Device memory holds all weights and the KV of `--resident-batch` sequences. Requests never run out: what memory
streaming frees takes more sequences, as long as a step keeps within the target (a multiple of the resident step of 8
sequences; the link has ratio 13.8 there). Each strategy gets the placement and batch with the most predicted tokens/s
of those open to it: `interval` any, `static_group` any group by sweep, `static_fraction` what it believes (see
`offload_strategies`). The last table is a run whose target (a tight class comes and goes) or link (half its bandwidth,
and back) changes: static choices must meet every part of it and keep their k; ours changes k at step boundaries, and
copies layers back over the same link; of a new link it is told at once. Worst part: the largest
median step over its part's target.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence

from benchmarks.device_cap import MAX_BATCH, Cap, Choice, Part
from benchmarks.offload_strategies import BELIEFS, Belief
from benchmarks.paired_steps import (
    MAX_FOREIGN_SHARE,
    Criterion,
    PairedResult,
    PairPlan,
    Repetition,
    add_arguments,
    heading,
    judge,
    measure_repetition,
    pair_plan,
    read_processor_times,
)
from benchmarks.run_cost import measure_cost, measure_shapes
from benchmarks.streamed_rig import (
    BLOCK_SIZE,
    DECODE,
    BaseModel,
    PlacedModel,
    Steps,
    cap_for_ratio,
    open_link,
    resident_burst,
)
from engine.profile_grid import StepShape
from offload.host_link import HostLink
from offload.measurements import median
from offload.placement import Placement
from offload.step_load import StepLoad
from offload.transfer import Direction

NOISE = 0.03
"""Equal choices measured twice differ by as much."""
GOAL = 1.2
"""Over the best static choice where something changes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A strategy at a target, steady."""

    belief: Belief
    factor: float
    choice: Choice
    quiet_s: float
    """The resident step of 8, as the prediction has it."""
    kv_tokens: int
    result: PairedResult

    @property
    def rate(self) -> float:
        """Output tokens a second, over what the resident model of 8 sequences has: paired."""
        return self.choice.batch / (DECODE.shape.num_sequences * self.result.ratio)

    @property
    def is_met(self) -> bool:
        return self.result.ratio <= self.factor

    def text(self) -> str:
        choice, result = self.choice, self.result
        return (
            f"{self.factor:6.2f} {self.belief.label:22} {choice.k:3} {choice.placement.num_slots:5} "
            f"{self.kv_tokens:9} {choice.batch:5} {choice.predicted_s / self.quiet_s:9.3f} {result.ratio:8.3f} "
            f"{result.subject_p95_s / result.baseline_s:7.3f} {choice.batch / result.subject_s:9.1f} {self.rate:7.3f} "
            f"{'met' if self.is_met else 'MISSED'}"
        )


HEADER = (
    f"{'target':>6} {'strategy':22} {'k':>3} {'slots':>5} {'KV tokens':>9} {'batch':>5} {'predicted':>9} "
    f"{'measured':>8} {'p95':>7} {'tokens/s':>9} {'of base':>7}"
)


def measure_steady(cap: Cap, link: HostLink, quiet_s: float, factors: Sequence[float], pairs: PairPlan) -> list[Row]:
    """Every strategy at every target, in turn with the resident model of 8 sequences."""
    base = cap.base
    baseline = resident_burst(base, cap.shape(DECODE.shape.num_sequences))
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...], int], PairedResult] = {}
    rows = []
    for factor in factors:
        for belief in BELIEFS:
            choice = cap.best(belief, Part(factor * quiet_s))
            if choice is None:
                print(f"{factor:6.2f} {belief.label:22} does not fit", flush=True)
                continue
            placement, k = choice.placement, choice.k
            key = (placement.num_slots, placement.unit_bytes, placement.order.layers[:k], choice.batch)
            if key not in known:
                shape = cap.shape(choice.batch)
                if k:
                    placed = PlacedModel(base, link, placement, num_streamed=k, min_streamed=k, max_streamed=k)
                    subject = placed.burst(shape, k)
                else:
                    subject = resident_burst(base, shape)
                taken: list[Repetition] = []
                for _ in range(pairs.num_repetitions):
                    taken += measure_repetition(baseline, [subject], pairs)
                known[key] = PairedResult(tuple(taken))
            rows.append(Row(belief, factor, choice, quiet_s, cap.kv_tokens(placement, k), known[key]))
            print(rows[-1].text(), flush=True)
    return rows


@dataclasses.dataclass(slots=True)
class Tally:
    """Of a run over changing parts."""

    num_tokens: int = 0
    wall_s: float = 0.0
    over_target: list[list[float]] = dataclasses.field(default_factory=list)
    """Of each part, its steps' times over its target."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s

    @property
    def worst_part(self) -> float:
        """The largest median over its target: at most 1 where every part is met at p50."""
        return max(median(part) for part in self.over_target)

    @property
    def share_met(self) -> float:
        """Of steps within their target, those of transitions too."""
        met = [value <= 1.0 for part in self.over_target for value in part]
        return sum(met) / len(met)


class ChangingRun:
    """The same parts for one static choice or for ours, each part for the same time."""

    def __init__(self, cap: Cap, link: HostLink, parts: Sequence[Part], choices: Sequence[Choice]) -> None:
        """
        Args:
            choices: one for each part, of one placement.
        """
        self._cap, self._link, self._parts, self._choices = cap, link, parts, choices
        ks = [choice.k for choice in choices]
        placement = choices[0].placement
        decoder = cap.base.model.decoder
        self._resident = {choice.batch: Steps(decoder, cap.shape(choice.batch)) for choice in choices}
        self._placed: PlacedModel | None = None
        if max(ks):
            slack = 256 * (2 * cap.base.num_layers + 8)
            self._placed = PlacedModel(
                cap.base, link, placement, num_streamed=ks[0], min_streamed=min(ks), max_streamed=max(ks),
                device_bytes=cap.device_bytes + slack,
            )  # fmt: skip
            for choice in choices:
                self._placed.settle(choice.k)
                self._placed.step(cap.shape(choice.batch))  # makes the tensors of the shape

    def run(self, part_s: float) -> Tally:
        tally = Tally()
        placed = self._placed
        if placed is not None:
            placed.settle(self._choices[0].k)
        for part, choice in zip(self._parts, self._choices, strict=True):
            self._link.set_cap(Direction.H2D, self._cap.cost.link_bytes_s * part.link_factor)
            tally.over_target.append([])
            started_s = time.perf_counter()
            while time.perf_counter() - started_s < part_s:
                step_started_s = time.perf_counter()
                batch = self._step(choice)
                step_s = time.perf_counter() - step_started_s
                tally.num_tokens += batch
                tally.over_target[-1].append(step_s / part.target_s)
            tally.wall_s += time.perf_counter() - started_s
        self._link.set_cap(Direction.H2D, self._cap.cost.link_bytes_s)
        if placed is not None:
            placed.weights.drain()
        return tally

    def _step(self, choice: Choice) -> int:
        """The batch of a step that moves towards the choice's k: up at once, down beside the step's own copies."""
        placed = self._placed
        if placed is None:
            self._resident[choice.batch].run()
            return choice.batch
        weights = placed.weights
        if weights.num_streamed != choice.k or weights.is_moving:
            weights.set_streamed(choice.k, self._link.now_s())
        batch = max(1, min(choice.batch, weights.num_kv_blocks // self._cap.blocks_each))
        placed.step(self._cap.shape(batch))
        return batch


def best_static(cap: Cap, belief: Belief, parts: Sequence[Part]) -> list[Choice] | None:
    """One placement and k that meets every part, with the most predicted tokens over all of them."""
    tightest = min(parts, key=lambda part: part.target_s * part.link_factor)
    found = []
    for placement, k in cap.open_to(belief, tightest):
        choices = [cap.best_batch(placement, k, part) for part in parts]
        if all(choice is not None for choice in choices):
            found.append([choice for choice in choices if choice is not None])
    return max(found, key=_total_rate, default=None)


def best_moving(cap: Cap, parts: Sequence[Part]) -> list[Choice] | None:
    """One placement, and of each part its best k."""
    options: dict[int, tuple[Placement, set[int]]] = {}
    belief = BELIEFS[-1]
    for part in dict.fromkeys(parts):
        placements = [placement for placement, k in cap.open_to(belief, part)]
        for placement in {(p.num_slots, p.num_parts): p for p in placements if p.num_slots}.values():
            options.setdefault((placement.num_slots, placement.num_parts), (placement, set()))  # type: ignore[arg-type]
    found = []
    for placement, _ in options.values():
        best: list[Choice] = []
        for part in parts:
            link_bytes = cap.cost.link_bytes_s * part.link_factor * part.target_s
            ks = [k for k in range(cap.base.num_layers + 1) if placement.copied_bytes(k) <= link_bytes]
            choices = [choice for k in ks if (choice := cap.best_batch(placement, k, part)) is not None]
            if choices:
                best.append(max(choices, key=lambda choice: choice.rate))
        if len(best) == len(parts):
            found.append(best)
    return max(found, key=_total_rate, default=None)


def _total_rate(choices: Sequence[Choice]) -> float:
    return sum(choice.rate for choice in choices)


def measure_changing(
    cap: Cap, link: HostLink, name: str, parts: Sequence[Part], part_s: float, num_repetitions: int
) -> Criterion:
    """Ours against the best static choice of either kind, in turn."""
    belief_group, belief_fraction = BELIEFS[-2], BELIEFS[2]
    statics = [
        (belief, choices)
        for belief in (belief_group, belief_fraction)
        if (choices := best_static(cap, belief, parts)) is not None
    ]
    ours = best_moving(cap, parts)
    text = f"{GOAL:g}x the best static choice while the {name} changes, every part met at p50"
    if ours is None or not statics:
        return Criterion(f"A6 {name}", text, False, "no choice meets every part.")
    label, static = max(((belief.label, choices) for belief, choices in statics), key=lambda each: _total_rate(each[1]))
    runs = {label: ChangingRun(cap, link, parts, static), BELIEFS[-1].label: ChangingRun(cap, link, parts, ours)}
    tallies: dict[str, list[Tally]] = {key: [] for key in runs}
    before = read_processor_times()
    for _ in range(num_repetitions):
        for key, run in runs.items():
            tallies[key].append(run.run(part_s))
    foreign = read_processor_times().foreign_share(before)
    for key, choices in ((label, static), (BELIEFS[-1].label, ours)):
        taken = tallies[key]
        print(
            f"{name:8} {key:22} k {','.join(str(choice.k) for choice in choices):12} batch "
            f"{','.join(str(choice.batch) for choice in choices):16} "
            f"{median([tally.tokens_per_s for tally in taken]):9.1f} "
            f"{median([tally.share_met for tally in taken]):7.0%} "
            f"{median([tally.worst_part for tally in taken]):11.2f}",
            flush=True,
        )
    pairs = zip(tallies[BELIEFS[-1].label], tallies[label], strict=True)
    ratio = median([mine.tokens_per_s / his.tokens_per_s for mine, his in pairs])
    predicted = _total_rate(ours) / _total_rate(static)
    reasons = () if foreign <= MAX_FOREIGN_SHARE else (f"other processes took {foreign:.0%} of the wall time",)
    worst = median([tally.worst_part for tally in tallies[BELIEFS[-1].label]])
    detail = (
        f"{ratio:.2f}x '{label}' (predicted without transitions {predicted:.2f}x), the median step of ours at most "
        f"{worst:.2f} of its target in every part."
    )
    return Criterion(f"A6 {name}", text, ratio >= GOAL and worst <= 1.0, detail, reasons)


def judge_steady(rows: Sequence[Row], is_quick: bool) -> list[Criterion]:
    """Never below the best static choice that meets the target; and over FlexGen's way under Select-N's assumptions."""
    ours = {row.factor: row for row in rows if row.belief.strategy == "interval"}
    worst = []
    for factor, mine in ours.items():
        theirs = [
            row for row in rows if row.factor == factor and row.belief.strategy.startswith("static") and row.is_met
        ]
        best = max(theirs, key=lambda row: row.rate, default=None)
        if best is not None:
            worst.append((mine.rate / best.rate, factor, best.belief.label))
    missed = [f"{factor:g}" for factor, row in ours.items() if not row.is_met]
    detail = "; ".join(f"{factor:g}: {ratio:.2f}x '{label}'" for ratio, factor, label in worst)
    holds = all(ratio >= 1.0 - NOISE for ratio, _, _ in worst) and not missed
    results = [row.result for row in rows]
    criteria = [
        judge(
            "A6 steady", f"no fewer tokens/s than the best static choice (noise {NOISE:.0%}), every target met", holds,
            detail + (f"; ours missed {', '.join(missed)}" if missed else "") + ".", results, is_quick=is_quick,
        )
    ]  # fmt: skip
    for belief in BELIEFS:
        if belief.strategy != "static_fraction":
            continue
        by_factor = {row.factor: row for row in rows if row.belief is belief and row.is_met and row.factor in ours}
        ratios = {factor: ours[factor].rate / row.rate for factor, row in by_factor.items()}
        best_ratio = max(ratios.values(), default=0.0)
        text = "; ".join(f"{factor:g}: {ratio:.2f}x" for factor, ratio in ratios.items()) or "it meets no target"
        goal = 1.85 if belief.is_peak else 1.0
        criteria.append(
            judge(
                "A6 steady", f"tokens/s over '{belief.label}': at best {goal:g}x or more", best_ratio >= goal,
                text + ".", [row.result for row in (*by_factor.values(), *ours.values())], is_quick=is_quick,
            )
        )  # fmt: skip
    return criteria


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--targets", default=None, help="multiples of the resident step of 8; 1.25,1.5,2,3")
    parser.add_argument("--resident-batch", type=int, default=4, help="sequences beside the whole model")
    parser.add_argument("--context", type=int, default=64, help="tokens of each sequence")
    parser.add_argument("--part-s", type=float, default=None, help="of a changing run; 2, and 1 with --quick")
    arguments = parser.parse_args()
    pairs = pair_plan(arguments)
    base = BaseModel(arguments.model, arguments.dtype)
    print(heading("A6: KV, batch and tokens/s at one device cap and equal targets"))
    times = measure_shapes(base, [StepShape(batch, 1, arguments.context) for batch in (1, 4, 8, 16, 32, 48, MAX_BATCH)])
    reference = next(each for each in times if each.shape.num_sequences == DECODE.shape.num_sequences)
    link_bytes_s = cap_for_ratio(base.shape.mean_layer_bytes, reference.forward_s / base.num_layers, DECODE.ratio)
    cost = measure_cost(base, times, link_bytes_s, reference.shape)
    blocks = arguments.resident_batch * -(-arguments.context // BLOCK_SIZE)
    device_bytes = base.shape.weights_bytes + blocks * base.block_bytes
    cap = Cap(base, cost, device_bytes, arguments.context)
    quiet_s = cost.step_s(StepLoad.decode(DECODE.shape.num_sequences, arguments.context))
    print(
        f"\ndevice {device_bytes / 1e6:.0f} MB: weights {base.shape.weights_bytes / 1e6:.0f} MB and KV of "
        f"{arguments.resident_batch} x {arguments.context} tokens; resident step of 8: {quiet_s * 1e3:.2f} ms, link "
        f"{link_bytes_s / 1e9:.2f} GB/s. Times over that step's, tokens/s over its:\n{HEADER}"
    )
    default = "1.5,3" if arguments.quick else "1.25,1.5,2,3"
    factors = [float(value) for value in (arguments.targets or default).split(",")]
    link = open_link(link_bytes_s)
    rows = measure_steady(cap, link, quiet_s, factors, pairs)
    criteria = judge_steady(rows, pairs.is_quick)
    part_s = arguments.part_s or (1.0 if arguments.quick else 2.0)
    print(
        f"\n{'changes':8} {'strategy':22} {'streamed layers':14} {'batch by part':22} {'tokens/s':>9} {'within':>7} "
        f"{'worst part':>11}"
    )
    mix = [Part(3.0 * quiet_s), Part(1.25 * quiet_s)] * 2
    drop = [Part(2.0 * quiet_s), Part(2.0 * quiet_s, 0.5)] * 2
    for name, parts in (("mix", mix), ("link", drop)):
        criteria.append(measure_changing(cap, link, name, parts, part_s, pairs.num_repetitions))
    link.close()
    print()
    for criterion in criteria:
        print(criterion.line())
    base.close()


if __name__ == "__main__":
    main()
