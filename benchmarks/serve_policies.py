"""Policies of the real server under one load, and what the simulator says of it: `python -m benchmarks.serve_policies`.

Half of the requests have prompts of 64 tokens (class interactive), half of 1,200 (class standard), all 64 tokens of
output; they arrive at random. Each policy gets a server of its own, one at a time, with the default model, and the
same requests at the same times by the seed; every rate and round has a seed of its own, so that no prompt is in a
cache. The order of the policies rotates from round to round. `--peer NAME=URL,model=NAME` puts a server in that is
started already; it must be idle while others are measured, and new, or its cache knows the prompts.

Everything is judged twice, alike for all: by 1,000 ms to the first token and 100 ms a token, and by the classes' own
targets. What servers say of themselves does not count. Then the simulator runs the same requests under the same
policy on the record that the servers have used.

Results stay in the `--results` directory; a run that was broken off goes on from there, and a complete one is only
shown again. Delete the directory to measure anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.contenders import Contender, Peer, ServedPolicy, Site
from benchmarks.load_figures import Agreement, Figures, Place, agreement_table, figures_of, measured_table
from benchmarks.paired_steps import read_processor_times
from benchmarks.predicted_load import predict_run, served_machine
from benchmarks.serve_and_bench import HEADRACE
from benchmarks.served_load import COMMON_TARGETS, MIX, ServedLoad, ServedRun, planned_alike, read_run, steps_path
from benchmarks.step_totals import fetch_step_totals
from benchmarks.way_to_client import read_server_ttfts, ways_s
from engine.errors import EngineError
from engine.processors import available_processors
from loadgen.bench import EXIT_INTERRUPTED, EXIT_NOT_RUN
from loadgen.metrics import quantiles
from offload.errors import OffloadError
from offload.fingerprint import identify_processor
from scheduler.slo import SLOClasses
from server.slo_table import load_slo_classes

POLICIES = ("fcfs+caps", "priority+caps", "edf+caps", "deadline+caps", "deadline+promise")
RATE_PER_S = 0.79
NUM_WARM_UP = 4
WARM_UP_SEED = 999_983
_ROUND_SEEDS = 100
"""Between the seeds of two rounds: more than there are rates."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Who is measured, under what."""

    contenders: tuple[Contender, ...]
    rates: tuple[float, ...]
    num_rounds: int
    num_requests: int
    seed: int
    site: Site

    def load(self, rate: float, round_index: int) -> ServedLoad:
        seed = self.seed + _ROUND_SEEDS * round_index + self.rates.index(rate)
        return ServedLoad(rate, self.num_requests, seed)

    def result(self, contender: Contender, rate: float, round_index: int) -> Path:
        return self.site.results / f"{contender.name}-{rate:g}-{round_index}.json"

    def order(self, round_index: int) -> tuple[Contender, ...]:
        """Each round begins with another."""
        first = round_index % len(self.contenders)
        return self.contenders[first:] + self.contenders[:first]

    @property
    def seconds(self) -> float:
        """About: arrivals, as long again as a tenth and 10 s for the last ones, and 12 s for each start."""
        one = sum(1.1 * self.num_requests / rate + 10.0 for rate in self.rates)
        return self.num_rounds * len(self.contenders) * (one + 12.0)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), metavar="POLICY+ADMISSION")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL[,model=NAME]")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests/s of which --multiples are taken")
    parser.add_argument("--multiples", type=float, nargs="+", default=[1.0, 2.5, 4.0])
    parser.add_argument("--requests", type=int, default=60, help="of each run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=available_processors().compute_threads)
    parser.add_argument(
        "--targets",
        choices=["own", "common"],
        default="own",
        help="what our servers aim at: their classes' own targets, or those by which all are judged",
    )
    parser.add_argument("--results", type=Path, help="directory of what was measured; none: it is not kept")
    parser.add_argument("--no-prediction", action="store_true", help="leave the simulator out")
    parser.add_argument("--quick", action="store_true", help="two policies and few requests, to see that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.policies, options.multiples = ["fcfs+caps", "deadline+promise"], [3.0]
        options.requests, options.rounds = min(options.requests, 8), 1
    return options


def make_plan(options: argparse.Namespace, results: Path) -> Plan:
    """Raises ValueError: a policy or a peer cannot be read."""
    contenders: list[Contender] = [ServedPolicy.parse(text) for text in options.policies]
    contenders += [Peer.parse(text) for text in options.peer]
    if not contenders:
        raise ValueError("nobody is to be measured: give --policies or --peer")
    classes_path = None
    if options.targets == "common":
        classes_path = results / "classes.toml"
        classes_path.write_text(common_classes(), encoding="utf-8")
    site = Site(options.model, options.threads, classes_path, results)
    rates = tuple(round(options.rate * multiple, 6) for multiple in options.multiples)
    return Plan(tuple(contenders), rates, options.rounds, options.requests, options.seed, site)


def common_classes() -> str:
    """A class file: the classes of the mix as they are, but with the common targets."""
    lines = ['default_class = "standard"']
    for c in SLOClasses():
        if c.name in {m.name for m in MIX}:
            lines += [f"[classes.{c.name}]", f"ttft_base_s = {COMMON_TARGETS.ttft_s}"]
            lines += [f"tpot_s = {COMMON_TARGETS.tpot_s}", f"protected = {str(c.protected).lower()}"]
            lines += [f'when_infeasible = "{c.when_infeasible}"', f"share = {c.share}"]
            lines += [f"queue_cap_tokens = {c.queue_cap_tokens}", f"max_wait_s = {c.max_wait_s}"]
            lines += [] if c.degrade_to is None else [f'degrade_to = "{c.degrade_to}"']
    return "\n".join(lines) + "\n"


def bench(load: ServedLoad, url: str, model: str | None, path: Path) -> None:
    """Load a server, and keep the result.

    Raises:
        RuntimeError: it cannot be reached.
        KeyboardInterrupt: the bench was interrupted.
    """
    temporary = path.with_suffix(".part")
    command = [*HEADRACE, *load.arguments(url, model, temporary)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode == EXIT_NOT_RUN or not temporary.exists():
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}")
    temporary.replace(path)


def measure(plan: Plan) -> list[str]:
    """Run what has no result yet; what to know of each server's time."""
    notes = []
    for round_index in range(plan.num_rounds):
        for contender in plan.order(round_index):
            paths = {rate: plan.result(contender, rate, round_index) for rate in plan.rates}
            if all(path.exists() for path in paths.values()):
                continue
            note = _measure_one(plan, contender, round_index, paths)
            print(note, file=sys.stderr, flush=True)
            notes.append(note)
    return notes


def _measure_one(plan: Plan, contender: Contender, round_index: int, paths: Mapping[float, Path]) -> str:
    """All rates, on one server. Returns its time, and what others computed meanwhile."""
    before, own_before_s = read_processor_times(), _own_s()
    with contender.serving(plan.site, round_index) as url:
        warm_up = ServedLoad(4.0, NUM_WARM_UP, WARM_UP_SEED + round_index)
        bench(warm_up, url, contender.model, plan.site.results / "warm-up.json")
        for rate, path in paths.items():
            load = plan.load(rate, round_index)
            if isinstance(contender, Peer):
                bench(load, url, contender.model, path)
                continue
            earlier = fetch_step_totals(url)
            bench(load, url, contender.model, path)
            fetch_step_totals(url).since(earlier).write(steps_path(path))
    after, own_after_s = read_processor_times(), _own_s()
    wall_s = after.wall_s - before.wall_s
    note = f"{contender.name}, round {round_index + 1}: {wall_s:.0f} s"
    if isinstance(contender, Peer):
        return note
    foreign_s = (after.machine_s - before.machine_s) - (own_after_s - own_before_s)
    return f"{note}, other processes took {max(0.0, foreign_s) / wall_s:.0%} of a processor"


def _own_s() -> float:
    """Processor seconds of this process and of all its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def served_rounds(plan: Plan, contender: Contender, rate: float) -> list[ServedRun]:
    """One run a round.

    Raises:
        ValueError: see `read_run`.
    """
    return [read_run(plan.result(contender, rate, index), plan.load(rate, index)) for index in range(plan.num_rounds)]


def measured(plan: Plan, classes: SLOClasses) -> dict[Place, dict[str, Figures]]:
    """By contender and rate, rates first."""
    return {
        (contender.name, rate): figures_of(served_rounds(plan, contender, rate), classes)
        for rate in plan.rates
        for contender in plan.contenders
    }


def predicted(plan: Plan, classes: SLOClasses, found: Mapping[Place, Mapping[str, Figures]]) -> Iterator[str]:
    """What the simulator says, as text.

    Raises:
        OSError, EngineError, OffloadError: there is no record that can be used.
    """
    machine = served_machine(plan.site.model, plan.site.threads)
    agreements: dict[Place, dict[str, Agreement]] = {}
    for rate in plan.rates:
        runs = {contender: served_rounds(plan, contender, rate) for contender in plan.contenders}
        for contender in plan.contenders:
            if isinstance(contender, Peer):
                continue
            rounds = []
            for index in range(plan.num_rounds):
                requests = planned_alike([served[index].traces for served in runs.values()])
                window_s = runs[contender][index].window_s
                rounds.append(predict_run(machine, contender.scheduler(), classes, requests, window_s))
            simulated = figures_of(rounds, classes)
            place = (contender.name, rate)
            agreements[place] = {name: Agreement.of(simulated[name], found[place][name]) for name in simulated}
    yield agreement_table(agreements)
    yield f"Simulated on the {machine.name}. HTTP, tokenizing and the load generator take no time in it."


def way_note(plan: Plan) -> str:
    """What the simulator leaves out, as far as it was measured."""
    ways: list[float] = []
    for contender in plan.contenders:
        if isinstance(contender, Peer):
            continue
        for index in range(plan.num_rounds):
            runs = [read_run(plan.result(contender, rate, index), plan.load(rate, index)) for rate in plan.rates]
            log = contender.request_log(plan.site, index)
            ways += ways_s([run.traces for run in runs], read_server_ttfts(log, NUM_WARM_UP))
    found = quantiles(ways)
    if found is None:
        return "The way between client and server was not measured: no request was served."
    return (
        f"Between client and server (the client's TTFT from sending less the server's from the body, which has "
        f"tokenizing in it): p50 {found.p50_s * 1e3:.1f} ms, p99 {found.p99_s * 1e3:.1f} ms, in the measured figures."
    )


def heading(plan: Plan, options: argparse.Namespace) -> str:
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    when, machine = time.strftime("%Y-%m-%d %H:%M %Z"), identify_processor().name
    mix = "; ".join(f"{c.name} {c.num_prompt_tokens}/{c.num_output_tokens}" for c in MIX)
    processors = available_processors()
    return "\n".join(
        (
            f"{when}; {machine}, {processors.num_cores} cores; load {load}",
            f"`python -m benchmarks.serve_policies {shlex.join(sys.argv[1:])}`",
            f"{options.model}, threads: {options.threads}, each rate {plan.num_rounds} x {plan.num_requests} requests, "
            f"seed {plan.seed}; prompt/output tokens: {mix}; our servers aim at the {options.targets} targets",
            "",
        )
    )


def check_results(plan: Plan) -> list[str]:
    """Runs that must not be believed."""
    return [
        f"INVALID {contender.name} at {rate:g}/s, round {index + 1}: {problem}"
        for rate in plan.rates
        for contender in plan.contenders
        for index, run in enumerate(served_rounds(plan, contender, rate))
        for problem in run.problems
    ]


def show(plan: Plan, options: argparse.Namespace) -> None:
    """Everything that was measured, and what the simulator says of it."""
    classes = load_slo_classes(None if plan.site.classes_path is None else str(plan.site.classes_path), None)
    found = measured(plan, classes)
    print(measured_table(found))
    for problem in check_results(plan):
        print(problem)
    if options.no_prediction or not any(isinstance(c, ServedPolicy) for c in plan.contenders):
        return
    print(way_note(plan), "\n")
    try:
        for text in predicted(plan, classes, found):
            print(text, flush=True)
    except (OSError, EngineError, OffloadError) as error:
        print(f"Nothing is predicted: {error}")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        results = Path(temporary) if options.results is None else options.results
        results.mkdir(parents=True, exist_ok=True)
        try:
            plan = make_plan(options, results)
        except ValueError as error:
            sys.exit(str(error))
        print(heading(plan, options), flush=True)
        print(f"about {plan.seconds / 60:.0f} minutes if all is to be measured", file=sys.stderr, flush=True)
        notes = measure(plan)
        show(plan, options)
        print("\n".join(["", *notes]))


if __name__ == "__main__":
    main()
