"""One simulated run of one policy, and what became of its requests."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from benchmarks.policy_workloads import Workload
from engine.config import EngineConfig
from engine.messages import AddGroup
from engine.simulation.capacity import busy_rate_per_s
from engine.simulation.machine import SimulatedMachine, simulated_gpu, simulated_host
from engine.simulation.simulator import Simulator
from engine.simulation.step_times import StepVariation
from engine.simulation.traffic import TrafficClass
from scheduler.config import SchedulerConfig
from scheduler.output import SchedulerOutput
from scheduler.slo import Outcome, SLOClasses
from server.plan_command import find_model
from server.request_record import RequestRecord
from server.simulated_requests import Observation, SimulatedRun
from server.simulation_report import by_class, protected_share, quantile
from server.slo_verdict import judge, measure, promise_kept


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A policy with what else sets it apart."""

    policy: str
    admission: str = "caps"
    predicts_steps: bool = True

    @property
    def name(self) -> str:
        return f"{self.policy}+{self.admission}" + ("" if self.predicts_steps else ", no time budget")

    def config(self, budget: int, max_num_seqs: int) -> SchedulerConfig:
        values: dict[str, Any] = {"scheduler_policy": self.policy, "admission": self.admission}
        return SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=min(max_num_seqs, budget), max_queued_requests=8192, **values
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """The machine and the model of an experiment."""

    gpu: str | None
    """Of the table; None: this machine, by its record."""
    model: str
    max_num_seqs: int
    max_model_len: int | None = None
    """Above the model's own: its shape with room for longer requests."""

    def machine(self, scheduler: SchedulerConfig) -> SimulatedMachine:
        """Raises SimulationError, PlanError: see `simulated_gpu` and `simulated_host`."""
        place, engine = find_model(self.model), EngineConfig(model_path="")
        if self.gpu is None:
            machine = simulated_host(place, engine, scheduler)
        else:
            machine = simulated_gpu(self.gpu, place, engine, scheduler)
        longest = machine.max_model_len if self.max_model_len is None else self.max_model_len
        return dataclasses.replace(machine, max_model_len=longest)


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """All that a run depends on, but its rate."""

    site: Site
    workload: Workload
    variant: Variant
    budget: int
    """`max_num_batched_tokens`."""
    seed: int
    noise: float = 1.05
    slowdown: float = 1.0

    @property
    def key(self) -> str:
        """Equal for trials that give equal results."""
        site = f"{self.site.gpu or 'this machine'} {self.site.model} {self.site.max_num_seqs} {self.site.max_model_len}"
        run = f"{self.variant.name}|{self.budget}|{self.seed}|{self.noise:g}|{self.slowdown:g}"
        return f"{site}|{self.workload.name} x {self.workload.num_requests}|{run}"

    def guess_per_s(self) -> float:
        """Half of the rate at which every step would be full: where to begin a search."""
        config = self.variant.config(self.budget, self.site.max_num_seqs)
        machine = self.site.machine(config)
        requests = self.workload.traffic(1.0, self.seed, machine.max_model_len).requests
        prompt = sum(len(request.prompts[0]) for request in requests) // len(requests)
        output = sum(request.sampling.max_tokens for request in requests) // len(requests)
        alike = TrafficClass("alike", 1.0, (prompt, prompt), (max(output, 1), max(output, 1)))
        return busy_rate_per_s(machine, config, (alike,)) / 2

    def attainment(self, rate_per_s: float, goal: float) -> float:
        """Of the protected classes as offered; a run that cannot reach the goal any more is broken off, and 0."""
        prepared = _Prepared(self, rate_per_s, counts_shares=False)
        found = _Misses(prepared.requests, prepared.classes, goal)
        for turn in prepared.simulator.run(prepared.requests):
            found.count(prepared.observation.take_in(turn))
            if found.are_too_many:
                return 0.0
            if not found.num_left:
                break
        return found.attainment

    def outcome(self, rate_per_s: float) -> dict[str, Any]:
        """What became of all requests, for JSON."""
        prepared = _Prepared(self, rate_per_s, counts_shares=True)
        for turn in prepared.simulator.run(prepared.requests):
            prepared.observation.take_in(turn)
        run = prepared.observation.run()
        return {"rate_per_s": rate_per_s, **_values(run, prepared.classes), "step_share": prepared.shares.values()}


