"""Measures in about two seconds what steps take whose weights all stay: what a start without a memory cap predicts by.

As `engine.profiler`, with fewer points and repetitions and nothing of the link. A model too slow for all of them gets
fewer repetitions, then fewer points, the least needed first; the fit goes straight on beyond the largest.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from engine.contradictions import find_contradicted
from engine.errors import EngineError
from engine.kv_cache import KVCache
from engine.overhead_probe import measure_overhead
from engine.profile_grid import ProfileLimits, StepShape, brief_grid, brief_held_out_grid
from engine.step_probe import StepProbe
from engine.trials import FEWEST_REPEATS, further_rounds, repeats
from engine.weights import LoadedModel
from kernels.row_sampling import RowSampling
from offload.measurements import LayerPoint, Measurements, RowPoint, median
from scheduler.config import SchedulerConfig

BUDGET_S = 2.0
"""Of all. What is begun later are repetitions that each step needs, and first runs of a slow model."""
PATIENCE_S = 4.0
"""Of all steps: of so many repetitions, `FEWEST_REPEATS` at most, as this holds; one in any case."""
LIMIT_S = 12.0
"""No step is begun that is expected to end later. A start waits 15 s at most; the rest is for what takes longer."""
MAX_STEP_SHARE = 0.25
"""Of the limit, for one step."""
MAX_DECODE_S = 2.0
"""A step of one token that takes longer leaves no time for others."""
KV_TOKENS = 2048
"""Of KV that is written and read."""
OVERHEAD_S = 0.05
MAX_OVERHEAD_STEPS = 8
"""In which the overhead is measured; fewer where steps of one token take longer than `OVERHEAD_S` together."""
QUIET_FACTOR = 1.25
"""More than that times the least is another process's doing: of two or three repetitions the median says little."""

Progress = Callable[[float], None]


