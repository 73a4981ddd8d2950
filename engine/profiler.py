"""Measures all that a performance record holds, on the loaded model: layers, head, link, interference, overhead."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from engine.contradictions import believable, find_contradicted, medians
from engine.interference_probe import BusyLink, measure_interference
from engine.link_probe import SIZES_BYTES, Allocate, LinkBuffers, measure_link, measure_restart
from engine.overhead_probe import measure_overhead
from engine.profile_grid import ProfileLimits, StepShape, grid, held_out_grid
from engine.step_probe import StepProbe
from engine.trials import Trial, repeat_in_turn, without_outliers
from engine.weights import LoadedModel
from kernels.row_sampling import RowSampling
from offload.host_memory import allocate_host
from offload.link import Link
from offload.measurements import InterferencePoint, LayerPoint, LinkPoint, Measurements, RowPoint
from scheduler.config import SchedulerConfig

Progress = Callable[[float], None]

DEFAULT_BUDGET_S = 20.0
DEFAULT_PACES_BYTES_PER_S: tuple[float | None, ...] = (0.5e9, 2e9, None)
"""Of the copier beside a step; None: as fast as it can."""
_SHARES = {"layers": 0.70, "head": 0.02, "overhead": 0.04, "link": 0.06, "restart": 0.02, "interference": 0.16}
"""Of the time, and so of the progress."""
_MAX_SETTLING = 3
_SETTLING_SHARE = 0.05
"""Of the time for layers, each time that contradicted steps are repeated."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileTools:
    """What the profiler works with beside the model; tests put in their own."""

    make_link: Callable[[float | None], Link]
    """Opens a link that is held to that many bytes per second; None: as fast as it can."""
    allocate_device: Allocate = allocate_host
    """[n] uint8 of device memory."""
    sampling: RowSampling | None = None
    """Of the runner that will serve; None: PyTorch's."""
    now_s: Callable[[], float] = time.perf_counter
    link_sizes_bytes: Sequence[int] = SIZES_BYTES
    paces_bytes_per_s: Sequence[float | None] = DEFAULT_PACES_BYTES_PER_S
    budget_s: float = DEFAULT_BUDGET_S
    """For all; the fewest repetitions of a large model may take longer."""


def measure(
    model: LoadedModel,
    config: SchedulerConfig,
    limits: ProfileLimits,
    tools: ProfileTools,
    progress: Progress = lambda _fraction: None,
) -> Measurements:
    """Run the whole profile; nothing else should compute meanwhile.

    Args:
        config: of the scheduler that will serve.
        limits: the largest step; the profile takes `kv_tokens` of KV for itself.
        progress: told the share done, 0..1.

    Raises:
        LinkError: the link failed.
        MemoryError: there is none for the KV and the buffers.
    """
    return _Profiler(model, config, limits, tools, progress).run()


