"""How long a step takes while layers are streamed: an event simulation of compute, link and slots.

The loads of a step follow each other in the order of their layers, and the first of the next step follows the last of
this one. A load starts when the one before it has ended and its slot is released: that of the load `num_slots` before
it, when that one's layer is computed. A layer starts when the layer before it is computed and its own load has ended.
Closed forms of this miss the head, during which the link works, and unequal gaps between streamed layers.
Where there are as many slots as units, each unit stays in its slot, and nothing is copied.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from offload.streamed_unit import StreamedUnit

_MAX_STEPS = 512
"""Where the steps do not settle by then, the error is what the slots hold, over half of that many steps."""
_RESOLUTION = 1e-9
"""Of a step: states that differ by less are the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepPrediction:
    """Of a step in steady state, in seconds."""

    step_s: float
    compute_s: float
    """Layers, head and what the step takes besides, with all weights on the device."""
    exposed_s: float
    """What layers wait for their loads."""
    link_busy_share: float
    """Of the step, 0..1, restarts included."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step of the simulation."""

    end_s: float
    exposed_s: float
    link_busy_s: float


def predict_step(
    layer_s: Sequence[float],
    head_s: float,
    units: Sequence[StreamedUnit],
    num_slots: int,
    link_bytes_per_s: float,
    *,
    restart_s: float = 0.0,
    fixed_s: float = 0.0,
) -> StepPrediction:
    """The step that repeats once the slots are in their rhythm.

    Args:
        layer_s: of each layer, its weights on the device.
        units: what is streamed, in any order, at most one a layer; empty: nothing.
        num_slots: buffers that loads take turns in.
        restart_s: added to a load that has waited for its slot while the link was idle.

    Raises:
        ValueError: no slot or no bandwidth for what is to be streamed, or units that are no such set.
    """
    compute_s = sum(layer_s) + head_s + fixed_s
    if len(units) <= num_slots:
        _check(units, len(layer_s), num_slots, link_bytes_per_s)
        return StepPrediction(compute_s, compute_s, 0.0, 0.0)
    steps = simulate_steps(layer_s, head_s, units, num_slots, link_bytes_per_s, restart_s=restart_s, fixed_s=fixed_s)
    first, last, num_steps = _settled(steps, compute_s)
    step_s = (last.end_s - first.end_s) / num_steps
    return StepPrediction(
        step_s,
        compute_s,
        (last.exposed_s - first.exposed_s) / num_steps,
        min(1.0, (last.link_busy_s - first.link_busy_s) / num_steps / step_s) if step_s > 0 else 0.0,
    )


def simulate_steps(
    layer_s: Sequence[float],
    head_s: float,
    units: Sequence[StreamedUnit],
    num_slots: int,
    link_bytes_per_s: float,
    *,
    restart_s: float = 0.0,
    fixed_s: float = 0.0,
) -> Iterator[tuple[SimulatedStep, tuple[float, ...]]]:
    """Steps without end from empty slots on: totals since the start, and the state the next step starts in.

    Equal states give equal further steps. A state is when the link is free and when each slot is, before the end of
    the step, in seconds. Arguments and errors as in `predict_step`; there are more units than slots.
    """
    _check(units, len(layer_s), num_slots, link_bytes_per_s)
    ordered = sorted(units, key=lambda unit: unit.layer)
    gaps_s, rest_s = _computation(layer_s, ordered)
    load_s = [unit.num_bytes / link_bytes_per_s for unit in ordered]
    return _steps(
        gaps_s, [layer_s[unit.layer] for unit in ordered], rest_s + head_s + fixed_s, load_s, num_slots, restart_s
    )


def _steps(
    gaps_s: Sequence[float],
    streamed_s: Sequence[float],
    rest_s: float,
    load_s: Sequence[float],
    num_slots: int,
    restart_s: float,
) -> Iterator[tuple[SimulatedStep, tuple[float, ...]]]:
    now_s = link_free_s = exposed_s = busy_s = 0.0
    released_s = deque([0.0] * num_slots, maxlen=num_slots)  # by the loads before, the oldest first
    while True:
        for gap_s, layer_s, duration_s in zip(gaps_s, streamed_s, load_s, strict=True):
            now_s += gap_s
            pause_s = restart_s if released_s[0] > link_free_s else 0.0
            link_free_s = max(link_free_s, released_s[0]) + pause_s + duration_s
            busy_s += pause_s + duration_s
            exposed_s += max(0.0, link_free_s - now_s)
            now_s = max(now_s, link_free_s) + layer_s
            released_s.append(now_s)
        now_s += rest_s
        free_s = (link_free_s, *(max(released, link_free_s) for released in released_s))
        yield SimulatedStep(now_s, exposed_s, busy_s), tuple(now_s - free for free in free_s)


def _settled(
    steps: Iterator[tuple[SimulatedStep, tuple[float, ...]]], scale_s: float
) -> tuple[SimulatedStep, SimulatedStep, int]:
    """Two steps in equal states and how many steps lie between them: the rhythm may take more than one step."""
    seen: dict[tuple[int, ...], tuple[int, SimulatedStep]] = {}
    unit_s = max(scale_s * _RESOLUTION, 1e-15)
    history: list[SimulatedStep] = []
    for index, (step, state) in enumerate(itertools.islice(steps, _MAX_STEPS)):
        key = tuple(round(value / unit_s) for value in state)
        if key in seen:
            first_index, first = seen[key]
            return first, step, index - first_index
        seen[key] = (index, step)
        history.append(step)
    half = _MAX_STEPS // 2
    return history[-1 - half], history[-1], half


def _computation(layer_s: Sequence[float], ordered: Sequence[StreamedUnit]) -> tuple[list[float], float]:
    """Computation before each streamed layer since the one before it, and after the last one."""
    bounds = [-1, *(unit.layer for unit in ordered), len(layer_s)]
    sums = [sum(layer_s[before + 1 : layer]) for before, layer in itertools.pairwise(bounds)]
    return sums[:-1], sums[-1]


def _check(units: Sequence[StreamedUnit], num_layers: int, num_slots: int, link_bytes_per_s: float) -> None:
    layers = [unit.layer for unit in units]
    if len(set(layers)) < len(layers) or any(not 0 <= layer < num_layers for layer in layers):
        raise ValueError(f"units of the layers {layers}: they must be different ones of the {num_layers} layers")
    if units and num_slots < 1:
        raise ValueError(f"{num_slots} slots for {len(units)} streamed units; there must be at least 1")
    if units and not link_bytes_per_s > 0:
        raise ValueError(f"the link moves {link_bytes_per_s} bytes a second; it must move some")
