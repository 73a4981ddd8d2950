"""Arrivals and lengths of a trace in place of drawn ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from engine.simulation.simulation_error import SimulationError
from engine.simulation.traffic import Traffic, TrafficClass, make_request


@dataclasses.dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request of a trace."""

    t_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    slo_class: str | None = None
    """None: the trace does not say; drawn by the shares of a mix."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedLoad:
    """The first requests of a trace, in the order of their times.

    Raises:
        SimulationError: there are fewer than two, or all of them came at one time, so that they have no rate.
    """

    seen: tuple[SeenRequest, ...]

    def __post_init__(self) -> None:
        if len(self.seen) < 2 or self.seen[-1].t_s <= self.seen[0].t_s:
            raise SimulationError(
                f"the trace has {len(self.seen)} requests with lengths, all within no time: it takes two that come one "
                "after the other"
            )

    @property
    def rate_per_s(self) -> float:
        """Of the trace itself."""
        return (len(self.seen) - 1) / (self.seen[-1].t_s - self.seen[0].t_s)

    def shape(self, mix: Sequence[TrafficClass]) -> tuple[TrafficClass, ...]:
        """The mix with the trace's mean lengths, to guess a rate from."""
        prompt = max(1, round(sum(r.num_prompt_tokens for r in self.seen) / len(self.seen)))
        output = max(1, round(sum(r.num_output_tokens for r in self.seen) / len(self.seen)))
        return tuple(TrafficClass(c.name, c.share, (prompt, prompt), (output, output)) for c in mix)

    def traffic(self, mix: Sequence[TrafficClass], rate_per_s: float, seed: int, max_model_len: int) -> Traffic:
        """The trace at that mean rate: its times are scaled by one factor. Longer rows are cut, and counted.

        Raises:
            SimulationError: `max_model_len` has no room for a prompt and an output.
        """
        if max_model_len < 2:
            raise SimulationError(f"max_model_len is {max_model_len}, a request has at least 2 tokens; allow more")
        rng, weights, names = random.Random(seed), [c.share for c in mix], [c.name for c in mix]
        factor, start_s = self.rate_per_s / rate_per_s, self.seen[0].t_s
        requests, num_clipped = [], 0
        for index, row in enumerate(self.seen):
            name = row.slo_class if row.slo_class is not None else rng.choices(names, weights)[0]
            num_output = min(row.num_output_tokens, max_model_len - 1)
            num_prompt = min(row.num_prompt_tokens, max_model_len - num_output)
            num_clipped += (num_prompt, num_output) != (row.num_prompt_tokens, row.num_output_tokens)
            requests.append(make_request(index, name, num_prompt, num_output, (row.t_s - start_s) * factor))
        return Traffic(tuple(requests), num_clipped)
