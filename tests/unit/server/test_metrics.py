"""What /metrics shows: complete from the start, monotonic through restarts, bounded whatever clients send."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import GroupAdmitted, Ready, StepOutputs, StepStats
from scheduler.slo import SLO, Outcome, SLOClasses
from server.metrics import Metrics
from server.request_ledger import RequestLedger
from server.request_metrics import REFUSAL_REASONS
from server.request_record import End
from server.slo_report import build_slo_report

CLASSES = SLOClasses()
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _samples(metrics: Metrics) -> Samples:
    """Every sample of the text that /metrics serves, read back by Prometheus' own parser."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def _value(from_: Metrics | Samples, name: str, **labels: str) -> float:
    samples = _samples(from_) if isinstance(from_, Metrics) else from_
    return samples[name, frozenset(labels.items())]


def _stats(step_id: int, margin: float | None = None, **counts: int) -> StepOutputs:
    values = dict.fromkeys(
        (
            "num_running", "num_waiting", "num_blocks_used", "num_cached_blocks", "prompt_tokens_computed",
            "prompt_tokens_cached", "recomputed_tokens", "generation_tokens", "wasted_tokens", "num_preemptions",
            "prefix_cache_queries", "prefix_cache_hits",
        ),
        0,
    )  # fmt: skip
    waiting = {"batch": counts["num_waiting"]} if "num_waiting" in counts else {}
    return StepOutputs(
        stats=StepStats(
            step_id=step_id,
            step_s=0.02,
            overhead_s=0.0004,
            predicted_s=None,
            num_waiting_by_class=waiting,
            num_blocks=100,
            promise_margin=margin,
            **{**values, **counts},
        )
    )


def _ready() -> Ready:
    return Ready(
        max_model_len=2048, model_max_len=2048, vocab_size=100, eos_token_ids=(0,), block_size=16, num_blocks=100,
        dtype="float32", device="cpu", weights_bytes=1, kv_cache_bytes=1, threads=1, load_s=1.0,
    )  # fmt: skip


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CLASSES, "tiny", handlers=["/v1/models"])


def test_all_label_pairs_exist_from_the_start(metrics: Metrics) -> None:
    samples = _samples(metrics)
    for name in CLASSES.names:
        for outcome in Outcome:
            labels = frozenset({("slo_class", name), ("outcome", outcome.value)})
            assert samples["headrace_requests_slo_total", labels] == 0.0
            assert samples["headrace_requests_slo_tokens_total", labels] == 0.0
        for kept in ("true", "false"):
            assert samples["headrace_promises_total", frozenset({("slo_class", name), ("kept", kept)})] == 0.0
        for reason in REFUSAL_REASONS:
            labels = frozenset({("slo_class", name), ("reason", reason)})
            assert samples["headrace_requests_refused_total", labels] == 0.0
        for histogram in ("ttft", "tpot", "inter_token", "queue", "e2e"):
            assert samples[f"headrace_{histogram}_seconds_count", frozenset({("slo_class", name)})] == 0.0
        assert samples["headrace_requests_offered_total", frozenset({("slo_class", name)})] == 0.0
        assert samples["headrace_requests_waiting", frozenset({("slo_class", name)})] == 0.0
    for source in ("compute", "device_hit", "host_hit", "disk_hit", "recompute"):
        assert samples["headrace_prompt_tokens_total", frozenset({("source", source)})] == 0.0
    for restore in ("swap", "free", "recompute"):
        assert samples["headrace_preemptions_total", frozenset({("restore", restore)})] == 0.0


def test_predicted_steps_are_shown_beside_measured_ones(metrics: Metrics) -> None:
    for step_id, predicted_s in enumerate((None, 0.025, 0.015, 0.02)):
        outputs = _stats(step_id)
        metrics.on_step(
            msgspec.structs.replace(outputs, stats=msgspec.structs.replace(outputs.stats, predicted_s=predicted_s))
        )
    samples = _samples(metrics)
    assert _value(samples, "headrace_step_seconds_count") == 4
    assert _value(samples, "headrace_predicted_step_seconds_count") == 3
    assert _value(samples, "headrace_predicted_step_seconds_sum") == pytest.approx(0.06)
    assert _value(samples, "headrace_step_prediction_error_ratio_bucket", le="0.01") == 1
    assert _value(samples, "headrace_step_prediction_error_ratio_bucket", le="0.3") == 3


