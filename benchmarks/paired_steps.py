"""How timings are taken and when they count: bursts of baseline and subject in turn, foreign processor time, verdicts.

A repetition is several rounds, each a burst of the baseline and a burst of every subject, so that whatever the machine
does hits all alike. It counts where other processes took at most 5 % of its wall time and the baseline's median stayed
within 5 %: between the halves of a repetition, and between repetitions.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from offload.fingerprint import identify_processor
from offload.measurements import median, p95
from offload.step_transfers import StepTransfers

MAX_FOREIGN_SHARE = 0.05
MAX_DRIFT = 0.05
MIN_STEPS = 20
MIN_REPETITIONS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Since some moment in the past, seconds."""

    wall_s: float
    machine_s: float
    """Of all processors together, not idle."""
    own_s: float
    """Of all threads of this process."""

    def foreign_share(self, before: ProcessorTimes) -> float:
        """Of the wall time since `before`: what processors did for others, as a share of one processor."""
        wall_s = self.wall_s - before.wall_s
        if wall_s <= 0:
            return 0.0
        foreign_s = (self.machine_s - before.machine_s) - (self.own_s - before.own_s)
        return max(0.0, foreign_s) / wall_s


def parse_machine_s(stat: str, ticks_per_s: int) -> float:
    """Busy seconds of all processors from the text of /proc/stat; stolen time counts: someone else computed.

    Raises:
        ValueError: it has no line of all processors.
    """
    for line in stat.splitlines():
        name, *values = line.split()
        if name == "cpu":
            user, nice, system, _idle, _wait, interrupts, soft_interrupts, stolen = map(int, values[:8])
            return (user + nice + system + interrupts + soft_interrupts + stolen) / ticks_per_s
    raise ValueError("no line `cpu` in /proc/stat: foreign processor time is not known")


def parse_own_s(stat: str, ticks_per_s: int) -> float:
    """User and system seconds of a process from the text of its /proc/self/stat; its name may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks_per_s


def read_processor_times() -> ProcessorTimes:
    """Now, by Linux."""
    ticks = os.sysconf("SC_CLK_TCK")
    machine_s = parse_machine_s(Path("/proc/stat").read_text(), ticks)
    own_s = parse_own_s(Path("/proc/self/stat").read_text(), ticks)
    return ProcessorTimes(time.monotonic(), machine_s, own_s)


@dataclasses.dataclass(frozen=True, slots=True)
class StepSample:
    """One step."""

    step_s: float
    transfers: StepTransfers = dataclasses.field(default_factory=StepTransfers)


Burst = Callable[[int], Sequence[StepSample]]
"""Runs that many steps one after the other in their steady state, and nothing in the background afterwards."""


@dataclasses.dataclass(frozen=True, slots=True)
class Repetition:
    """Paired samples of one subject."""

    baseline: tuple[StepSample, ...]
    subject: tuple[StepSample, ...]
    foreign_share: float

    @property
    def baseline_s(self) -> float:
        return median([sample.step_s for sample in self.baseline])

    @property
    def subject_s(self) -> float:
        return median([sample.step_s for sample in self.subject])

    @property
    def half_drift(self) -> float:
        """Of the baseline's median, from the first half of the repetition to the second."""
        half = len(self.baseline) // 2
        if not half:
            return 0.0
        times_s = [sample.step_s for sample in self.baseline]
        return drift([median(times_s[:half]), median(times_s[half:])])


def drift(values: Sequence[float]) -> float:
    """(largest - smallest) / smallest."""
    return max(values) / min(values) - 1.0


def foreign_reasons(foreign_share: float) -> list[str]:
    """Why a run in which other processes took that share of its wall time does not count; empty: it does."""
    if foreign_share <= MAX_FOREIGN_SHARE:
        return []
    return [f"other processes took {foreign_share:.0%} of the wall time (limit {MAX_FOREIGN_SHARE:.0%})"]


