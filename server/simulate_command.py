"""`headrace simulate`: who would be served in time, by the scheduler that is served, on a virtual clock."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.config import EngineConfig
from engine.simulation.arrivals import STEADY, ArrivalPattern
from engine.simulation.capacity import CAPACITY_GOAL, busy_rate_per_s, find_capacity
from engine.simulation.config import DEFAULT_LOAD, SimulateConfig
from engine.simulation.machine import SimulatedMachine, simulated_gpu, simulated_host
from engine.simulation.replayed_load import ReplayedLoad
from engine.simulation.simulation_error import SimulationError
from engine.simulation.simulator import Simulator
from engine.simulation.step_times import StepVariation
from engine.simulation.traffic import Traffic, TrafficClass, draw_traffic
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.plan_command import find_model
from server.simulated_requests import SimulatedRun, observe
from server.simulation_report import attainment, by_class, counted_for_capacity, protected_share, worst_class
from server.simulation_table import show

STDOUT = "-"
MAX_TAIL = 10.0
"""A capacity is none if what counts for it takes so many times as long to serve as to arrive."""


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """All that a simulation depends on, the rate and the policy apart."""

    machine: SimulatedMachine
    scheduler: SchedulerConfig
    classes: SLOClasses
    mix: tuple[TrafficClass, ...]
    num_requests: int
    seed: int
    replayed: ReplayedLoad | None = None
    """A trace in place of a drawn load."""
    pattern: ArrivalPattern = STEADY
    """Of a drawn load."""
    cancelled_share: float = 0.0
    noise: float = 1.0
    """95th percentile of a step's time over its median."""

    def traffic(self, rate_per_s: float) -> Traffic:
        """The same requests at every rate.

        Raises:
            SimulationError: the model reads too little for any.
        """
        longest = self.machine.max_model_len
        if self.replayed is not None:
            traffic = self.replayed.traffic(self.mix, rate_per_s, self.seed, longest)
        else:
            traffic = draw_traffic(self.mix, self.num_requests, rate_per_s, self.seed, longest, self.pattern)
        return traffic.with_cancellations(self.cancelled_share, self.seed) if self.cancelled_share else traffic

    def run(self, rate_per_s: float) -> SimulatedRun:
        """Raises SimulationError: see `traffic`."""
        traffic = self.traffic(rate_per_s)
        variation = StepVariation(self.noise, seed=self.seed)
        simulator = Simulator(self.machine, self.scheduler, self.classes, variation)
        return observe(traffic.requests, simulator.run(traffic.requests, traffic.cancellations))

    def capacity_per_s(self) -> float:
        """Of the policy `priority` that promises nothing, whichever this one is.

        Raises:
            SimulationError: there is none.
        """
        scheduler = dataclasses.replace(self.scheduler, scheduler_policy="priority", admission="caps")
        static = dataclasses.replace(self, scheduler=scheduler)
        mix = self.mix if self.replayed is None else self.replayed.shape(self.mix)
        start = busy_rate_per_s(self.machine, self.scheduler, mix)
        classes = self.classes

        def share(rate_per_s: float) -> float:
            return protected_share(static.run(rate_per_s).records, classes)

        def worst(rate_per_s: float) -> str:
            return worst_class(static.run(rate_per_s).records, classes)

        capacity = find_capacity(share, start, explain=worst)
        _check_capacity(capacity, static.run(capacity), classes)
        return capacity