def test_what_bounds_a_step_is_shown(metrics: Metrics) -> None:
    for step_id, (budget_s, reasons) in enumerate(((None, ()), (0.03, ("no_time",)), (0.2, ("no_time", "no_seat")))):
        outputs = _stats(step_id)
        stats = msgspec.structs.replace(outputs.stats, budget_s=budget_s, reasons=reasons)
        metrics.on_step(msgspec.structs.replace(outputs, stats=stats))
    samples = _samples(metrics)
    assert _value(samples, "headrace_step_budget_seconds_count") == 2
    assert _value(samples, "headrace_step_budget_seconds_sum") == pytest.approx(0.23)
    assert _value(samples, "headrace_steps_limited_total", reason="no_time") == 2
    assert _value(samples, "headrace_steps_limited_total", reason="no_seat") == 1


def test_vllms_names_are_there(metrics: Metrics) -> None:
    metrics.on_engine_ready(_ready())
    samples = _samples(metrics)
    model = ("model_name", "tiny")
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count", "vllm:request_queue_time_seconds_count",
    ):  # fmt: skip
        assert samples[name, frozenset({model})] == 0.0
    for reason in ("stop", "length", "abort", "error"):
        assert samples["vllm:request_success_total", frozenset({model, ("finished_reason", reason)})] == 0.0
    info = frozenset({model, ("block_size", "16"), ("num_gpu_blocks", "100")})
    assert samples["vllm:cache_config_info", info] == 1.0


def test_targets_and_objectives_are_gauges(metrics: Metrics) -> None:
    assert _value(metrics, "headrace_slo_target_seconds", slo_class="interactive", slo="ttft_base") == 1.0
    assert _value(metrics, "headrace_slo_target_seconds", slo_class="interactive", slo="tpot") == 0.05
    assert _value(metrics, "headrace_slo_objective_ratio", slo_class="batch") == 0.9
    labels = frozenset({("slo_class", "batch"), ("slo", "max_stall")})
    assert ("headrace_slo_target_seconds", labels) not in _samples(metrics)


def test_each_classs_targets_are_bucket_edges() -> None:
    odd = dataclasses.replace(CLASSES.get("standard"), ttft_base_s=1.234, tpot_s=0.0567, max_wait_s=77.7)
    samples = _samples(Metrics(SLOClasses((odd,), "standard"), "tiny"))
    for name, edge in (("ttft", "1.234"), ("tpot", "0.0567"), ("queue", "77.7"), ("e2e", "77.7")):
        labels = frozenset({("slo_class", "standard"), ("le", edge)})
        assert (f"headrace_{name}_seconds_bucket", labels) in samples


def test_created_series_are_left_out(metrics: Metrics) -> None:
    assert b"_created" not in metrics.render()


def _admitted(granted: str) -> GroupAdmitted:
    return GroupAdmitted(group_id="g", granted=granted, num_cached_tokens=0, ttft_target_s=1.0, tpot_target_s=0.05)


def test_one_requests_life_in_the_metrics(metrics: Metrics) -> None:
    ledger = RequestLedger(CLASSES, metrics)
    record = ledger.open("r", SLO("interactive", "interactive"), 10.0, 1)
    assert _value(metrics, "headrace_requests_offered_total", slo_class="interactive") == 1.0
    record.admitted(_admitted("interactive"), 10.25)
    record.token(0, 10.5)
    assert _value(metrics, "headrace_ttft_seconds_sum", slo_class="interactive") == 0.5
    record.token(0, 10.5625, n=2)
    record.token(0, 10.59375)
    record.choice_finished(0, "length")
    ledger.check()
    assert ledger.num_live == 1
    assert ledger.close(record, End.COMPLETED, 10.6) is Outcome.MET
    ledger.check()
    assert ledger.num_live == 0

    samples = _samples(metrics)
    assert _value(samples, "headrace_requests_slo_total", slo_class="interactive", outcome="met") == 1.0
    assert _value(samples, "headrace_promises_total", slo_class="interactive", kept="true") == 1.0
    assert _value(samples, "headrace_queue_seconds_sum", slo_class="interactive") == 0.25
    assert _value(samples, "headrace_tpot_seconds_sum", slo_class="interactive") == 0.03125
    assert _value(samples, "headrace_e2e_seconds_sum", slo_class="interactive") == 0.59375
    assert _value(samples, "headrace_inter_token_seconds_count", slo_class="interactive") == 3.0
    assert _value(samples, "headrace_inter_token_seconds_sum", slo_class="interactive") == 0.09375
    assert _value(samples, "headrace_inter_token_seconds_bucket", slo_class="interactive", le="0.05") == 3.0
    for name, seconds in (
        ("time_to_first_token", 0.5),
        ("inter_token_latency", 0.09375),
        ("e2e_request_latency", 0.59375),
        ("request_queue_time", 0.25),
    ):
        assert _value(samples, f"vllm:{name}_seconds_sum", model_name="tiny") == seconds
    assert _value(samples, "vllm:request_success_total", model_name="tiny", finished_reason="length") == 1.0


