"""Who arrives in an experiment on policies: drawn mixes, windows of a trace, and long prompts put between."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Protocol

from engine.simulation.arrivals import STEADY, ArrivalPattern
from engine.simulation.replayed_load import ReplayedLoad, SeenRequest
from engine.simulation.traffic import Traffic, TrafficClass, draw_traffic, make_request
from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace

MIX = (
    TrafficClass("realtime", 45.0, (100, 1000), (10, 60)),
    TrafficClass("interactive", 25.0, (500, 4000), (25, 150)),
    TrafficClass("standard", 15.0, (1000, 12000), (50, 250)),
    TrafficClass("batch", 15.0, (2000, 16000), (50, 300)),
)
"""Short prompts that are urgent, long ones that are not; so long that an accelerator is busy for minutes."""
HOST_MIX = (
    TrafficClass("realtime", 45.0, (6, 50), (3, 15)),
    TrafficClass("interactive", 25.0, (25, 250), (6, 40)),
    TrafficClass("standard", 15.0, (60, 500), (12, 50)),
    TrafficClass("batch", 15.0, (125, 750), (12, 60)),
)
"""The same for a processor: an eighth of the tokens."""


class Workload(Protocol):
    """Equal seeds give the same requests to every policy at every rate."""

    @property
    def name(self) -> str: ...

    @property
    def num_requests(self) -> int: ...

    def traffic(self, rate_per_s: float, seed: int, max_model_len: int) -> Traffic: ...


@dataclasses.dataclass(frozen=True, slots=True)
class MixedLoad:
    """Classes and lengths drawn."""

    name: str
    mix: tuple[TrafficClass, ...]
    pattern: ArrivalPattern
    num_requests: int

    def traffic(self, rate_per_s: float, seed: int, max_model_len: int) -> Traffic:
        return draw_traffic(self.mix, self.num_requests, rate_per_s, seed, max_model_len, self.pattern)


@dataclasses.dataclass(frozen=True, slots=True)
class TraceWindows:
    """A window of a trace by the seed, at a rate; classes drawn by the shares of a mix."""

    name: str
    rows: tuple[SeenRequest, ...]
    mix: tuple[TrafficClass, ...]
    num_requests: int

    def traffic(self, rate_per_s: float, seed: int, max_model_len: int) -> Traffic:
        start = random.Random(seed).randrange(max(1, len(self.rows) - self.num_requests + 1))
        window = ReplayedLoad(self.rows[start : start + self.num_requests])
        return window.traffic(self.mix, rate_per_s, seed, max_model_len)


@dataclasses.dataclass(frozen=True, slots=True)
class LongPrompts:
    """Another workload, and one long prompt every so many seconds."""

    base: Workload
    num_prompt_tokens: int
    period_s: float = 30.0
    class_name: str = "standard"
    num_output_tokens: int = 100

    @property
    def name(self) -> str:
        return f"{self.base.name} and a prompt of {self.num_prompt_tokens} each {self.period_s:g} s"

    @property
    def num_requests(self) -> int:
        return self.base.num_requests

    def traffic(self, rate_per_s: float, seed: int, max_model_len: int) -> Traffic:
        found = self.base.traffic(rate_per_s, seed, max_model_len)
        num_long = int(found.requests[-1].arrival_s / self.period_s)
        first = len(found.requests)
        prompts = [
            make_request(
                first + i, self.class_name, self.num_prompt_tokens, self.num_output_tokens, (i + 0.5) * self.period_s
            )
            for i in range(max(num_long, 1))
        ]
        merged = sorted((*found.requests, *prompts), key=lambda request: request.arrival_s)
        return dataclasses.replace(found, requests=tuple(merged))


def trace_windows(name: str, path: Path, num_requests: int, *, has_coarse_clock: bool) -> TraceWindows:
    """The rows of a published trace.

    Args:
        has_coarse_clock: rows of one tick are spread over it.

    Raises:
        TraceError: the file is missing, of no known form, or broken.
    """
    requests = import_trace(path, ImportConfig(spread_ties=has_coarse_clock)).requests
    rows = tuple(SeenRequest(r.t_s, r.in_tokens, r.out_tokens) for r in requests)
    return TraceWindows(name, rows, MIX, num_requests)


def bursty_mix(mix: tuple[TrafficClass, ...], num_requests: int) -> MixedLoad:
    """In 15 s of every minute at twice the rate."""
    return MixedLoad("bursts", mix, ArrivalPattern(burst=2.0), num_requests)


def steady_mix(mix: tuple[TrafficClass, ...], num_requests: int) -> MixedLoad:
    """Poisson arrivals."""
    return MixedLoad("poisson", mix, STEADY, num_requests)
