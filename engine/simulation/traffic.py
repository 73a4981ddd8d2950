"""Who arrives in a simulation, when, and with what."""

from __future__ import annotations

import dataclasses
import random

from engine.messages import AddGroup, SLORequest
from engine.sampling_params import SamplingParams
from engine.simulation.arrivals import STEADY, ArrivalPattern
from engine.simulation.roofline_runner import TOKEN_ID
from engine.simulation.simulation_error import SimulationError

CANCEL_MEAN_S = 2.0
"""From the arrival of a request whose client leaves."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrafficClass:
    """One latency class of a mix. Lengths are drawn evenly from low..high, both included."""

    name: str
    share: float
    """Relative to the other classes' shares."""
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(self.prompt_tokens) / 2

    @property
    def mean_output_tokens(self) -> float:
        return sum(self.output_tokens) / 2


@dataclasses.dataclass(frozen=True, slots=True)
class Cancellation:
    """A client leaves, whatever has become of its request by then."""

    at_s: float
    group_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of one simulation, in the order of their arrival."""

    requests: tuple[AddGroup, ...]
    num_clipped: int
    """Requests that were longer than the model reads, and were cut to what it does."""
    cancellations: tuple[Cancellation, ...] = ()
    """In the order of their times."""

    def with_cancellations(self, share: float, seed: int) -> Traffic:
        """The same requests, of which a share is cancelled after exponential times of mean `CANCEL_MEAN_S`."""
        rng = random.Random(f"cancellations {seed}")
        drawn = [(rng.random() < share, request, rng.expovariate(1.0 / CANCEL_MEAN_S)) for request in self.requests]
        found = [
            Cancellation(request.arrival_s + after_s, request.group_id) for is_cut, request, after_s in drawn if is_cut
        ]
        return dataclasses.replace(self, cancellations=tuple(sorted(found, key=lambda c: c.at_s)))


def draw_traffic(
    mix: tuple[TrafficClass, ...],
    num_requests: int,
    rate_per_s: float,
    seed: int,
    max_model_len: int,
    pattern: ArrivalPattern = STEADY,
) -> Traffic:
    """Arrivals of a mix of classes; no two requests share a prefix.

    Equal seeds give the same requests in the same order at every rate, and without bursts arrivals that differ by one
    factor: runs at different rates, or of different policies, are paired.

    Raises:
        SimulationError: `max_model_len` has no room for a prompt and an output.
    """
    if max_model_len < 2:
        raise SimulationError(f"max_model_len is {max_model_len}, a request has at least 2 tokens; allow more")
    rng = random.Random(seed)
    weights = [c.share for c in mix]
    requests, num_clipped, elapsed = [], 0, 0.0
    for index in range(num_requests):
        elapsed += pattern.gap(rng)
        drawn = rng.choices(mix, weights)[0]
        asked_prompt, asked_output = rng.randint(*drawn.prompt_tokens), rng.randint(*drawn.output_tokens)
        num_output = min(asked_output, max_model_len - 1)
        num_prompt = min(asked_prompt, max_model_len - num_output)
        num_clipped += (num_prompt, num_output) != (asked_prompt, asked_output)
        requests.append(make_request(index, drawn.name, num_prompt, num_output, pattern.time_s(elapsed, rate_per_s)))
    return Traffic(tuple(requests), num_clipped)


def make_request(
    index: int, class_name: str, num_prompt_tokens: int, num_output_tokens: int, arrival_s: float
) -> AddGroup:
    """A request that shares no prefix with any other and runs to its length."""
    group_id = f"r{index:06d}"
    return AddGroup(
        group_id=group_id,
        prompts=((TOKEN_ID,) * num_prompt_tokens,),
        n=1,
        sampling=SamplingParams(max_tokens=num_output_tokens, ignore_eos=True),
        slo=SLORequest(requested=class_name, granted=class_name),
        arrival_s=arrival_s,
        cache_salt=group_id,  # equal token ids, and yet no prefix in common
    )