def test_tokens_count_under_the_outcome_of_their_request(metrics: Metrics) -> None:
    """Of all choices; those of met requests are goodput."""
    ledger = RequestLedger(CLASSES, metrics)
    for first_s, num_tokens in ((0.5, (3, 2)), (9.0, (1, 6))):  # a met one and a late one
        record = ledger.open("r", SLO("interactive", "interactive"), 0.0, 2)
        record.admitted(_admitted("interactive"), 0.25)
        for choice, n in enumerate(num_tokens):
            record.token(choice, first_s, n=n)
            record.choice_finished(choice, "length")
        ledger.close(record, End.COMPLETED, first_s)
    samples, name = _samples(metrics), "headrace_requests_slo_tokens_total"
    assert _value(samples, name, slo_class="interactive", outcome="met") == 5.0
    assert _value(samples, name, slo_class="interactive", outcome="late_ttft") == 7.0
    assert sum(value for (each, _), value in samples.items() if each == name) == 12.0


def test_closing_twice_counts_once(metrics: Metrics) -> None:
    ledger = RequestLedger(CLASSES, metrics)
    record = ledger.open("r", SLO("batch", "batch"), 0.0, 1)
    assert ledger.close(record, End.CANCELLED, 1.0) is Outcome.CANCELLED
    assert ledger.close(record, End.FAILED, 2.0, "late") is Outcome.CANCELLED
    ledger.check()
    assert _value(metrics, "headrace_requests_slo_total", slo_class="batch", outcome="cancelled") == 1.0
    assert _value(metrics, "headrace_requests_slo_total", slo_class="batch", outcome="failed") == 0.0


@pytest.mark.parametrize(
    ("end", "reason", "label"),
    [
        (End.REFUSED, "class_queue_full", "class_queue_full"),
        (End.REFUSED, "whatever", "other"),
        (End.REFUSED, None, "other"),
        (End.EXPIRED, None, "expired"),
    ],
)
def test_refusals_are_counted_by_reason(metrics: Metrics, end: End, reason: str | None, label: str) -> None:
    ledger = RequestLedger(CLASSES, metrics)
    ledger.close(ledger.open("r", SLO("batch", "batch"), 0.0, 1), end, 1.0, reason)
    assert _value(metrics, "headrace_requests_refused_total", slo_class="batch", reason=label) == 1.0
    assert _value(metrics, "headrace_requests_slo_total", slo_class="batch", outcome=end.value) == 1.0


def test_choices_lost_to_a_cancel_or_a_failure_count_as_abort_and_error(metrics: Metrics) -> None:
    ledger = RequestLedger(CLASSES, metrics)
    cancelled = ledger.open("a", SLO("batch", "batch"), 0.0, 2)
    cancelled.choice_finished(0, "stop")
    ledger.close(cancelled, End.CANCELLED, 1.0)
    ledger.close(ledger.open("b", SLO("batch", "batch"), 0.0, 1), End.FAILED, 1.0)
    for reason in ("stop", "abort", "error"):
        assert _value(metrics, "vllm:request_success_total", model_name="tiny", finished_reason=reason) == 1.0


