"""Measures how much slower steps are while the link copies, and how fast it copies beside them."""

from __future__ import annotations

from collections.abc import Callable

from engine.link_probe import LinkBuffers
from engine.profile_grid import StepShape
from engine.trials import Trial, repeat_in_turn
from offload.link import Link, TransferHandle
from offload.measurements import InterferencePoint
from offload.transfer import Direction

_SAMPLE_S = 0.02
"""Steps are repeated until a sample is that long: the link is then in full swing."""
_QUEUED_TRANSFERS = 2


class BusyLink:
    """Keeps a link copying to the device from `start` to `stop`, and counts."""

    def __init__(self, link: Link, buffers: LinkBuffers, slab_bytes: int) -> None:
        self._link = link
        self._buffers = buffers
        self._slab_bytes = min(slab_bytes, buffers.num_bytes)
        self._is_running = False
        self._started_s = 0.0
        self._num_bytes = 0
        self._busy_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Over all times between `start` and the last byte after `stop`."""
        return self._num_bytes / self._busy_s

    def start(self) -> None:
        self._is_running = True
        self._started_s = self._link.now_s()
        for _ in range(_QUEUED_TRANSFERS):
            self._submit()

    def stop(self) -> None:
        """Raises LinkError: the link died."""
        self._is_running = False
        self._link.drain()
        self._busy_s += self._link.now_s() - self._started_s

    def _submit(self) -> None:
        self._link.submit(self._buffers.transfer(Direction.H2D, self._slab_bytes), self._on_done)

    def _on_done(self, handle: TransferHandle) -> None:
        """On the link's thread."""
        self._num_bytes += handle.transfer.num_bytes
        if self._is_running and handle.failed is None:
            self._submit()


def measure_interference(
    shape: StepShape,
    step: Callable[[], None],
    num_layers: int,
    busy: BusyLink,
    cap_bytes_per_s: float | None,
    budget_s: float,
    now_s: Callable[[], float],
    progress: Callable[[float], None],
) -> InterferencePoint:
    """Pairs of one step with the link idle and with the link busy.

    Raises:
        LinkError: the link died.
    """
    before_s = now_s()
    step()
    num_steps = max(1, round(_SAMPLE_S / max(now_s() - before_s, 1e-9)))
    quiet: list[float] = []
    slow: list[float] = []

    def timed() -> float:
        started_s = now_s()
        for _ in range(num_steps):
            step()
        return (now_s() - started_s) / num_steps / num_layers

    def pair() -> float:
        quiet.append(timed())
        busy.start()
        try:
            slow.append(timed())
        finally:
            busy.stop()
        return slow[-1]

    trials: list[Trial] = [pair]
    repeat_in_turn(trials, budget_s, now_s, progress)
    load = shape.load
    return InterferencePoint(
        load.num_tokens,
        load.num_sequences,
        load.num_context_tokens,
        cap_bytes_per_s,
        busy.bytes_per_s,
        tuple(quiet),
        tuple(slow),
    )