@dataclasses.dataclass(frozen=True, slots=True)
class PairedResult:
    """All repetitions of one subject."""

    repetitions: tuple[Repetition, ...]

    @property
    def baseline_s(self) -> float:
        return median([each.baseline_s for each in self.repetitions])

    @property
    def subject_s(self) -> float:
        """Median of the repetitions' medians."""
        return median([each.subject_s for each in self.repetitions])

    @property
    def subject_p95_s(self) -> float:
        return p95([sample.step_s for each in self.repetitions for sample in each.subject])

    @property
    def ratio(self) -> float:
        """Subject over baseline: the median of each repetition's ratio."""
        return median([each.subject_s / each.baseline_s for each in self.repetitions])

    def share_within(self, factor: float) -> float:
        """Of the subject's steps that take at most `factor` times the baseline's median of their repetition."""
        met = [s.step_s <= factor * each.baseline_s for each in self.repetitions for s in each.subject]
        return sum(met) / len(met)

    def transfers(self, name: str) -> float:
        """Median over all steps of a field of `StepTransfers`."""
        return median([getattr(s.transfers, name) for each in self.repetitions for s in each.subject])

    def invalid_reasons(self, *, needs_steps: bool = True) -> list[str]:
        """Why these numbers do not count; empty: they do.

        Args:
            needs_steps: 20 steps and three repetitions are wanted.
        """
        reasons = foreign_reasons(max(each.foreign_share for each in self.repetitions))
        baselines_s = [each.baseline_s for each in self.repetitions]
        worst = max([drift(baselines_s), *(each.half_drift for each in self.repetitions)])
        if worst > MAX_DRIFT:
            reasons.append(f"the baseline drifted by {worst:.1%} (limit {MAX_DRIFT:.0%})")
        if needs_steps:
            fewest = min(len(each.subject) for each in self.repetitions)
            if fewest < MIN_STEPS:
                reasons.append(f"{fewest} steps a repetition, at least {MIN_STEPS} are needed")
            if len(self.repetitions) < MIN_REPETITIONS:
                reasons.append(f"{len(self.repetitions)} repetitions, {MIN_REPETITIONS} are needed")
        return reasons


@dataclasses.dataclass(frozen=True, slots=True)
class PairPlan:
    """How much is measured."""

    num_repetitions: int = MIN_REPETITIONS
    num_rounds: int = 2
    num_steps: int = 10
    """Of a burst: `num_rounds` of them a repetition."""

    @property
    def is_quick(self) -> bool:
        """Fewer repetitions than the rule asks for: said with the verdict."""
        return self.num_repetitions < MIN_REPETITIONS


def measure_repetition(baseline: Burst, subjects: Sequence[Burst], plan: PairPlan) -> list[Repetition]:
    """One repetition of every subject, all beside the same bursts of the baseline."""
    before = read_processor_times()
    base: list[StepSample] = []
    taken: list[list[StepSample]] = [[] for _ in subjects]
    for _ in range(plan.num_rounds):
        base += baseline(plan.num_steps)
        for samples, subject in zip(taken, subjects, strict=True):
            samples += subject(plan.num_steps)
    foreign = read_processor_times().foreign_share(before)
    return [Repetition(tuple(base), tuple(samples), foreign) for samples in taken]


class Verdict(enum.Enum):
    HOLDS = "holds"
    FAILS = "does not hold"
    INVALID = "invalid run"


@dataclasses.dataclass(frozen=True, slots=True)
class Criterion:
    """One sentence that a run confirms or not."""

    name: str
    text: str
    holds: bool
    detail: str
    reasons: tuple[str, ...] = ()
    """Why the run does not count."""

    @property
    def verdict(self) -> Verdict:
        if self.reasons:
            return Verdict.INVALID
        return Verdict.HOLDS if self.holds else Verdict.FAILS

    def line(self) -> str:
        """For the end of a table. Of an invalid run the numbers are told all the same."""
        text = f"{self.name}: {self.verdict.value}: {self.text}. {self.detail}"
        if not self.reasons:
            return text
        would = Verdict.HOLDS if self.holds else Verdict.FAILS
        return f"{text} (by these numbers it {would.value}; {'; '.join(self.reasons)})"


def judge(
    name: str, text: str, holds: bool, detail: str, results: Iterable[PairedResult], *, is_quick: bool
) -> Criterion:
    """A criterion over several results: each reason of any of them makes it an invalid run."""
    worst: dict[str, str] = {}
    for result in results:
        for reason in result.invalid_reasons(needs_steps=not is_quick):
            kind = "".join(char for char in reason if not char.isdigit())
            worst[kind] = max(worst.get(kind, reason), reason, key=_first_number)
    note = " Quick: one repetition instead of three." if is_quick else ""
    return Criterion(name, text, holds, detail + note, tuple(worst.values()))


def _first_number(text: str) -> float:
    return float(next(word.rstrip("%") for word in text.split() if word[0].isdigit()))


def heading(description: str) -> str:
    """Machine, time and command."""
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    return (
        f"{description}\n{identify_processor().name}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}, {time.strftime('%d %B %Y %H:%M')}\n$ {command}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that all of these benchmarks have."""
    parser.add_argument("--model", default=None, help="a path or alias; the default model, if absent")
    parser.add_argument("--dtype", default="bfloat16", help="as of `headrace serve`")
    parser.add_argument("--quick", action="store_true", help="a few points, one repetition: under a minute")
    parser.add_argument("--repetitions", type=int, default=None, help="of every point; 3, and 1 with --quick")


def pair_plan(arguments: argparse.Namespace) -> PairPlan:
    """What the arguments ask for."""
    return PairPlan(num_repetitions=arguments.repetitions or (1 if arguments.quick else MIN_REPETITIONS))