def test_engine_counters_and_gauges(metrics: Metrics) -> None:
    metrics.on_engine_ready(_ready())
    metrics.on_step(
        _stats(
            1, num_running=3, num_waiting=2, num_blocks_used=25, num_cached_blocks=5, prompt_tokens_computed=100,
            prompt_tokens_cached=40, recomputed_tokens=7, generation_tokens=9, wasted_tokens=2, num_preemptions=1,
            prefix_cache_queries=140, prefix_cache_hits=40,
        )
    )  # fmt: skip
    samples = _samples(metrics)
    assert _value(samples, "headrace_requests_running") == 3.0
    assert _value(samples, "headrace_requests_waiting", slo_class="batch") == 2.0
    assert _value(samples, "headrace_requests_waiting", slo_class="realtime") == 0.0
    assert _value(samples, "vllm:num_requests_waiting", model_name="tiny") == 2.0
    assert _value(samples, "headrace_kv_cache_usage_ratio") == 0.25
    assert _value(samples, "vllm:kv_cache_usage_perc", model_name="tiny") == 0.25
    assert _value(samples, "headrace_kv_cache_blocks", state="cached") == 5.0
    assert _value(samples, "headrace_prompt_tokens_total", source="compute") == 100.0
    assert _value(samples, "headrace_prompt_tokens_total", source="device_hit") == 40.0
    assert _value(samples, "headrace_kv_tier_hit_tokens_total", tier="device") == 40.0
    assert _value(samples, "headrace_preemptions_total", restore="recompute") == 1.0
    assert _value(samples, "headrace_prompt_tokens_total", source="recompute") == 7.0
    assert _value(samples, "vllm:prompt_tokens_total", model_name="tiny") == 140.0
    assert _value(samples, "vllm:generation_tokens_total", model_name="tiny") == 9.0
    assert _value(samples, "headrace_wasted_tokens_total") == 2.0
    assert _value(samples, "vllm:num_preemptions_total", model_name="tiny") == 1.0
    assert _value(samples, "vllm:prefix_cache_queries_total", model_name="tiny") == 140.0
    assert _value(samples, "vllm:prefix_cache_hits_total", model_name="tiny") == 40.0
    assert _value(samples, "headrace_step_seconds_count") == 1.0
    assert _value(samples, "headrace_engine_overhead_seconds_bucket", le="0.0005") == 1.0


def test_a_restart_keeps_counters_and_clears_gauges(metrics: Metrics) -> None:
    metrics.on_engine_ready(_ready())
    metrics.on_step(_stats(1, generation_tokens=10, num_running=4, num_waiting=1, num_blocks_used=50))
    metrics.on_step(_stats(2, generation_tokens=25, num_running=4, num_waiting=1, num_blocks_used=50))
    assert _value(metrics, "headrace_generation_tokens_total") == 25.0
    metrics.on_engine_died()
    assert _value(metrics, "headrace_engine_ready") == 0.0
    assert _value(metrics, "headrace_requests_running") == 0.0
    assert _value(metrics, "headrace_requests_waiting", slo_class="batch") == 0.0
    assert _value(metrics, "headrace_kv_cache_usage_ratio") == 0.0
    assert _value(metrics, "headrace_generation_tokens_total") == 25.0
    metrics.on_engine_ready(_ready())
    metrics.on_step(_stats(1, generation_tokens=30))
    assert _value(metrics, "headrace_generation_tokens_total") == 55.0
    assert _value(metrics, "headrace_engine_restarts_total") == 1.0
    assert _value(metrics, "headrace_engine_ready") == 1.0
    assert _value(metrics, "headrace_engine_compute_threads") == 1.0


def test_a_restart_that_nobody_announced_is_seen_in_the_step_ids(metrics: Metrics) -> None:
    metrics.on_step(_stats(90, generation_tokens=10))
    metrics.on_step(_stats(1, generation_tokens=12))
    assert _value(metrics, "headrace_generation_tokens_total") == 22.0


def test_a_turn_of_the_loop_without_a_step_is_no_step(metrics: Metrics) -> None:
    metrics.on_step(_stats(5))
    metrics.on_step(_stats(5))
    metrics.on_step(_stats(6))
    assert _value(metrics, "headrace_step_seconds_count") == 2.0


def test_the_margin_and_what_it_follows_are_shown(metrics: Metrics) -> None:
    def shown() -> tuple[object, ...]:
        report, key = build_slo_report(CLASSES, metrics, "deadline"), ("headrace_admission_margin", frozenset[Any]())
        return report["admission"], report["admission_margin"], _samples(metrics).get(key)

    assert shown() == (None, None, None), "no engine yet"
    metrics.on_engine_ready(msgspec.structs.replace(_ready(), promise_margin=0.05))
    assert shown() == ("promise", 0.05, 0.05), "before the first step"
    metrics.on_step(_stats(1, margin=0.07, num_promises_kept=8, num_promises_broken=1))
    assert shown() == ("promise", 0.07, 0.07)
    assert _value(metrics, "headrace_scheduler_promises_total", kept="true") == 8.0
    assert _value(metrics, "headrace_scheduler_promises_total", kept="false") == 1.0
    metrics.on_engine_died()
    assert shown() == ("promise", None, None), "nothing is promised while there is no engine"
    metrics.on_engine_ready(_ready())
    metrics.on_step(_stats(1, num_promises_kept=2))
    assert _value(metrics, "headrace_scheduler_promises_total", kept="true") == 10.0
    assert shown() == ("caps", None, None), "the new engine makes no promises"