class _Prepared:
    """A simulation that has not begun."""

    def __init__(self, trial: Trial, rate_per_s: float, *, counts_shares: bool) -> None:
        config = trial.variant.config(trial.budget, trial.site.max_num_seqs)
        machine = trial.site.machine(config)
        self.classes = SLOClasses()
        self.requests = trial.workload.traffic(rate_per_s, trial.seed, machine.max_model_len).requests
        self.observation = Observation(self.requests)
        self.shares = StepShares(self.requests)
        self.simulator = Simulator(
            machine,
            config,
            self.classes,
            StepVariation(trial.noise, trial.slowdown, trial.seed),
            predicts_steps=trial.variant.predicts_steps,
            on_step=self.shares.observe if counts_shares else None,
        )


class _Misses:
    """Of protected requests, as they happen; of all, where none is protected."""

    def __init__(self, requests: tuple[AddGroup, ...], classes: SLOClasses, goal: float) -> None:
        self._classes = classes
        protected = {c.name for c in classes if c.protected}
        self._counted = protected & {request.slo.requested for request in requests} or set(classes.names)
        self._num_requests = self.num_left = sum(request.slo.requested in self._counted for request in requests)
        self._num_allowed = (1.0 - goal) * self._num_requests
        self._num_missed = 0

    def count(self, ended: list[RequestRecord]) -> None:
        """Requests that are over."""
        for record in ended:
            if record.slo.requested in self._counted:
                self.num_left -= 1
                self._num_missed += judge(record, self._classes) is not Outcome.MET

    @property
    def are_too_many(self) -> bool:
        """The goal is out of reach."""
        return self._num_missed > self._num_allowed

    @property
    def attainment(self) -> float:
        return 1.0 - self._num_missed / self._num_requests


class StepShares:
    """Step time by class while requests arrive: a step's time is split by rows."""

    def __init__(self, requests: tuple[AddGroup, ...]) -> None:
        self._class_of = {request.group_id: request.slo.requested for request in requests}
        self._last_arrival_s = requests[-1].arrival_s
        self._seconds: dict[str, float] = defaultdict(float)

    def observe(self, output: SchedulerOutput, duration_s: float) -> None:
        """A step of so many seconds."""
        if output.now_s > self._last_arrival_s:
            return
        per_row_s = duration_s / output.num_tokens if output.num_tokens else 0.0
        for part in output.scheduled:
            self._seconds[self._class_of[part.request_id.partition("/")[0]]] += per_row_s * part.num_tokens

    def values(self) -> Mapping[str, float]:
        """0..1 by class."""
        total = sum(self._seconds.values())
        return {name: seconds / total for name, seconds in sorted(self._seconds.items())}


def _values(run: SimulatedRun, classes: SLOClasses) -> dict[str, Any]:
    guaranteed = {c.name for c in classes if c.when_infeasible != "queue"}
    promised = [promise_kept(record, classes) for record in run.records if record.granted in guaranteed]
    ttfts = [_ttft_s(record, classes) for record in run.records]
    short = sorted(ttft for ttft in ttfts if ttft is not None)
    return {
        "duration_s": run.duration_s,
        "preemptions": run.num_preemptions,
        "protected": protected_share(run.records, classes),
        "promises": len(promised),
        "promises_kept": sum(kept is True for kept in promised),
        "classes": {name: found.values() for name, found in by_class(run.records, classes).items()},
        "realtime_ttft_p99_s": quantile(short, 0.99),
    }


def _ttft_s(record: RequestRecord, classes: SLOClasses) -> float | None:
    """Of a request of the highest class, None of others; one that was not served waited for ever."""
    if classes.get(record.slo.requested).rank:
        return None
    return measure(record).ttft_s if record.choices[0].first_token_s is not None else 1e9
