"""The experiments on policies: which runs each takes, and its table in markdown.

Every policy gets the same arrivals (by seed), the same absolute targets, and the same search for its budget.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.paired_bootstrap import paired_ratio
from benchmarks.policy_jobs import Capacity, Job, Laboratory, Outcome, Tuning
from benchmarks.policy_trial import Site, Trial, Variant
from benchmarks.policy_workloads import LongPrompts, Workload

PROTECTED_GOAL = 0.99
LOAD_GOAL = 0.9
"""A load of 1 is the rate at which `priority` serves so many of the protected requests of that seed in time."""
TUNING_SEED = 1000
BEST_STATIC = Variant("fcfs")
BASELINE = Variant("priority")

Find = Callable[[Job], dict[str, Any]]
Rows = Iterable[Sequence[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is compared, on what."""

    site: Site
    workloads: tuple[Workload, ...]
    injected: LongPrompts
    variants: tuple[Variant, ...]
    ablations: tuple[Variant, ...]
    seeds: tuple[int, ...]
    budgets: tuple[int, ...]
    loads: tuple[float, ...]
    slowdowns: tuple[float, ...]


class Experiments:
    """Runs the plan's experiments in a laboratory; each gives its table."""

    def __init__(self, plan: Plan, laboratory: Laboratory) -> None:
        self._plan = plan
        self._laboratory = laboratory
        self._tuned: dict[tuple[str, str, bool], dict[str, Any]] = {}

    def capacity(self) -> str:
        """E2: the highest rate with `PROTECTED_GOAL` of the protected requests in time."""
        plan = self._plan
        variants = tuple(dict.fromkeys((BEST_STATIC, BASELINE, *plan.variants)))
        self._tune(plan.workloads, variants)
        jobs = {
            (w.name, v, s): self._capacity_job(w, v, s) for w in plan.workloads for v in variants for s in plan.seeds
        }
        found = self._laboratory.run(list(jobs.values()))
        rates = {place: found[job.key]["capacity_per_s"] for place, job in jobs.items()}
        heads = ("workload", "policy", "budget", "requests/s", f"/ {BEST_STATIC.name}", f"/ {BASELINE.name}")
        rows = [
            (
                w.name,
                v.name,
                str(self._budget(w, v)),
                _rate(rates[w.name, v, s] for s in plan.seeds),
                *self._ratios(rates, v, (w,)),
            )
            for w in plan.workloads
            for v in variants
        ]
        rows += [("all", v.name, "", "", *self._ratios(rates, v, plan.workloads)) for v in variants]
        return _table(f"E2: capacity at {PROTECTED_GOAL:.0%} of the protected requests in time", heads, rows)

    def overload(self) -> str:
        """E3: offered attainment at and beyond a load of 1."""
        plan, rows = self._plan, []
        variants = tuple(dict.fromkeys((BASELINE, *plan.variants)))
        found = self._outcomes(plan.workloads, variants, plan.loads)
        for workload in plan.workloads:
            for load in plan.loads:
                base = found[workload.name, load, BASELINE]
                for variant in variants:
                    runs = found[workload.name, load, variant]
                    rows.append((workload.name, f"{load:g}", variant.name, *_outcome_cells(runs), _worst(runs, base)))
        heads = ("workload", "load", "policy", *_OUTCOME_HEADS, f"worst class - {BASELINE.name}")
        return _table("E3: offered attainment in overload", heads, rows)

    def long_prompts(self) -> str:
        """E4: the 99th percentile of the highest class's TTFT, without and with long prompts between."""
        plan, rows = self._plan, []
        base, injected = plan.injected.base, plan.injected
        self._tune((base,), (BASELINE, *plan.variants))
        units = self._unit_rates(base)
        jobs = {
            (w.name, v, s): Outcome(self._trial(w, v, s, self._budget(base, v)), 0.8 * units[s])
            for w in (base, injected)
            for v in plan.variants
            for s in plan.seeds
        }
        found = self._laboratory.run(list(jobs.values()))
        for variant in plan.variants:
            quiet, beside = (
                _median([found[jobs[w.name, variant, s].key]["realtime_ttft_p99_s"] for s in plan.seeds])
                for w in (base, injected)
            )
            rows.append((variant.name, _ms(quiet), _ms(beside), f"{beside / quiet:.2f}"))
        heads = ("policy", "realtime TTFT p99", "with long prompts", "ratio")
        return _table(f"E4: {injected.name}, at a load of 0.8", heads, rows)

    def ablations(self) -> str:
        """E5: the parts taken away one by one."""
        plan, workload = self._plan, self._plan.workloads[0]
        found = self._outcomes((workload,), plan.ablations, plan.loads)
        rows = [
            (f"{load:g}", variant.name, *_outcome_cells(found[workload.name, load, variant]))
            for load in plan.loads
            for variant in plan.ablations
        ]
        return _table(f"E5: ablations, {workload.name}", ("load", "policy", *_OUTCOME_HEADS), rows)

    def misprediction(self) -> str:
        """E12: steps take a factor of what the latency model believes at first."""
        plan, workload, rows = self._plan, self._plan.workloads[0], []
        self._tune((workload,), (BASELINE, *plan.variants))
        units = self._unit_rates(workload)
        jobs = {
            (f, v, s): Outcome(self._trial(workload, v, s, self._budget(workload, v), slowdown=f), units[s] / f)
            for f in plan.slowdowns
            for v in plan.variants
            for s in plan.seeds
        }
        found = self._laboratory.run(list(jobs.values()))
        for factor in plan.slowdowns:
            for variant in plan.variants:
                runs = [found[jobs[factor, variant, s].key] for s in plan.seeds]
                rows.append((f"{factor:g}", variant.name, *_outcome_cells(runs)))
        title = f"E12: steps take a factor of what is believed, {workload.name}, at a load of 1 of the slowed machine"
        return _table(title, ("factor", "policy", *_OUTCOME_HEADS), rows)

    # What the experiments share.

    def _outcomes(
        self, workloads: Sequence[Workload], variants: Sequence[Variant], loads: Sequence[float]
    ) -> Mapping[tuple[str, float, Variant], list[dict[str, Any]]]:
        """Whole runs by workload, load and variant, one a seed."""
        self._tune(workloads, (BASELINE, *variants))
        jobs: dict[tuple[str, float, Variant, int], Job] = {}
        for workload in workloads:
            units = self._unit_rates(workload)
            for load in loads:
                for variant in variants:
                    for seed in self._plan.seeds:
                        trial = self._trial(workload, variant, seed, self._budget(workload, variant))
                        jobs[workload.name, load, variant, seed] = Outcome(trial, load * units[seed])
        found = self._laboratory.run(list(jobs.values()))
        return {
            (w.name, load, v): [found[jobs[w.name, load, v, s].key] for s in self._plan.seeds]
            for w in workloads
            for load in loads
            for v in variants
        }

    def _trial(self, workload: Workload, variant: Variant, seed: int, budget: int, slowdown: float = 1.0) -> Trial:
        return Trial(self._plan.site, workload, variant, budget, seed, slowdown=slowdown)

    def _tune(self, workloads: Sequence[Workload], variants: Sequence[Variant]) -> None:
        """Find the budgets, for each policy without promises; with them it gets the same."""
        jobs: dict[tuple[str, str, bool], Job] = {}
        for workload in workloads:
            for variant in variants:
                plain = dataclasses.replace(variant, admission="caps")
                trial = self._trial(workload, plain, TUNING_SEED, self._plan.budgets[0])
                jobs[workload.name, variant.policy, variant.predicts_steps] = Tuning(
                    trial, self._plan.budgets, PROTECTED_GOAL
                )
        found = self._laboratory.run(list(jobs.values()))
        self._tuned |= {place: found[job.key] for place, job in jobs.items()}

    def _tuning_of(self, workload: Workload, variant: Variant) -> dict[str, Any]:
        return self._tuned[workload.name, variant.policy, variant.predicts_steps]

    def _budget(self, workload: Workload, variant: Variant) -> int:
        return int(self._tuning_of(workload, variant)["budget"])

    def _capacity_job(self, workload: Workload, variant: Variant, seed: int) -> Job:
        tuned = self._tuning_of(workload, variant)
        trial = self._trial(workload, variant, seed, int(tuned["budget"]))
        return Capacity(trial, PROTECTED_GOAL, tuned["capacity_per_s"])

    def _unit_rates(self, workload: Workload) -> Mapping[int, float]:
        """Requests per second at a load of 1, by seed."""
        tuned = self._tuning_of(workload, BASELINE)
        jobs: dict[int, Job] = {
            seed: Capacity(
                self._trial(workload, BASELINE, seed, int(tuned["budget"])), LOAD_GOAL, tuned["capacity_per_s"]
            )
            for seed in self._plan.seeds
        }
        found = self._laboratory.run(list(jobs.values()))
        return {seed: float(found[job.key]["capacity_per_s"]) for seed, job in jobs.items()}

    def _ratios(
        self, rates: Mapping[tuple[str, Variant, int], float], variant: Variant, workloads: Sequence[Workload]
    ) -> Iterable[str]:
        for baseline in (BEST_STATIC, BASELINE):
            strata = [
                [(rates[w.name, variant, s], rates[w.name, baseline, s]) for s in self._plan.seeds] for w in workloads
            ]
            yield "1" if variant == baseline else str(paired_ratio(strata))


