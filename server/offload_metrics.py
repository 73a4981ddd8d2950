"""Prometheus metrics of streamed weights and of device memory, from the statistics that each step's message carries."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from engine.messages import ClassFloorStats, LinkDirectionStats, OffloadStats
from scheduler.slo import SLOClasses

_KINDS_OF_CLASS = {
    "weights": ("weights", "weights"),
    "kv_load": ("kv", "kv"),
    "kv_store": ("kv", "kv"),
    "background": ("weights", "kv"),
}
"""What a class of transfers moves, by direction. In the background weights come back, and KV blocks are stored."""
_DIRECTIONS = ("h2d", "d2h")
_KINDS = ("kv", "weights")


class OffloadMetrics:
    """Of one engine, through all its lives: what counts from 0 again after a restart goes on here.

    Nothing is exported but zeros while no weights are streamed.
    """

    def __init__(self, registry: CollectorRegistry, classes: SLOClasses) -> None:
        self._names = classes.names
        self._last: dict[tuple[str, ...], float] = {}
        self.floors: dict[str, ClassFloorStats] = {}
        """By class, of the plan in force; empty where nothing is streamed."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headrace_offload_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_{name}", text, labels, registry=registry)

        self._bytes = counter("bytes", "Copied between device and host.", "direction", "kind")
        self._busy = counter("link_busy_seconds", "The link was busy with copies.", "direction", "kind")
        self._late = counter("late_slices", "Slices slower than the bandwidth in force predicted.", "direction", "kind")
        self._failed = counter("failed_copies", "Copies that failed.", "direction", "kind")
        self._drops = counter("link_drops", "Sudden drops of the bandwidth that were noticed.", "direction")
        self._totals = {
            "num_loads": counter("weight_loads", "Copies of a layer's weights that steps used."),
            "hidden_s": counter("hidden_seconds", "Of these copies, the time under computation."),
            "exposed_s": counter("exposed_seconds", "And the time that computation waited for them."),
            "compute_s": counter("compute_seconds", "Computing in steps, the waiting for copies apart."),
            "quiet_compute_s": counter(
                "quiet_compute_seconds", "What the record says of these steps while nothing is copied."
            ),
            "num_replans": counter("replans", "Plans made anew because the link changed."),
        }
        self._moves = counter("layer_moves", "Layers that went to the host or came back.", "to")
        self._layers = gauge("offload_layers", "Decoder layers by where they are.", "place")
        self._bandwidth = gauge("offload_link_bytes_per_second", "Measured.", "direction", "quantile")
        self._memory = gauge("device_memory_bytes", "Device memory by owner; adds up to the cap.", "owner")
        self._host = gauge("host_memory_bytes", "Host memory by owner.", "owner")
        self._open = gauge(
            "class_open", "1: the class takes requests; 0: closed, its targets cannot be met.", "slo_class"
        )
        self._best_effort = gauge("class_best_effort", "1: served, but its targets cannot be met.", "slo_class")
        self._floor = gauge("class_floor_seconds", "The fastest that the memory allows.", "slo_class", "target")
        for direction in _DIRECTIONS:
            for kind in _KINDS:
                self._bytes.labels(direction, kind)
        for name in self._names:
            self._open.labels(name).set(1)
            self._best_effort.labels(name).set(0)

    def forget(self) -> None:
        """The engine's counters begin at 0 again."""
        self._last.clear()

    def observe(self, stats: OffloadStats) -> None:
        """The statistics of one step."""
        for direction, one in zip(_DIRECTIONS, (stats.h2d, stats.d2h), strict=True):
            self._observe_link(direction, one)
        for name, counter in self._totals.items():
            counter.inc(self._growth((name,), getattr(stats, name)))
        self._moves.labels("host").inc(self._growth(("raised",), stats.num_raised))
        self._moves.labels("device").inc(self._growth(("lowered",), stats.num_lowered))
        self._layers.labels("host").set(stats.num_streamed_layers)
        self._layers.labels("device").set(stats.num_layers - stats.num_streamed_layers)
        for owner, num_bytes in stats.ledger.items():
            self._memory.labels(owner).set(num_bytes)
        self._host.labels("weights").set(stats.host_bytes)
        self.floors = {floor.name: floor for floor in stats.classes}
        for floor in stats.classes:
            self._open.labels(floor.name).set(floor.is_open)
            self._best_effort.labels(floor.name).set(floor.is_best_effort)
            self._floor.labels(floor.name, "ttft").set(floor.floor_ttft_s)
            self._floor.labels(floor.name, "tpot").set(floor.floor_tpot_s)

    def observe_kv_host_bytes(self, num_bytes: int) -> None:
        """Host memory that KV blocks have."""
        self._host.labels("kv").set(num_bytes)

    def _observe_link(self, direction: str, stats: LinkDirectionStats) -> None:
        for counter, values in (
            (self._bytes, stats.num_bytes),
            (self._busy, stats.busy_s),
            (self._late, stats.num_late_slices),
            (self._failed, stats.num_failed),
        ):
            for transfer_class, value in values.items():
                key = (str(counter), direction, transfer_class)
                kind = _KINDS_OF_CLASS[transfer_class][_DIRECTIONS.index(direction)]
                counter.labels(direction, kind).inc(self._growth(key, value))
        self._drops.labels(direction).inc(self._growth(("drops", direction), stats.num_drops))
        self._bandwidth.labels(direction, "p50").set(stats.p50_bytes_per_s)
        self._bandwidth.labels(direction, "p5").set(stats.p5_bytes_per_s)

    def _growth(self, key: tuple[str, ...], value: float) -> float:
        last = self._last.get(key, 0.0)
        self._last[key] = value
        return value - last if value >= last else value