class TooSlowError(EngineError):
    """The model takes too long for a start to wait for measurements."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServingParts:
    """What will serve, loaded, with nothing to do yet."""

    model: LoadedModel
    kv_cache: KVCache
    """Of the runner: its first blocks are overwritten."""
    sampling: RowSampling | None
    scheduler: SchedulerConfig
    max_model_len: int


@dataclasses.dataclass(slots=True)
class _TimedStep:
    """A step and what its layers and its head took so far."""

    shape: StepShape
    layers: Callable[[], None]
    head: Callable[[], None] | None
    """After the layers, as when serving; None: of a chunk, whose one row a decode tells."""
    samples_s: list[float] = dataclasses.field(default_factory=list)
    head_samples_s: list[float] = dataclasses.field(default_factory=list)

    def run(self, now_s: Callable[[], float]) -> None:
        started_s = now_s()
        self.layers()
        computed_s = now_s()
        self.samples_s.append(max(computed_s - started_s, 1e-9))
        if self.head is not None:
            self.head()
            self.head_samples_s.append(max(now_s() - computed_s, 1e-9))

    @property
    def cost_s(self) -> float:
        return median(self.samples_s) + (median(self.head_samples_s) if self.head_samples_s else 0.0)


def measure_brief(
    parts: ServingParts, progress: Progress = lambda _fraction: None, now_s: Callable[[], float] = time.perf_counter
) -> Measurements:
    """Measure what will serve; nothing else should compute meanwhile.

    Args:
        progress: told the share done, 0..1.

    Raises:
        TooSlowError: see there.
        MemoryError: there is none for the few blocks of KV of its own.
    """
    return _BriefProfiler(parts, progress, now_s).run()


class _BriefProfiler:
    """One brief profile in the making."""

    def __init__(self, parts: ServingParts, tell: Progress, now_s: Callable[[], float]) -> None:
        self._parts = parts
        self._tell = tell
        self._now_s = now_s
        self._started_s = now_s()
        block_size = parts.scheduler.block_size
        num_blocks = min(len(parts.kv_cache.region), -(-KV_TOKENS // block_size))
        kv_tokens = num_blocks * block_size
        self._probe = StepProbe(parts.model.decoder, num_blocks, block_size, parts.kv_cache)
        self._limits = ProfileLimits(
            parts.scheduler.max_num_seqs,
            parts.scheduler.max_num_batched_tokens,
            min(parts.max_model_len, kv_tokens),
            kv_tokens,
        )

    def run(self) -> Measurements:
        """Raises TooSlowError, MemoryError: see `measure_brief`."""
        decode_s = self._decode_s()
        overhead = self._overhead(decode_s)
        fitted, held_out = brief_grid(self._limits), brief_held_out_grid(self._limits)
        steps = self._first_round([*fitted, *held_out], decode_s)
        chunk = next((shape for shape in fitted if shape.tokens_each > 1), None)
        if chunk is not None and all(step.shape != chunk for step in steps):
            raise TooSlowError(f"a chunk of {chunk.tokens_each} tokens is not to be measured within {LIMIT_S:g} s")
        self._repeat(steps)
        self._settle(steps)
        points = {step.shape: self._point(step) for step in steps}
        self._tell(1.0)
        slabs = [layer.slab.num_bytes for layer in self._parts.model.decoder.weights.layers]
        return Measurements(
            num_layers=self._probe.num_layers,
            layer_bytes=sum(slabs) // len(slabs),
            max_num_sequences=self._limits.max_num_sequences,
            max_num_tokens=self._limits.max_num_tokens,
            max_context_tokens=self._limits.max_context_tokens,
            layers=_of(points, fitted),
            held_out=_of(points, held_out),
            head=_head(steps),
            overhead=overhead,
            link=(),
            restart_samples_s=(),
            interference=(),
            wall_s=self._elapsed_s,
            created_unix_s=time.time(),
            is_brief=True,
        )

    @property
    def _elapsed_s(self) -> float:
        return self._now_s() - self._started_s

    def _decode_s(self) -> float:
        """Of the first step of all, which also wakes the threads: a little much.

        Raises:
            TooSlowError: see there.
        """
        step = self._step(StepShape(1, 1, 1))
        step.run(self._now_s)
        if step.cost_s > MAX_DECODE_S:
            raise TooSlowError(
                f"a step of one token takes {step.cost_s:.1f} s; at most {MAX_DECODE_S:g} s are waited for"
            )
        return step.cost_s

    def _overhead(self, decode_s: float) -> tuple[RowPoint, ...]:
        """Of one sequence, and of some where steps are short: there it counts."""
        parts = self._parts
        num_steps = min(max(int(OVERHEAD_S / decode_s), 2), MAX_OVERHEAD_STEPS)
        numbers = {1, max(1, parts.scheduler.max_num_seqs // 4)} if num_steps > 2 else {1}
        points = [
            measure_overhead(parts.model, parts.scheduler, num, self._now_s, parts.sampling, num_steps)
            for num in sorted(numbers)
        ]
        return tuple(RowPoint(point.num_rows, _quiet(point.samples_s)) for point in points)

    def _step(self, shape: StepShape) -> _TimedStep:
        head = self._probe.head(shape.num_sequences) if shape.tokens_each == 1 else None
        return _TimedStep(shape, self._probe.step(shape), head)

    def _first_round(self, shapes: Sequence[StepShape], decode_s: float) -> list[_TimedStep]:
        """Each step once, the most needed first; those that the time does not hold are left out.

        What was too long to be tried may prove short enough once a step nearer to it was measured.
        """
        waiting, measured = list(shapes), list[_TimedStep]()
        while True:
            left_s = min(MAX_STEP_SHARE * LIMIT_S, LIMIT_S - self._elapsed_s)
            fitting = (shape for shape in waiting if _expected_s(shape, measured, decode_s) <= left_s)
            shape = next(fitting, None)
            if shape is None:
                return measured
            waiting.remove(shape)
            step = self._step(shape)
            step.run(self._now_s)
            measured.append(step)
            self._tell(len(measured) / len(shapes) / FEWEST_REPEATS)

    def _repeat(self, steps: Sequence[_TimedStep]) -> None:
        costs_s = [step.cost_s for step in steps]
        least = min(max(int(PATIENCE_S / sum(costs_s)), 1), FEWEST_REPEATS)
        targets = repeats(costs_s, BUDGET_S, least)
        rounds = list(further_rounds(targets))
        for index, (repeat, place) in enumerate(rounds):
            is_over = repeat >= least and self._elapsed_s > BUDGET_S
            if is_over or self._elapsed_s + costs_s[place] > LIMIT_S:
                continue
            steps[place].run(self._now_s)
            self._tell((1.0 + (FEWEST_REPEATS - 1) * (index + 1) / len(rounds)) / FEWEST_REPEATS)

    def _settle(self, steps: Sequence[_TimedStep]) -> None:
        """Repeat what contradicts larger steps."""
        loads, least_s = [step.shape.load for step in steps], [min(step.samples_s) for step in steps]
        for index in find_contradicted(loads, least_s):
            for _ in range(FEWEST_REPEATS):
                if self._elapsed_s + steps[index].cost_s <= LIMIT_S:
                    steps[index].run(self._now_s)

    def _point(self, step: _TimedStep) -> LayerPoint:
        load, kept = step.shape.load, _quiet(step.samples_s)
        return LayerPoint(
            load.num_tokens,
            load.num_sequences,
            load.num_context_tokens,
            tuple(sample / self._probe.num_layers for sample in kept),
            len(step.samples_s) - len(kept),
        )


def _expected_s(shape: StepShape, measured: Sequence[_TimedStep], decode_s: float) -> float:
    """At most, but for attention: tokens may be as dear as in the smaller steps, and no dearer than in the larger."""
    num_tokens = shape.load.num_tokens
    known = [(1, decode_s), *((step.shape.load.num_tokens, step.cost_s) for step in measured)]
    return min(cost_s * max(1.0, num_tokens / tokens) for tokens, cost_s in known)


def _quiet(samples_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(sample for sample in samples_s if sample <= QUIET_FACTOR * min(samples_s))


def _of(points: dict[StepShape, LayerPoint], shapes: Sequence[StepShape]) -> tuple[LayerPoint, ...]:
    return tuple(points[shape] for shape in shapes if shape in points)


def _head(steps: Sequence[_TimedStep]) -> tuple[RowPoint, ...]:
    """By rows, over all steps of so many."""
    samples_s: dict[int, list[float]] = {}
    for step in steps:
        if step.head_samples_s:
            samples_s.setdefault(step.shape.num_sequences, []).extend(step.head_samples_s)
    return tuple(RowPoint(rows, _quiet(taken)) for rows, taken in sorted(samples_s.items()))
