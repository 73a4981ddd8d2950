"""Which scheduling policy bears most: `python -m benchmarks.scheduler_policies --traces DIRECTORY --json PATH`.

Runs the scheduler that is served on a virtual clock and prints a markdown table for each experiment: capacity (E2),
overload (E3), long prompts (E4), ablations (E5) and misprediction (E12). Loads are mixes of classes with bursts, and
windows of published traces of that directory whose classes are drawn by the same shares; five seeds, the same
arrivals for every policy. What is done is kept in the JSON file: a run that was broken off goes on from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.policy_experiments import Experiments, Plan
from benchmarks.policy_jobs import Laboratory
from benchmarks.policy_trial import Site, Variant
from benchmarks.policy_workloads import HOST_MIX, MIX, LongPrompts, Workload, bursty_mix, steady_mix, trace_windows

EXPERIMENTS = {
    "E2": Experiments.capacity,
    "E3": Experiments.overload,
    "E4": Experiments.long_prompts,
    "E5": Experiments.ablations,
    "E12": Experiments.misprediction,
}
TRACES = {
    "code": ("azure_llm_2023_code.csv", 1200, False),
    "conversation": ("azure_llm_2023_conv.csv", 1000, False),
    "mooncake": ("mooncake_fast25_conversation_head.jsonl", 400, True),
}
"""Name of the file, requests of a window, and whether its clock is coarse."""
POLICIES = ("fcfs", "priority", "edf", "deadline")
LONG_PROMPT_TOKENS = 64_000
MAX_MODEL_LEN = 131_072
"""Longer than llama-3-8b reads: its shape, as later models of its size have it, so that no trace is cut."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("experiments", nargs="*", default=list(EXPERIMENTS), metavar="E", help=" ".join(EXPERIMENTS))
    parser.add_argument("--traces", type=Path, help="directory of published traces; without it, drawn mixes alone")
    parser.add_argument("--workloads", nargs="+", help="only these: bursts, poisson, " + ", ".join(TRACES))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--admission", nargs="+", default=["caps", "promise"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0, 1.25, 1.5])
    parser.add_argument("--host", action="store_true", help="this machine by its record, in place of an H100")
    parser.add_argument("--json", type=Path, help="keep results in this file, and do not run again what it holds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny numbers, to see that it runs")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.experiments) - set(EXPERIMENTS)):
        parser.error(f"no experiment {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    return options


def make_plan(options: argparse.Namespace) -> Plan:
    """Raises TraceError: a trace cannot be read."""
    mix, scale = (HOST_MIX, 2) if options.host else (MIX, 1)
    if options.quick:
        mix, scale = HOST_MIX, 30
    workloads: list[Workload] = [bursty_mix(mix, 1200 // scale), steady_mix(mix, 1200 // scale)]
    if options.traces is not None:
        workloads += [
            trace_windows(name, options.traces / file, num_requests // scale, has_coarse_clock=is_coarse)
            for name, (file, num_requests, is_coarse) in TRACES.items()
        ]
    names = options.workloads or [w.name for w in workloads if w.name != "poisson"]
    variants = tuple(
        Variant(policy, admission)
        for policy in options.policies
        for admission in options.admission
        if (policy, admission) != ("fcfs", "promise")  # which promises nothing
    )
    ablations = [*variants, *(Variant(policy, predicts_steps=False) for policy in options.policies if policy != "fcfs")]
    site = Site(None, "smollm2-135m", 64) if options.host else Site("h100", "llama-3-8b", 256, MAX_MODEL_LEN)
    if options.quick:
        site = Site("rtx-4090", "llama-3-8b", 4)  # so slow, and with so few seats, that a few requests are too many
    return Plan(
        site=site,
        workloads=tuple(w for w in workloads if w.name in names),
        injected=LongPrompts(workloads[1], 4000 if options.host or options.quick else LONG_PROMPT_TOKENS),
        variants=variants,
        ablations=tuple(ablations),
        seeds=tuple(range(1 if options.quick else options.seeds)),
        budgets=(512, 1024) if options.quick else (512, 1024, 2048, 256),
        loads=(1.5,) if options.quick else tuple(options.loads),
        slowdowns=(1.25,) if options.quick else (0.8, 1.0, 1.25),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    experiments = Experiments(make_plan(options), Laboratory(options.json, options.processes))
    for name in options.experiments:
        print(EXPERIMENTS[name](experiments), flush=True)


if __name__ == "__main__":
    main()
