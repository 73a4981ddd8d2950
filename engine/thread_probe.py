"""How many threads compute: measured at start, beside a neighbour as busy as the HTTP process is under load.

More threads are not always faster. All threads of a product wait for the last one; where a neighbour has a processor,
the thread on it stands still for milliseconds in the midst of its task. A thread fewer than processors, or half of
them where the memory is the limit, may then be as fast, and leaves a processor to the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import torch

from engine.models.native_decoder import NativeDecoder
from kernels.attention.base import AttentionMetadata, cache_shape
from kernels.native_library import NativeLibrary

ROUND_S = 0.12
"""For all candidates together, beside one step of each to begin with: start to ready shall not feel it."""
MAX_ROUNDS = 3
PAUSE_S = 0.2
"""Between two rounds: a process that is busy for a moment, such as one that starts, is to end meanwhile."""
SLICE_S = 0.004
"""A candidate computes at least that long before it is the next one's turn: longer than the system lets one thread
run where two want the processor."""
NUM_ROWS = 32
"""Sequences that decode in the step: so many that the operations count, not the reading of the weights alone."""
MAX_WEIGHTS_BYTES = 32 * 1024**2
"""Of the layers that the step goes through, or one layer."""
TOLERANCE = 0.04
"""Fewer threads are taken if their step is at most that much longer than the best."""
NEIGHBOUR_BURST_S, NEIGHBOUR_PAUSE_S = 0.001, 0.009
"""What the HTTP process does at 1,000 to 1,500 tokens a second, at 65 to 70 us a token."""
_BLOCK_SIZE = 16

Step = Callable[[], object]


@dataclasses.dataclass(frozen=True, slots=True)
class ThreadChoice:
    """How many threads compute, and why."""

    num_threads: int
    step_s: Mapping[int, float]
    """Of each number of threads that was tried: how long the probe's step took."""

    def __str__(self) -> str:
        return ", ".join(f"{threads}: {step_s * 1e3:.2f} ms" for threads, step_s in sorted(self.step_s.items()))


def candidates(most: int) -> tuple[int, ...]:
    """All, one less, half and a quarter of them; at least 1, most first."""
    return tuple(sorted({most, max(most - 1, 1), max(most // 2, 1), max(most // 4, 1)}, reverse=True))


def choose(step_s: Mapping[int, float]) -> ThreadChoice:
    """The fewest threads that are within TOLERANCE of the fastest.

    Args:
        step_s: by number of threads; not empty.
    """
    limit_s = min(step_s.values()) * (1.0 + TOLERANCE)
    return ThreadChoice(min(threads for threads, taken_s in step_s.items() if taken_s <= limit_s), step_s)


def measure(
    steps: Mapping[int, Step], round_s: float, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Let the candidates take turns until the time is over, at least once each.

    Args:
        steps: by number of threads.

    Returns:
        Seconds of a step by number of threads: the median of its turns, so that a moment's disturbance does not count.
    """
    for step in steps.values():  # scratch memory is taken, threads are awake
        step()
    turns_s: dict[int, list[float]] = {threads: [] for threads in steps}
    end_s = clock() + round_s
    while True:
        for threads, step in steps.items():
            turns_s[threads].append(_turn(step, clock))
        if clock() >= end_s:
            return {threads: statistics.median(taken_s) for threads, taken_s in turns_s.items()}


def settle(measure_round: Callable[[], Mapping[int, float]], pause: Callable[[float], object]) -> ThreadChoice:
    """Choose; fewer than all threads only if they win every round.

    To have chosen too few costs up to half of the machine for as long as the process lives, one too many beside a busy
    neighbour a few percent.

    Args:
        measure_round: seconds of a step by number of threads, measured anew.
        pause: waits for so many seconds.

    Returns:
        The choice of the round with the most threads, the first of them.
    """
    best = choose(measure_round())
    for _ in range(MAX_ROUNDS - 1):
        if best.num_threads == max(best.step_s):
            break
        pause(PAUSE_S)
        choice = choose(measure_round())
        if choice.num_threads > best.num_threads:
            best = choice
    return best


def probe_threads(
    decoder: NativeDecoder,
    library: NativeLibrary,
    *,
    round_s: float = ROUND_S,
    pause: Callable[[float], object] = time.sleep,
) -> ThreadChoice:
    """Try the candidates up to the library's own number of threads.

    Args:
        decoder: loaded; nothing of it changes.
        library: that the decoder computes with.
        round_s, pause: see `measure` and `settle`.
    """
    with contextlib.ExitStack() as opened:
        steps: dict[int, Step] = {}
        for threads in candidates(library.num_threads):
            kernels = opened.enter_context(contextlib.closing(library.with_threads(threads)))
            steps[threads] = _decode_step(decoder, kernels)
        opened.enter_context(Neighbour())
        return settle(lambda: measure(steps, round_s), pause)


class Neighbour:
    """A thread that works in bursts, as the HTTP process does."""

    def __init__(self, work: Step | None = None) -> None:
        """`work`: a small part of a burst; None: hashing, which leaves the interpreter's lock to others."""
        self._work = work or functools.partial(hashlib.blake2b, bytes(64 * 1024))
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neighbour", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stops.wait(NEIGHBOUR_PAUSE_S):
            end_s = time.perf_counter() + NEIGHBOUR_BURST_S
            while time.perf_counter() < end_s:
                self._work()


def _turn(step: Step, clock: Callable[[], float]) -> float:
    start_s, num_steps = clock(), 0
    while True:
        step()
        num_steps += 1
        taken_s = clock() - start_s
        if taken_s >= SLICE_S:
            return taken_s / num_steps


def _decode_step(decoder: NativeDecoder, library: NativeLibrary) -> Step:
    """First tokens of NUM_ROWS sequences through some of the layers; nothing is written to the cache."""
    part = decoder.with_library(library, max_bytes=MAX_WEIGHTS_BYTES)
    config = decoder.config
    cache = torch.zeros(
        cache_shape(1, len(part.weights.layers), _BLOCK_SIZE, config.num_kv_heads, config.head_dim), dtype=decoder.dtype
    )
    ones, zeros = (1,) * NUM_ROWS, torch.zeros(NUM_ROWS, dtype=torch.int64)
    metadata = AttentionMetadata(ones, ones, zeros[:, None], torch.full((NUM_ROWS,), -1), zeros)
    return lambda: part.forward(zeros, cache, metadata)