class _Profiler:
    """One profile in the making."""

    def __init__(
        self, model: LoadedModel, config: SchedulerConfig, limits: ProfileLimits, tools: ProfileTools, tell: Progress
    ) -> None:
        self._model = model
        self._config = config
        self._limits = limits
        self._tools = tools
        self._tell = tell
        slabs = [layer.slab.num_bytes for layer in model.decoder.weights.layers]
        self._layer_bytes = sum(slabs) // len(slabs)
        self._probe = StepProbe(model.decoder, -(-limits.kv_tokens // config.block_size), config.block_size)

    def run(self) -> Measurements:
        started_s = self._tools.now_s()
        layers, held_out = self._layers()
        head = self._head()
        overhead = self._overhead()
        buffers = LinkBuffers(max(self._tools.link_sizes_bytes), allocate_host, self._tools.allocate_device)
        link, restart_s = self._link(buffers)
        interference = self._interference(buffers)
        self._tell(1.0)
        return Measurements(
            num_layers=self._probe.num_layers,
            layer_bytes=self._layer_bytes,
            max_num_sequences=self._limits.max_num_sequences,
            max_num_tokens=self._limits.max_num_tokens,
            max_context_tokens=self._limits.max_context_tokens,
            layers=layers,
            held_out=held_out,
            head=head,
            overhead=overhead,
            link=link,
            restart_samples_s=restart_s,
            interference=interference,
            wall_s=self._tools.now_s() - started_s,
            created_unix_s=time.time(),
        )

    def _layers(self) -> tuple[tuple[LayerPoint, ...], tuple[LayerPoint, ...]]:
        """Points of the fit and held-out ones, measured in turn with each other."""
        fitted, held_out = grid(self._limits), held_out_grid(self._limits)
        shapes = [*fitted, *held_out]
        steps = [self._probe.step(shape) for shape in shapes]
        steps[_largest(shapes)]()  # takes the scratch memory that all others will do with
        trials = [self._timed(step) for step in steps]
        samples = self._repeat("layers", trials)
        num_taken = self._settle(shapes, trials, samples)
        points = [
            _layer_point(shape, kept, num, self._probe.num_layers)
            for shape, kept, num in zip(shapes, samples, num_taken, strict=True)
        ]
        return tuple(points[: len(fitted)]), tuple(points[len(fitted) :])

    def _settle(self, shapes: Sequence[StepShape], trials: Sequence[Trial], samples: list[list[float]]) -> list[int]:
        """Repeat what contradicts larger steps, and leave out of `samples` what is not to be believed.

        Returns:
            How many repetitions of each there were.
        """
        num_taken = [len(taken) for taken in samples]
        loads = [shape.load for shape in shapes]
        for _ in range(_MAX_SETTLING):
            bounds = find_contradicted(loads, medians(samples))
            budget_s = self._budget_s("layers") * _SETTLING_SHARE
            again = repeat_in_turn([trials[index] for index in bounds], budget_s, self._tools.now_s, lambda _: None)
            for (index, bound_s), taken in zip(bounds.items(), again, strict=True):
                num_taken[index] += len(taken)
                samples[index] = believable([*samples[index], *taken], bound_s)
        return num_taken

    def _head(self) -> tuple[RowPoint, ...]:
        """Each after the layers of a step, which leave none of the head's weights in a cache."""
        rows = _numbers_to(self._limits.max_num_sequences)
        layers = self._probe.step(StepShape(1, 1, 1))
        samples = self._repeat("head", [self._timed(self._probe.head(num), before=layers) for num in rows])
        return tuple(RowPoint(num, without_outliers(taken)[0]) for num, taken in zip(rows, samples, strict=True))

    def _overhead(self) -> tuple[RowPoint, ...]:
        tell = self._part("overhead")
        numbers = sorted({1, max(1, self._limits.max_num_sequences // 8), self._limits.max_num_sequences})
        points = []
        for index, num in enumerate(numbers):
            point = measure_overhead(self._model, self._config, num, self._tools.now_s, self._tools.sampling)
            points.append(RowPoint(num, without_outliers(point.samples_s)[0]))
            tell((index + 1) / len(numbers))
        return tuple(points)

    def _link(self, buffers: LinkBuffers) -> tuple[tuple[LinkPoint, ...], tuple[float, ...]]:
        tools = self._tools
        link = tools.make_link(None)
        try:
            points = measure_link(
                link, buffers, self._budget_s("link"), tools.now_s, self._part("link"), tools.link_sizes_bytes
            )
            restart_s = measure_restart(
                link,
                buffers,
                self._layer_bytes,
                self._probe.step(StepShape(1, 1, 1)),
                self._budget_s("restart"),
                tools.now_s,
                self._part("restart"),
            )
            return points, restart_s
        finally:
            link.close()

    def _interference(self, buffers: LinkBuffers) -> tuple[InterferencePoint, ...]:
        """A decode and a chunk of middling size, beside a link at each pace."""
        limits, tools = self._limits, self._tools
        shapes = [
            StepShape(max(1, limits.max_num_sequences // 8), 1, 1),
            StepShape(1, max(1, min(limits.max_num_tokens, limits.max_context_tokens) // 8), 1),
        ]
        shapes = [dataclasses.replace(shape, context_each=shape.tokens_each) for shape in shapes]
        tell = self._part("interference")
        num_points = len(shapes) * len(tools.paces_bytes_per_s)
        points: list[InterferencePoint] = []
        for pace in tools.paces_bytes_per_s:
            link = tools.make_link(pace)
            try:
                for shape in shapes:
                    points.append(
                        measure_interference(
                            shape,
                            self._probe.step(shape),
                            self._probe.num_layers,
                            BusyLink(link, buffers, self._layer_bytes),
                            pace,
                            self._budget_s("interference") / num_points,
                            tools.now_s,
                            lambda share: tell((len(points) + share) / num_points),
                        )
                    )
            finally:
                link.close()
        return tuple(points)

    def _timed(self, run: Callable[[], None], before: Callable[[], None] | None = None) -> Trial:
        """`before` is not timed."""
        now_s = self._tools.now_s

        def trial() -> float:
            if before is not None:
                before()
            started_s = now_s()
            run()
            return max(now_s() - started_s, 1e-9)

        return trial

    def _repeat(self, part: str, trials: Sequence[Trial]) -> list[list[float]]:
        return repeat_in_turn(trials, self._budget_s(part), self._tools.now_s, self._part(part))

    def _budget_s(self, part: str) -> float:
        return self._tools.budget_s * _SHARES[part]

    def _part(self, part: str) -> Progress:
        """Progress of one part as progress of all."""
        names = list(_SHARES)
        before = sum(_SHARES[name] for name in names[: names.index(part)])
        return lambda share: self._tell(min(1.0, before + _SHARES[part] * share))


def _layer_point(shape: StepShape, samples_s: Sequence[float], num_taken: int, num_layers: int) -> LayerPoint:
    kept, _ = without_outliers(samples_s)
    load = shape.load
    return LayerPoint(
        load.num_tokens,
        load.num_sequences,
        load.num_context_tokens,
        tuple(sample / num_layers for sample in kept),
        num_taken - len(kept),
    )


def _largest(shapes: Sequence[StepShape]) -> int:
    return max(range(len(shapes)), key=lambda index: shapes[index].load.num_tokens)


def _numbers_to(last: int) -> list[int]:
    """1, 2, 4, 8, ... and `last`."""
    numbers = [1]
    while 2 * numbers[-1] < last:
        numbers.append(2 * numbers[-1])
    return sorted({*numbers, last})