_OUTCOME_HEADS = ("protected", "realtime", "interactive", "standard", "batch", "promises kept", "batch's step time")


def _outcome_cells(runs: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Means over the seeds; promises are those of all seeds together."""
    yield _percent(_mean([run["protected"] for run in runs]))
    for name in ("realtime", "interactive", "standard", "batch"):
        yield _percent(_offered(runs, name))
    made, kept = (sum(run[field] for run in runs) for field in ("promises", "promises_kept"))
    yield _percent(kept / made if made else None)
    yield _percent(_mean([run["step_share"].get("batch", 0.0) for run in runs]))


def _offered(runs: Sequence[dict[str, Any]], name: str) -> float | None:
    shares = [run["classes"][name]["offered_attainment"] for run in runs if name in run["classes"]]
    return _mean(shares) if shares else None


def _worst(runs: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]]) -> str:
    """The protected class that loses most against the baseline, in percentage points."""
    losses = []
    for name in ("realtime", "interactive", "standard"):
        own, other = _offered(runs, name), _offered(baseline, name)
        if own is not None and other is not None:
            losses.append((own - other, name))
    if not losses:
        return "-"
    loss, name = min(losses)
    return f"{loss * 100:+.1f} {name}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _rate(values: Iterable[float]) -> str:
    """Geometric mean."""
    logs = [math.log(value) for value in values]
    return f"{math.exp(_mean(logs)):.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _ms(seconds: float) -> str:
    return "not served" if seconds >= 1e8 else f"{seconds * 1e3:,.0f} ms"


def _table(title: str, heads: Sequence[str], rows: Rows) -> str:
    lines = [f"### {title}", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
