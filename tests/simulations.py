"""Simulated machines and loads with round numbers."""

from __future__ import annotations

import dataclasses

from engine.profile_grid import ProfileLimits
from engine.simulation.machine import SimulatedMachine
from engine.simulation.sampled_cost import fit_cost
from engine.simulation.simulator import Simulator
from engine.simulation.traffic import TrafficClass, draw_traffic
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.simulated_requests import SimulatedRun, observe
from tests.offload_shapes import FlatCost, make_shape

NUM_LAYERS = 16
LAYER_S, PER_ROW_S, HEAD_S, FIXED_S = 1e-3, 10e-6, 2e-3, 1e-3
DECODE_S = NUM_LAYERS * LAYER_S + HEAD_S + FIXED_S
"""A step in which every sequence computes one token."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinearCost(FlatCost):
    """Of the form that the latency model has: it predicts every step exactly."""

    per_context: float = 0.1e-6
    """Of a decode, by tokens of its context."""
    per_pair: float = 0.5e-9
    """Of a chunk, by pairs of a query and a key."""

    def quiet_layer_s(self, load: StepLoad, quantile: Quantile) -> float:
        rows_s = self.layer + self.per_row * load.num_tokens
        if load.is_decode:
            return (rows_s + self.per_context * load.num_context_tokens) * self._factor(quantile)
        each = load.num_tokens / load.num_sequences
        pairs = load.num_tokens * (load.num_context_tokens / load.num_sequences - each / 2)
        return (rows_s + self.per_pair * pairs) * self._factor(quantile)


def make_machine(
    num_blocks: int = 4096, max_model_len: int = 4096, num_streamed_layers: int = 0, cost: StepCost | None = None
) -> SimulatedMachine:
    """16 layers of 1 ms and 10 us a further row, 2 ms of head, 1 ms besides; or of other costs."""
    if cost is None:
        cost = FlatCost(layer=LAYER_S, per_row=PER_ROW_S, head=HEAD_S, fixed=FIXED_S)
    limits = ProfileLimits(64, 2048, max_model_len, num_blocks * SchedulerConfig().block_size)
    shape = make_shape()
    latency = fit_cost(cost, NUM_LAYERS, limits, round(shape.mean_layer_bytes))
    return SimulatedMachine("toy", shape, cost, num_blocks, max_model_len, latency, num_streamed_layers)


def mix_of(name: str, prompt_tokens: int, output_tokens: int, share: float = 1.0) -> TrafficClass:
    """A class whose requests are all alike."""
    return TrafficClass(name, share, (prompt_tokens, prompt_tokens), (output_tokens, output_tokens))


def simulate(
    mix: tuple[TrafficClass, ...], num_requests: int, rate_per_s: float, seed: int = 0, **scheduler_options: object
) -> SimulatedRun:
    """On `make_machine`, with the built-in classes."""
    machine = make_machine()
    config = SchedulerConfig(**scheduler_options)  # type: ignore[arg-type]
    requests = draw_traffic(mix, num_requests, rate_per_s, seed, machine.max_model_len).requests
    return observe(requests, Simulator(machine, config, SLOClasses()).run(requests))