def run_simulate(
    config: SimulateConfig,
    name: str,
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    classes: SLOClasses,
    mix: tuple[TrafficClass, ...],
    out: Console,
    replayed: ReplayedLoad | None = None,
) -> None:
    """Simulate, show, and write the JSON if it is wanted.

    Args:
        replayed: a trace in place of a drawn load.

    Raises:
        SimulationError: the machine, the model or a class is not known, or a file cannot be written.
        PlanError: there is no record of the model on this machine, or no model of that name.
    """
    _check_classes(mix, classes)
    _check_trace(replayed, classes)
    place = find_model(name)
    if config.gpu is None:
        machine = simulated_host(place, engine, scheduler, config.streamed_layers)
    else:
        machine = simulated_gpu(config.gpu, place, engine, scheduler, config.streamed_layers)
    experiment = Experiment(
        machine,
        scheduler,
        classes,
        mix,
        config.requests,
        config.seed,
        replayed,
        ArrivalPattern(config.cv, config.burst),
        config.cancel,
        config.noise,
    )
    own_rate = None if replayed is None or config.load is not None else replayed.rate_per_s
    fixed = config.rate if config.rate is not None else own_rate
    capacity = None if fixed is not None else experiment.capacity_per_s()
    rate = fixed if capacity is None else capacity * (DEFAULT_LOAD if config.load is None else config.load)
    assert rate is not None
    run = experiment.run(rate)
    values = {
        "model": place.name,
        **_heading(experiment, run, rate, capacity),
        "trace": config.trace_path,
        "classes_file": config.classes_path,
        "arrivals_s": run.records[-1].arrival_s,
        "duration_s": run.duration_s,
        "turns": run.num_turns,
        "steps": run.num_steps,
        "steps_limited": dict(run.steps_limited),
        "preemptions": run.num_preemptions,
        "overall": attainment(run.records, classes).values(),
        "classes": {name: found.values() for name, found in by_class(run.records, classes).items()},
    }
    show(values, run, classes, out)
    if config.json_path == STDOUT:
        sys.stdout.write(_json(values))
        sys.stdout.flush()
    elif config.json_path is not None:
        _write(Path(config.json_path), values)


def _check_capacity(capacity: float, run: SimulatedRun, classes: SLOClasses) -> None:
    """Raises SimulationError: all of the requests were there before a queue could grow late."""
    counted = counted_for_capacity(run.records, classes)
    arrivals_s = run.records[-1].arrival_s
    served_s = max(record.finished_s or 0.0 for record in counted)
    if served_s > MAX_TAIL * arrivals_s:
        raise SimulationError(
            f"--requests {len(run.records)} are too few to find a capacity: even where all of them come within "
            f"{arrivals_s:.2g} s ({capacity:.4g}/s) enough are in time, though serving them takes {served_s:.2g} s. "
            "Raise --requests, or give --rate"
        )


def _check_classes(mix: tuple[TrafficClass, ...], classes: SLOClasses) -> None:
    for c in mix:
        if c.name not in classes.names:
            raise SimulationError(f"--mix names class {c.name!r}; the known ones are {', '.join(classes.names)}")


def _check_trace(replayed: ReplayedLoad | None, classes: SLOClasses) -> None:
    named = set() if replayed is None else {row.slo_class for row in replayed.seen} - {None}
    if unknown := sorted(str(name) for name in named - set(classes.names)):
        raise SimulationError(f"the trace names class {unknown[0]!r}; the known ones are {', '.join(classes.names)}")


def _heading(experiment: Experiment, run: SimulatedRun, rate: float, capacity: float | None) -> dict[str, Any]:
    machine = experiment.machine
    return {
        "machine": machine.name,
        "policy": experiment.scheduler.scheduler_policy,
        "admission": "promise" if run.makes_promises else "caps",
        "seed": experiment.seed,
        "mix": [
            {"class": c.name, "share": c.share, "prompt_tokens": c.prompt_tokens, "output_tokens": c.output_tokens}
            for c in experiment.mix
        ],
        "noise": experiment.noise,
        "cv": experiment.pattern.cv,
        "burst": experiment.pattern.burst,
        "cancel": experiment.cancelled_share,
        "streamed_layers": machine.num_streamed_layers,
        "rate_per_s": rate,
        "capacity_per_s": capacity,
        "capacity_goal": CAPACITY_GOAL,
        "load": None if capacity is None else rate / capacity,
        "max_model_len": machine.max_model_len,
        "kv_blocks": machine.num_blocks,
        "clipped": experiment.traffic(rate).num_clipped,
    }


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"


def _write(path: Path, values: dict[str, Any]) -> None:
    try:
        path.write_text(_json(values), encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"--json {path}: {error.strerror}; name a file in a directory that exists") from error
