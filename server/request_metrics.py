"""Prometheus metrics of requests: what was offered in each latency class, what came of it, and how long it took.

Every label pair exists from the start, since Prometheus sees no increase in a series that begins at 1. The label
`slo_class` is the class asked for; promises alone are counted by the class granted.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scheduler.output import RefusalReason
from scheduler.slo import Outcome, SLOClass, SLOClasses
from server.histogram_edges import LATENCY_S, TOKEN_S, TTFT_S, with_targets
from server.request_record import End, RequestRecord
from server.slo_verdict import measure, promise_kept

OTHER_REASON = "other"
REFUSAL_REASONS = (
    *(reason.value for reason in RefusalReason),
    "context_length",
    "engine_unavailable",
    "server_full",
    "text_timeout",
    OTHER_REASON,
)
"""Label values of `headrace_requests_refused_total`; any other reason counts as the last."""
_FINISH_REASONS = ("stop", "length", "abort", "error")
_LOST_CHOICE = {End.CANCELLED: "abort", End.FAILED: "error"}
"""Finish reason of a choice that never got one, by how its request ended."""


class RequestMetrics:
    """Counts requests as they come and go; a `RecordObserver`."""

    def __init__(self, registry: CollectorRegistry, classes: SLOClasses, model_name: str) -> None:
        self._classes = classes
        by_class = ("slo_class",)
        self._offered = Counter(
            "headrace_requests_offered", "Requests whose class is known.", by_class, registry=registry
        )
        self._outcomes = Counter(
            "headrace_requests_slo",
            "Finished requests by class asked for and outcome.",
            ("slo_class", "outcome"),
            registry=registry,
        )
        self._tokens = Counter(
            "headrace_requests_slo_tokens",
            "Tokens that finished requests were handed, by class asked for and outcome; those of met are goodput.",
            ("slo_class", "outcome"),
            registry=registry,
        )
        self._promises = Counter(
            "headrace_promises",
            "Admitted requests by class granted, and whether the targets told at admission were kept.",
            ("slo_class", "kept"),
            registry=registry,
        )
        self._refused = Counter(
            "headrace_requests_refused",
            "Requests refused or expired before they started.",
            ("slo_class", "reason"),
            registry=registry,
        )
        self._make_histograms(registry)
        self._make_aliases(registry, model_name)
        self._export_classes(registry)
        for c in classes:
            self._create_series(c.name)

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, edges: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ("slo_class",), buckets=edges, registry=registry)

        classes = tuple(self._classes)
        tpot_edges = with_targets(TOKEN_S, [t for c in classes for t in (c.tpot_s, c.max_stall_s)])
        queue_edges = with_targets(LATENCY_S, [t for c in classes for t in (c.ttft_base_s, c.max_wait_s)])
        self._ttft = histogram(
            "headrace_ttft_seconds",
            "Body read to first token handed to the socket; of several choices the last to start.",
            with_targets(TTFT_S, [c.ttft_base_s for c in classes]),
        )
        self._tpot = histogram(
            "headrace_tpot_seconds", "(t_last - t_first) / (n - 1) of completed requests; the worst choice.", tpot_edges
        )
        self._gaps = histogram(
            "headrace_inter_token_seconds", "Gap before each token after the first; n tokens share a gap.", tpot_edges
        )
        self._queue = histogram("headrace_queue_seconds", "Body read to admission.", queue_edges)
        self._e2e = histogram("headrace_e2e_seconds", "Body read to last token, of completed requests.", queue_edges)

    def _make_aliases(self, registry: CollectorRegistry, model_name: str) -> None:
        def histogram(name: str, text: str, edges: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"vllm:{name}_seconds", text, ("model_name",), buckets=edges, registry=registry)
            return metric.labels(model_name)

        ttft_edges = with_targets(TTFT_S, [c.ttft_base_s for c in self._classes])
        token_edges = with_targets(TOKEN_S, [c.tpot_s for c in self._classes])
        self._vllm_ttft = histogram("time_to_first_token", "Under vLLM's name: headrace_ttft_seconds.", ttft_edges)
        self._vllm_gaps = histogram("inter_token_latency", "As headrace_inter_token_seconds.", token_edges)
        self._vllm_e2e = histogram("e2e_request_latency", "As headrace_e2e_seconds.", LATENCY_S)
        self._vllm_queue = histogram("request_queue_time", "As headrace_queue_seconds.", LATENCY_S)
        success = Counter(
            "vllm:request_success", "Ended choices by reason.", ("model_name", "finished_reason"), registry=registry
        )
        self._success = {reason: success.labels(model_name, reason) for reason in _FINISH_REASONS}

    def _export_classes(self, registry: CollectorRegistry) -> None:
        targets = Gauge(
            "headrace_slo_target_seconds", "Targets and limits of the classes.", ("slo_class", "slo"), registry=registry
        )
        objective = Gauge(
            "headrace_slo_objective_ratio",
            "Share of requests that should meet them.",
            ("slo_class",),
            registry=registry,
        )
        for c in self._classes:
            objective.labels(c.name).set(c.objective)
            for slo, target_s in _exported_targets(c).items():
                if target_s is not None:
                    targets.labels(c.name, slo).set(target_s)

    def _create_series(self, name: str) -> None:
        for metric in (self._ttft, self._tpot, self._gaps, self._queue, self._e2e):
            metric.labels(name)
        self._offered.labels(name)
        for outcome in Outcome:
            self._outcomes.labels(name, outcome.value)
            self._tokens.labels(name, outcome.value)
        for kept in ("true", "false"):
            self._promises.labels(name, kept)
        for reason in REFUSAL_REASONS:
            self._refused.labels(name, reason)

    def on_admitted(self, record: RequestRecord, queue_s: float) -> None:
        self._queue.labels(record.slo.requested).observe(queue_s)
        self._vllm_queue.observe(queue_s)

    def on_first_tokens(self, record: RequestRecord, ttft_s: float) -> None:
        self._ttft.labels(record.slo.requested).observe(ttft_s)
        self._vllm_ttft.observe(ttft_s)

    def on_gap(self, record: RequestRecord, gap_s: float, num_tokens: int) -> None:
        by_class = self._gaps.labels(record.slo.requested)
        for _ in range(num_tokens):
            by_class.observe(gap_s / num_tokens)
            self._vllm_gaps.observe(gap_s / num_tokens)

    def observe_offered(self, record: RequestRecord) -> None:
        """A request whose class is known arrived."""
        self._offered.labels(record.slo.requested).inc()

    def finish(self, record: RequestRecord, outcome: Outcome) -> None:
        """A request is over and judged; called once for each."""
        requested = record.slo.requested
        self._outcomes.labels(requested, outcome.value).inc()
        self._tokens.labels(requested, outcome.value).inc(sum(choice.num_tokens for choice in record.choices))
        kept = promise_kept(record, self._classes)
        if kept is not None and record.granted is not None:
            self._promises.labels(record.granted, str(kept).lower()).inc()
        if record.end in (End.REFUSED, End.EXPIRED):
            reason = RefusalReason.EXPIRED.value if record.end is End.EXPIRED else record.reason
            self._refused.labels(requested, reason if reason in REFUSAL_REASONS else OTHER_REASON).inc()
        elif record.end is not None:
            self._finish_choices(record, record.end)
        if record.end is End.COMPLETED:
            self._observe_completed(record)

    def _finish_choices(self, record: RequestRecord, end: End) -> None:
        for choice in record.choices:
            reason = choice.finish_reason or _LOST_CHOICE.get(end, "error")
            self._success[reason if reason in self._success else "stop"].inc()

    def _observe_completed(self, record: RequestRecord) -> None:
        measured = measure(record)
        self._e2e.labels(record.slo.requested).observe(measured.e2e_s)
        self._vllm_e2e.observe(measured.e2e_s)
        if measured.tpot_s is not None:
            self._tpot.labels(record.slo.requested).observe(measured.tpot_s)

    def counts(self) -> dict[str, dict[str, int]]:
        """By class asked for: `offered` and every outcome. By class granted: `promises_kept`, `promises_broken`."""
        table: dict[str, dict[str, int]] = {name: {} for name in self._classes.names}
        for labels, count in _totals(self._offered):
            table[labels["slo_class"]]["offered"] = count
        for labels, count in _totals(self._outcomes):
            table[labels["slo_class"]][labels["outcome"]] = count
        for labels, count in _totals(self._promises):
            table[labels["slo_class"]]["promises_kept" if labels["kept"] == "true" else "promises_broken"] = count
        return table

    def refusals(self) -> dict[str, dict[str, int]]:
        """By class asked for: the reasons that were met, and how often."""
        table: dict[str, dict[str, int]] = {name: {} for name in self._classes.names}
        for labels, count in _totals(self._refused):
            if count:
                table[labels["slo_class"]][labels["reason"]] = count
        return table


def _totals(counter: Counter) -> list[tuple[dict[str, str], int]]:
    """The labels and the value of each of a counter's series."""
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    return [(sample.labels, int(sample.value)) for sample in samples if sample.name.endswith("_total")]


def _exported_targets(slo_class: SLOClass) -> dict[str, float | None]:
    return {
        "ttft_base": slo_class.ttft_base_s,
        "ttft_per_1k_tokens": slo_class.ttft_per_1k_tokens_s,
        "tpot": slo_class.tpot_s,
        "max_stall": slo_class.max_stall_s,
        "max_wait": slo_class.max_wait_s,
    }
