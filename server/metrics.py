"""Everything that `GET /metrics` shows, in one private registry.

Requests are in `server.request_metrics`, the engine in `server.engine_metrics`; here are the HTTP responses, the event
loop, and the text format. Names begin with `headrace_`; the names that dashboards, autoscalers and gateways read from
vLLM are there too, with the label `model_name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric

from engine.messages import ClassFloorStats, KVTierStats, Ready, StepOutputs
from scheduler.slo import Outcome, SLOClasses
from server.engine_metrics import EngineMetrics
from server.histogram_edges import LOOP_LAG_S
from server.kv_tier_metrics import KVTierMetrics
from server.offload_metrics import OffloadMetrics
from server.request_metrics import RequestMetrics
from server.request_record import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_HANDLER = "none"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _WithoutCreated:
    """A registry without the `_created` series, which double every counter and histogram and which nobody reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """The server's metrics. Not thread-safe as a whole: called from the event loop alone.

    `handlers` are the route templates whose responses are told apart; a response of any other route counts under
    "none", so that no client can make new series.
    """

    def __init__(self, classes: SLOClasses, model_name: str, handlers: Iterable[str] = ()) -> None:
        self._registry = CollectorRegistry()
        self._requests = RequestMetrics(self._registry, classes, model_name)
        self._engine = EngineMetrics(self._registry, classes, model_name)
        self._offload = OffloadMetrics(self._registry, classes)
        self._kv_tiers = KVTierMetrics(self._registry)
        self._handlers = frozenset(handlers)
        self._responses = Counter(
            "headrace_http_responses",
            "HTTP responses by route, method and status.",
            ("handler", "method", "status"),
            registry=self._registry,
        )
        self._lost_log_lines = Counter(
            "headrace_request_log_lost_lines",
            "Lines of the request log that could not be written.",
            registry=self._registry,
        )
        self._loop_lag = Histogram(
            "headrace_event_loop_lag_seconds",
            "How late the event loop runs a timer: the longest a client may wait for nothing.",
            buckets=LOOP_LAG_S,
            registry=self._registry,
        )
        self._max_loop_lag = Gauge(
            "headrace_event_loop_lag_max_seconds", "The largest lag since the start.", registry=self._registry
        )
        self._max_loop_lag_s = 0.0

    @property
    def observer(self) -> RequestMetrics:
        """What a `RequestRecord` tells its tokens to."""
        return self._requests

    def observe_offered(self, record: RequestRecord) -> None:
        """A request whose class is known arrived."""
        self._requests.observe_offered(record)

    def finish(self, record: RequestRecord, outcome: Outcome) -> None:
        """A request is over and judged; called once for each."""
        self._requests.finish(record, outcome)

    def on_engine_ready(self, ready: Ready) -> None:
        """An engine process, the first or a later one, is ready."""
        self._engine.on_engine_ready(ready)
        self._offload.forget()
        self._kv_tiers.forget()
        if ready.offload is not None:
            self._offload.observe(ready.offload)
        if ready.kv_tiers is not None:
            self._observe_tiers(ready.kv_tiers)

    def on_engine_died(self) -> None:
        """The engine process is gone."""
        self._engine.on_engine_died()

    def on_step(self, outputs: StepOutputs) -> None:
        """One message of the engine."""
        self._engine.on_step(outputs)
        if outputs.stats.offload is not None:
            self._offload.observe(outputs.stats.offload)
        if outputs.stats.kv_tiers is not None:
            self._observe_tiers(outputs.stats.kv_tiers)

    def _observe_tiers(self, stats: KVTierStats) -> None:
        self._kv_tiers.observe(stats)
        self._offload.observe_kv_host_bytes(stats.num_host_slots * stats.block_bytes)

    def observe_http(self, handler: str | None, method: str, status: int) -> None:
        """A response began; `handler` is the matched route's template."""
        self._responses.labels(
            handler if handler in self._handlers else NO_HANDLER,
            method if method in _METHODS else "other",
            str(status) if 100 <= status <= 599 else "other",
        ).inc()

    def observe_lost_log_line(self) -> None:
        """A finished request is not in the request log."""
        self._lost_log_lines.inc()

    def observe_loop_lag(self, lag_s: float) -> None:
        """One measurement of the event loop's lag."""
        self._loop_lag.observe(lag_s)
        if lag_s > self._max_loop_lag_s:
            self._max_loop_lag_s = lag_s
            self._max_loop_lag.set(lag_s)

    def request_counts(self) -> dict[str, dict[str, int]]:
        """By class: offered, every outcome, promises kept and broken, since the start."""
        return self._requests.counts()

    def refusals(self) -> dict[str, dict[str, int]]:
        """By class asked for: requests refused or expired since the start, by reason, without those that nobody met."""
        return self._requests.refusals()

    @property
    def admission_margin(self) -> float | None:
        """Share of the time that promises leave unused; None where none are made, or while there is no engine."""
        return self._engine.admission_margin

    @property
    def admission(self) -> str | None:
        """The one in force: promise | caps; None before the engine was ready."""
        return self._engine.admission

    def waiting_by_class(self) -> dict[str, int]:
        """Choices that wait in the engine now, by class."""
        return self._engine.waiting_by_class()

    def class_floor(self, name: str) -> ClassFloorStats | None:
        """What the plan in force can promise a class; None where nothing is streamed."""
        return self._offload.floors.get(name)

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4 (`CONTENT_TYPE`)."""
        return generate_latest(_WithoutCreated(self._registry))
