"""Prometheus metrics of the engine, from the statistics that each step's message carries.

The engine counts from 0 whenever its process starts; what is exported is the sum over its lives, so that a restart
never makes a counter fall.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine.messages import Ready, StepOutputs, StepStats
from scheduler.slo import SLOClasses
from server.histogram_edges import ERROR_RATIO, OVERHEAD_S, STEP_S

_TIERS = ("device", "host", "disk")
_RESTORES = ("swap", "recompute", "free")
_COUNTED = (
    "prompt_tokens_computed",
    "prompt_tokens_cached",
    "recomputed_tokens",
    "generation_tokens",
    "wasted_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_promises_kept",
    "num_promises_broken",
)
"""Fields of `StepStats` that count since the engine started."""


class EngineMetrics:
    """Counters and gauges of one engine, through all its lives."""

    def __init__(self, registry: CollectorRegistry, classes: SLOClasses, model_name: str) -> None:
        self._model_name = model_name
        self._names = classes.names
        self._last_counts: dict[str, int] = {}
        self._last_step_id: int | None = None
        self.admission_margin: float | None = None
        """Of now; None: no promises are made, or there is no engine."""
        self.admission: str | None = None
        """The one in force: promise | caps; None: no engine was ready yet."""
        self._num_starts = 0
        self._registry = registry
        self._make_counters(registry)
        self._make_gauges(registry)
        self._step = Histogram("headrace_step_seconds", "Duration of a step.", buckets=STEP_S, registry=registry)
        self._overhead = Histogram(
            "headrace_engine_overhead_seconds",
            "Of a step, the engine's own Python: schedule, update and messages.",
            buckets=OVERHEAD_S,
            registry=registry,
        )
        self._predicted = Histogram(
            "headrace_predicted_step_seconds",
            "What the latency model expected of a step; beside headrace_step_seconds.",
            buckets=STEP_S,
            registry=registry,
        )
        self._error = Histogram(
            "headrace_step_prediction_error_ratio",
            "|predicted - measured| / measured of a step, where steps are predicted.",
            buckets=ERROR_RATIO,
            registry=registry,
        )
        self._budget = Histogram(
            "headrace_step_budget_seconds",
            "Time until the tightest deadline of a step: what prefill beside decodes may fill.",
            buckets=STEP_S,
            registry=registry,
        )
        self._reasons = Counter(
            "headrace_steps_limited",
            "Steps that left something out, by why; a step can have several reasons.",
            ("reason",),
            registry=registry,
        )
        for name in self._names:
            self._waiting.labels(name)

    def _make_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, registry=registry)

        def alias(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, ("model_name",), registry=registry).labels(self._model_name)

        prompt = Counter(
            "headrace_prompt_tokens",
            "Prompt tokens by where their keys and values came from.",
            ("source",),
            registry=registry,
        )
        vllm_prompt = alias("prompt_tokens", "Prompt tokens, cached ones included.")
        tier_hits = Counter(
            "headrace_kv_tier_hit_tokens",
            "Prompt tokens found in the prefix cache, by the tier that held their blocks.",
            ("tier",),
            registry=registry,
        )
        preemptions = Counter(
            "headrace_preemptions",
            "Requests that lost their blocks to another one, by what brings these back: swap (stored for that), free "
            "(stored before) or recompute.",
            ("restore",),
            registry=registry,
        )
        generated = counter("headrace_generation_tokens", "Tokens sampled.")
        wasted = counter(
            "headrace_wasted_tokens", "Tokens sampled and dropped: past a stop string, or of an aborted choice."
        )
        queries = counter("headrace_prefix_cache_queries_tokens", "Prompt tokens looked up in the prefix cache.")
        hits = counter("headrace_prefix_cache_hits_tokens", "Prompt tokens found there.")
        self._counters: dict[str, tuple[Counter, ...]] = {
            "prompt_tokens_computed": (prompt.labels("compute"), vllm_prompt),
            "prompt_tokens_cached": (vllm_prompt,),
            **{_hit(tier): (prompt.labels(_hit(tier)), tier_hits.labels(tier)) for tier in _TIERS},
            "recomputed_tokens": (prompt.labels("recompute"),),
            "generation_tokens": (generated, alias("generation_tokens", "As headrace_generation_tokens_total.")),
            "wasted_tokens": (wasted,),
            "num_preemptions": (alias("num_preemptions", "headrace_preemptions_total over all restores."),),
            **{_preempted(restore): (preemptions.labels(restore),) for restore in _RESTORES},
            "prefix_cache_queries": (queries, alias("prefix_cache_queries", "Tokens looked up.")),
            "prefix_cache_hits": (hits, alias("prefix_cache_hits", "Tokens found.")),
        }
        promises = Counter(
            "headrace_scheduler_promises",
            "Promises by whether they were kept on the scheduler's own clock: what the margin follows.",
            ("kept",),
            registry=registry,
        )
        self._counters["num_promises_kept"] = (promises.labels("true"),)
        self._counters["num_promises_broken"] = (promises.labels("false"),)
        self._restarts = counter("headrace_engine_restarts", "Starts of the engine after the first.")

    def _make_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        def alias(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, ("model_name",), registry=registry).labels(self._model_name)

        self._ready = gauge("headrace_engine_ready", "1 while the engine serves, 0 while it starts or is dead.")
        self._running = (
            gauge("headrace_requests_running", "Choices that hold KV blocks."),
            alias("num_requests_running", "As headrace_requests_running."),
        )
        self._waiting = Gauge(
            "headrace_requests_waiting", "Choices that wait for their start or restart.", ("slo_class",),
            registry=registry,
        )  # fmt: skip
        self._vllm_waiting = alias("num_requests_waiting", "headrace_requests_waiting over all classes.")
        self._usage = (
            gauge("headrace_kv_cache_usage_ratio", "Share of the KV blocks that requests hold, 0..1."),
            alias("kv_cache_usage_perc", "As headrace_kv_cache_usage_ratio."),
        )
        self._blocks = Gauge("headrace_kv_cache_blocks", "KV blocks by state.", ("state",), registry=registry)
        for state in ("total", "used", "cached"):
            self._blocks.labels(state)
        self._margin = Gauge(
            "headrace_admission_margin",
            "Share of the time that promises leave unused; follows how many are kept. Absent where none are made.",
            registry=None,
        )
        self._threads = gauge("headrace_engine_compute_threads", "Threads that compute a step.")
        self._cache_config = Gauge(
            "vllm:cache_config_info",
            "1; the labels tell the size of the KV cache.",
            ("model_name", "block_size", "num_gpu_blocks"),
            registry=registry,
        )

    def on_engine_ready(self, ready: Ready) -> None:
        """An engine process, the first or a later one, is ready; its counters begin at 0."""
        self._num_starts += 1
        if self._num_starts > 1:
            self._restarts.inc()
        self._forget()
        self.admission = ready.admission
        self._set_margin(ready.promise_margin)
        self._ready.set(1)
        self._threads.set(ready.threads)
        self._blocks.labels("total").set(ready.num_blocks)
        self._cache_config.clear()
        self._cache_config.labels(self._model_name, str(ready.block_size), str(ready.num_blocks)).set(1)

    def on_engine_died(self) -> None:
        """The engine process is gone, and with it everything that ran or waited in it."""
        self._forget()
        self._set_margin(None)
        self._ready.set(0)
        self._set_gauges(num_running=0, waiting={}, num_waiting=0, usage=0.0)
        for state in ("used", "cached"):
            self._blocks.labels(state).set(0)

    def on_step(self, outputs: StepOutputs) -> None:
        """One message of the engine."""
        stats = outputs.stats
        if self._last_step_id is not None and stats.step_id < self._last_step_id:
            self._forget()  # a new engine whose start nobody told us of
        self._add_counts(stats)
        self._set_margin(stats.promise_margin)
        self._set_gauges(
            num_running=stats.num_running,
            waiting=stats.num_waiting_by_class,
            num_waiting=stats.num_waiting,
            usage=stats.num_blocks_used / stats.num_blocks if stats.num_blocks else 0.0,
        )
        for state, blocks in (
            ("total", stats.num_blocks),
            ("used", stats.num_blocks_used),
            ("cached", stats.num_cached_blocks),
        ):
            self._blocks.labels(state).set(blocks)
        if stats.step_id != self._last_step_id:  # else a turn of the loop that computed nothing
            self._step.observe(stats.step_s)
            self._overhead.observe(stats.overhead_s)
            self._observe_prediction(stats)
            self._observe_limits(stats)
        self._last_step_id = stats.step_id

    def waiting_by_class(self) -> dict[str, int]:
        """Choices that wait now, by class."""
        samples = [sample for metric in self._waiting.collect() for sample in metric.samples]
        return {sample.labels["slo_class"]: int(sample.value) for sample in samples}

    def _observe_prediction(self, stats: StepStats) -> None:
        if stats.predicted_s is None or stats.step_s <= 0.0:
            return
        self._predicted.observe(stats.predicted_s)
        self._error.observe(abs(stats.predicted_s / stats.step_s - 1.0))

    def _observe_limits(self, stats: StepStats) -> None:
        if stats.budget_s is not None:
            self._budget.observe(stats.budget_s)
        for reason in stats.reasons:
            self._reasons.labels(reason).inc()

    def _set_margin(self, margin: float | None) -> None:
        """0 would be a margin: without one there is no sample."""
        if margin is not None:
            self._margin.set(margin)
        if self.admission_margin is None and margin is not None:
            self._registry.register(self._margin)
        elif self.admission_margin is not None and margin is None:
            self._registry.unregister(self._margin)
        self.admission_margin = margin

    def _forget(self) -> None:
        self._last_counts = {}
        self._last_step_id = None

    def _add_counts(self, stats: StepStats) -> None:
        counts = _counts(stats)
        for name, counters in self._counters.items():
            count, last = counts[name], self._last_counts.get(name, 0)
            for counter in counters:
                counter.inc(count - last if count >= last else count)
        self._last_counts = counts

    def _set_gauges(self, *, num_running: int, waiting: dict[str, int], num_waiting: int, usage: float) -> None:
        for gauge in self._running:
            gauge.set(num_running)
        for name in self._names:
            self._waiting.labels(name).set(waiting.get(name, 0))
        self._vllm_waiting.set(num_waiting)
        for gauge in self._usage:
            gauge.set(usage)


def _hit(tier: str) -> str:
    return f"{tier}_hit"


def _preempted(restore: str) -> str:
    return f"preempted_{restore}"


def _counts(stats: StepStats) -> dict[str, int]:
    """What counts since the engine started; without tiers every hit is on the device, and what left is recomputed."""
    tiers = stats.kv_tiers
    hits = {"device": stats.prompt_tokens_cached} if tiers is None else tiers.hit_tokens
    preemptions = {"recompute": stats.num_preemptions} if tiers is None else tiers.num_preemptions
    counts: dict[str, int] = {name: getattr(stats, name) for name in _COUNTED}
    counts |= {_hit(tier): hits.get(tier, 0) for tier in _TIERS}
    return counts | {_preempted(restore): preemptions.get(restore, 0) for restore in _RESTORES}
