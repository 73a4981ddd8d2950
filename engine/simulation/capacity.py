"""The highest rate of arrivals at which enough requests meet their targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.simulation.machine import SimulatedMachine
from engine.simulation.simulation_error import SimulationError
from engine.simulation.traffic import TrafficClass
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from scheduler.config import SchedulerConfig

CAPACITY_GOAL = 0.9
"""Offered attainment of the protected classes at capacity, at least."""
_TOLERANCE = 1.02
"""Capacity is found within that factor."""
_MAX_STRIDES = 20


def find_capacity(
    attainment: Callable[[float], float],
    start_per_s: float,
    goal: float = CAPACITY_GOAL,
    stride: float = 2.0,
    explain: Callable[[float], str] | None = None,
) -> float:
    """Requests per second: bracketed by steps of a factor, then bisected on a logarithmic scale.

    Args:
        attainment: share of the offered requests that meet their targets, 0..1, at that many requests per second.
        start_per_s: where to begin; a good guess saves runs, with a smaller stride some more.
        stride: factor of the first steps, up or down.
        explain: who misses them most at that rate, for the message where no rate will do.

    Raises:
        SimulationError: no rate tried reaches the goal, or every one does.
    """
    low = high = start_per_s
    if attainment(start_per_s) >= goal:
        for _ in range(_MAX_STRIDES):
            low, high = high, high * stride
            if attainment(high) < goal:
                break
        else:
            raise SimulationError(
                f"--requests are too few to find a capacity: even at {high:.4g} requests/s at least {goal:.0%} meet "
                "their targets. Raise --requests, or give --rate"
            )
    else:
        for _ in range(_MAX_STRIDES):
            low, high = low / stride, low
            if attainment(low) >= goal:
                break
        else:
            who = "" if explain is None else f", fewest of class {explain(low)}"
            raise SimulationError(
                f"there is no capacity: even at {low:.4g} requests/s fewer than {goal:.0%} meet their targets{who}. "
                "Take another --gpu, shorter requests, or a table with looser targets (--classes), or give --rate"
            )
    while high / low > _TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if attainment(middle) >= goal else (low, middle)
    return low


def busy_rate_per_s(machine: SimulatedMachine, scheduler: SchedulerConfig, mix: Sequence[TrafficClass]) -> float:
    """Requests per second that a machine would finish if every step were full: where to begin the search."""
    total = sum(c.share for c in mix)
    prompt = sum(c.share * c.mean_prompt_tokens for c in mix) / total
    output = sum(c.share * c.mean_output_tokens for c in mix) / total
    layers = machine.shape.num_layers
    chunk = min(math.ceil(prompt), scheduler.max_num_batched_tokens)
    decode = StepLoad.decode(scheduler.max_num_seqs, math.ceil(prompt + output / 2))
    prefill_s = layers * machine.cost.quiet_layer_s(StepLoad(chunk, 1, chunk), Quantile.P50) * prompt / chunk
    decode_s = layers * machine.cost.quiet_layer_s(decode, Quantile.P50) * output / scheduler.max_num_seqs
    return 1.0 / (prefill_s + decode_s)
