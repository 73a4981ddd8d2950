"""One load of two classes for `headrace bench`, and the requests that its JSON tells of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.step_totals import StepTotals
from loadgen.targets import Targets
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest

COMMON_TARGETS = Targets(ttft_s=1.0, tpot_s=0.1)
"""Of both classes alike: those that the mix's measurements of other servers have."""
_NEVER_STALLED_S = 86_400.0
"""Given to the bench so that no server adds a limit of its own to what it is judged by."""
_ROUNDED_S = 1e-6
_ENDS = {
    "refused": TraceEnd.REFUSED,
    "expired": TraceEnd.EXPIRED,
    "failed": TraceEnd.FAILED,
    "timed_out": TraceEnd.TIMED_OUT,
}


@dataclasses.dataclass(frozen=True, slots=True)
class LoadClass:
    """One half of the mix."""

    name: str
    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def option(self) -> str:
        return f"{self.name}:0.5,prompt={self.num_prompt_tokens},output={self.num_output_tokens}"

    @property
    def targets(self) -> str:
        limits_s = {
            "ttft_ms": COMMON_TARGETS.ttft_s,
            "tpot_ms": COMMON_TARGETS.tpot_s,
            "max_stall_ms": _NEVER_STALLED_S,
        }
        return f"{self.name}:" + ",".join(f"{key}={value * 1e3:g}" for key, value in limits_s.items() if value)


MIX = (LoadClass("interactive", 64, 64), LoadClass("standard", 1200, 64))
"""Half short prompts, half long ones, 64 tokens of output each."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedLoad:
    """Requests of the mix at random times (Poisson). Equal loads send equal requests at equal times to anyone."""

    rate_per_s: float
    num_requests: int
    seed: int

    def arguments(self, url: str, model: str | None, json_path: Path) -> list[str]:
        """Of `headrace bench`."""
        arguments = ["bench", url, "--api", "completions", "--ignore-eos", "--temperature", "0"]
        arguments += ["--rate", f"{self.rate_per_s:g}", "--requests", str(self.num_requests), "--seed", str(self.seed)]
        for load_class in MIX:
            arguments += ["--class", load_class.option, "--slo", load_class.targets]
        arguments += [] if model is None else ["--model", model]
        return [*arguments, "--no-progress", "--save-requests", "--json", str(json_path)]

    def check(self, config: Mapping[str, Any]) -> None:
        """Raises ValueError: a result's configuration is of another load."""
        wanted = {
            "rate": float(f"{self.rate_per_s:g}"),
            "requests": self.num_requests,
            "seed": self.seed,
            "classes": [c.option for c in MIX],
            "slo": [c.targets for c in MIX],
        }
        for key, value in wanted.items():
            if config[key] != value:
                raise ValueError(f"a result has {key} {config[key]!r}, wanted is {value!r}: give another --results")


@dataclasses.dataclass(frozen=True, slots=True)
class ServedRun:
    """What came of one load."""

    traces: tuple[RequestTrace, ...]
    """Times are seconds from the start of the schedule."""
    window_s: float
    """Until the last request was due."""
    problems: tuple[str, ...] = ()
    """Why its numbers must not be believed; empty: they may."""
    met_by_class: Mapping[str, int] | None = None
    """As the bench counted; None: nobody has."""
    steps: StepTotals | None = None
    """None: not known, as of a peer."""


def steps_path(result: Path) -> Path:
    """Where the totals of a result's steps lie, if they are known."""
    return result.with_suffix(".steps.json")


def read_run(path: Path, load: ServedLoad) -> ServedRun:
    """A result of `headrace bench --save-requests`.

    Raises:
        ValueError: it is of another load, or was interrupted.
        OSError: it cannot be read.
    """
    body = json.loads(path.read_text(encoding="utf-8"))
    load.check(body["config"])
    if body["interrupted"]:
        raise ValueError(f"{path} was interrupted: delete it")
    return ServedRun(
        tuple(read_trace(request) for request in body["requests"]),
        body["arrival_window_s"],
        tuple(body["invalid_reasons"]),
        {name: summary["met"] for name, summary in body["classes"].items()},
        StepTotals.read(steps_path(path)) if steps_path(path).exists() else None,
    )


def read_trace(saved: Mapping[str, Any]) -> RequestTrace:
    """A saved request, without what the server told of its targets."""
    lengths = {c.name: c for c in MIX}[saved["slo_class"]]
    planned = PlannedRequest(
        saved["index"],
        saved["slo_class"],
        saved["intended_s"],
        "",
        lengths.num_prompt_tokens,
        lengths.num_output_tokens,
    )
    return RequestTrace(
        planned,
        saved["intended_s"],
        saved["sent_s"],
        chunks=[Chunk(time_s, num_tokens) for time_s, num_tokens in saved["chunks"]],
        finished_s=saved["finished_s"],
        end=_ENDS.get(saved["outcome"], TraceEnd.COMPLETED),
        error=saved["error"],
        num_prompt_tokens=saved["prompt_tokens"],
        num_cached_tokens=saved["cached_prompt_tokens"],
        usage_output_tokens=saved["output_tokens"],
    )


def _is_same(one: RequestTrace, other: RequestTrace) -> bool:
    """Saved times are rounded."""
    is_near = abs(one.intended_s - other.intended_s) < 2 * _ROUNDED_S
    return is_near and (one.planned.index, one.planned.slo_class) == (other.planned.index, other.planned.slo_class)


def planned_alike(runs: Sequence[Sequence[RequestTrace]]) -> tuple[PlannedRequest, ...]:
    """The requests that all of these runs sent, with lengths as a server counted them.

    Who was refused by one server may have been counted by another.

    Raises:
        ValueError: the runs sent different requests.
    """
    first = runs[0]
    lengths: dict[int, int] = {}
    for run in runs:
        if len(run) != len(first) or not all(map(_is_same, run, first)):
            raise ValueError("runs that should have sent the same requests at the same times have not")
        for trace in run:
            if trace.num_prompt_tokens:
                lengths.setdefault(trace.planned.index, trace.num_prompt_tokens)
    return tuple(
        dataclasses.replace(p, num_prompt_tokens=lengths.get(p.index, p.num_prompt_tokens))
        for p in (trace.planned for trace in first)
    )
