"""A step with streamed layers, tick by tick: slow, and written apart from `offload.predict`, to compare with it.

Everything is a whole number of ticks. In each tick the link and the compute stream go on by one; between ticks
whatever may start starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class SlowStep:
    """Layers, a link and slots that are handed out in the order in which they become free."""

    def __init__(
        self,
        layer_ticks: Sequence[int],
        rest_ticks: int,
        load_ticks: Mapping[int, int],
        num_slots: int,
        restart_ticks: int,
    ) -> None:
        """
        Args:
            layer_ticks: of each layer, at least 1.
            rest_ticks: of what follows the last layer.
            load_ticks: of each streamed layer, at least 1.
        """
        self.layer_ticks, self.rest_ticks, self.load_ticks = layer_ticks, rest_ticks, load_ticks
        self.restart_ticks = restart_ticks
        self.now = 0
        self.ends: list[int] = []
        self.stalled = 0
        self._loads = sorted(load_ticks)
        self._free_since = [0] * num_slots  # times at which the free slots became free
        self._link_idle_since = 0
        self._loading: tuple[int, int] | None = None  # step and layer
        self._loading_left = 0
        self._next_load = (0, self._loads[0]) if self._loads else None
        self._ready: set[tuple[int, int]] = set()
        self._step, self._layer = 0, 0  # the layer that computes, or waits to
        self._computing_left: int | None = None

    def run(self, num_steps: int) -> list[int]:
        """When each of the first steps has ended."""
        while len(self.ends) < num_steps:
            while self._start_something():
                pass
            if len(self.ends) >= num_steps:
                break
            self._tick()
        return self.ends[:num_steps]

    def _start_something(self) -> bool:
        return self._start_load() or self._start_layer() or self._end_step()

    def _start_load(self) -> bool:
        if self._loading is not None or self._next_load is None or not self._free_since:
            return False
        since = min(self._free_since)
        self._free_since.remove(since)
        step, layer = self._loading = self._next_load
        self._loading_left = self.load_ticks[layer] + (self.restart_ticks if since > self._link_idle_since else 0)
        later = [other for other in self._loads if other > layer]
        self._next_load = (step, later[0]) if later else (step + 1, self._loads[0])
        return True

    def _start_layer(self) -> bool:
        if self._computing_left is not None or self._layer == len(self.layer_ticks):
            return False
        if self._layer in self.load_ticks and (self._step, self._layer) not in self._ready:
            return False
        self._computing_left = self.layer_ticks[self._layer]
        return True

    def _end_step(self) -> bool:
        if self._layer < len(self.layer_ticks):
            return False
        if self._computing_left is None:
            self._computing_left = self.rest_ticks
        if self._computing_left > 0:
            return False
        self.ends.append(self.now)
        self._step, self._layer, self._computing_left = self._step + 1, 0, None
        return True

    def _tick(self) -> None:
        self.now += 1
        if self._loading is not None:
            self._loading_left -= 1
            if self._loading_left == 0:
                self._ready.add(self._loading)
                self._loading, self._link_idle_since = None, self.now
        if self._computing_left is None:
            self.stalled += 1
            return
        self._computing_left -= 1
        if self._computing_left == 0 and self._layer < len(self.layer_ticks):
            if self._layer in self.load_ticks:
                self._ready.remove((self._step, self._layer))
                self._free_since.append(self.now)
            self._layer, self._computing_left = self._layer + 1, None