def test_the_report_counts_refusals_by_reason(metrics: Metrics) -> None:
    ledger = RequestLedger(CLASSES, metrics)
    for reason in ("slo_unattainable", "slo_unattainable", "class_queue_full", "what nobody knows"):
        ledger.close(ledger.open("r", SLO("realtime", "realtime"), 0.0, 1), End.REFUSED, 0.6, reason)
    ledger.close(ledger.open("r", SLO("batch", "batch"), 0.0, 1), End.EXPIRED, 0.6, "expired")
    entries = {entry["name"]: entry for entry in _classes_of(build_slo_report(CLASSES, metrics, "deadline"))}
    assert entries["realtime"]["refusals"] == {"slo_unattainable": 2, "class_queue_full": 1, "other": 1}
    assert (entries["batch"]["refusals"], entries["standard"]["refusals"]) == ({"expired": 1}, {})
    name = "headrace_requests_refused_total"
    assert _value(metrics, name, slo_class="realtime", reason="slo_unattainable") == 2.0


def test_http_labels_stay_bounded_whatever_clients_send(metrics: Metrics) -> None:
    metrics.observe_http("/v1/models", "GET", 200)
    for i in range(1000):
        metrics.observe_http(f"/random/{i}", f"M{i}", 404)
        metrics.observe_http(None, "GET", 404)
    name = "headrace_http_responses_total"
    assert _value(metrics, name, handler="/v1/models", method="GET", status="200") == 1.0
    assert _value(metrics, name, handler="none", method="other", status="404") == 1000.0
    assert _value(metrics, name, handler="none", method="GET", status="404") == 1000.0
    assert sum(key[0] == name for key in _samples(metrics)) == 3


def test_loop_lag_keeps_its_maximum(metrics: Metrics) -> None:
    for lag_s in (0.001, 0.0625, 0.002):
        metrics.observe_loop_lag(lag_s)
    assert _value(metrics, "headrace_event_loop_lag_max_seconds") == 0.0625
    assert _value(metrics, "headrace_event_loop_lag_seconds_bucket", le="0.05") == 2.0


def _classes_of(report: dict[str, object]) -> Iterator[dict[str, object]]:
    entries = report["classes"]
    assert isinstance(entries, list)
    yield from entries


def test_the_report_before_the_first_request(metrics: Metrics) -> None:
    report = build_slo_report(CLASSES, metrics, "deadline")
    assert report["default_class"] == "standard"
    entry = next(_classes_of(report))
    assert entry["name"] == "realtime"
    assert entry["targets"] == {
        "ttft_base_ms": 400.0,
        "ttft_per_1k_tokens_ms": 100.0,
        "tpot_ms": 30.0,
        "max_stall_ms": 150.0,
    }
    assert (entry["floor"], entry["open"], entry["best_effort"], entry["attainment"]) == (None, True, False, None)
    assert entry["promises"] == {"kept": 0, "broken": 0, "rate": None}


def test_the_report_counts_refused_requests_as_missed_and_cancelled_ones_not_at_all(metrics: Metrics) -> None:
    ledger = RequestLedger(CLASSES, metrics)
    for end in (End.COMPLETED, End.REFUSED, End.CANCELLED):
        record = ledger.open("r", SLO("batch", "batch"), 0.0, 1)
        if end is End.COMPLETED:
            record.admitted(_admitted("batch"), 0.1)
            record.token(0, 0.5)
        ledger.close(record, end, 0.6)
    ledger.open("live", SLO("batch", "batch"), 0.0, 1)
    metrics.on_step(_stats(1, num_waiting=1))
    entry = list(_classes_of(build_slo_report(CLASSES, metrics, "deadline")))[-1]
    counts = entry["counts"]
    assert isinstance(counts, dict)
    assert (counts["offered"], counts["live"], counts["met"], counts["refused"], counts["cancelled"]) == (4, 1, 1, 1, 1)
    assert entry["attainment"] == 0.5
    assert entry["promises"] == {"kept": 1, "broken": 0, "rate": 1.0}
    assert entry["queue"] == {"waiting": 1, "cap_tokens": 1_000_000, "max_wait_s": 600.0}
