"""The result of a load test for programs: times in seconds, null where there is nothing to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loadgen.metrics import ClassSummary, Outcome, Quantiles
from loadgen.request_lines import request_json
from loadgen.result import BenchResult
from loadgen.targets import Targets
from loadgen.trace import RequestTrace

JSON_VERSION = 1


def result_json(result: BenchResult) -> dict[str, Any]:
    """The result as one JSON object, with every request where the options say so."""
    run, config = result.run, dataclasses.asdict(result.config)
    del config["api_key"]
    body: dict[str, Any] = {
        "headrace_bench": JSON_VERSION,
        "config": config,
        "conditions": None if result.conditions is None else dataclasses.asdict(result.conditions),
        "model": result.server.model,
        "valid": result.is_valid,
        "invalid_reasons": list(result.invalid_reasons),
        "interrupted": run.interrupted,
        "duration_s": run.ended_s - run.started_s,
        "arrival_window_s": run.arrival_window_s,
        "steady_window_s": result.window.length_s,
        "sent_by_phase": {phase.value: count for phase, count in result.num_by_phase.items()},
        "unsent_turns": run.num_unsent_turns,
        "turns_after_end": run.num_turns_after_end,
        "conversations": _conversations_json(run.traces),
        "trace": None if result.replay is None else dataclasses.asdict(result.replay),
        "calibration": dataclasses.asdict(result.calibration),
        "max_send_lag_p99_s": result.max_send_lag_s,
        "overall": {
            **_summary_json(result.overall),
            "asked": _asked_json(result, None),
            "targets": _targets_json(result, None),
        },
        "classes": {
            summary.name: {
                **_summary_json(summary),
                "objective": result.server.objectives.get(summary.name),
                "asked": _asked_json(result, summary.name),
                "targets": _targets_json(result, summary.name),
            }
            for summary in result.classes
        },
        "errors": [dataclasses.asdict(error) for error in result.errors],
        "server_view": None if result.server_view is None else dataclasses.asdict(result.server_view),
    }
    if result.config.save_requests:
        body["requests"] = [
            request_json(trace, outcome, run.started_s, result.phase_of(trace)) for trace, outcome in result.judged
        ]
    return body


def _summary_json(summary: ClassSummary) -> dict[str, Any]:
    counts = {outcome.value: summary.outcomes[outcome] for outcome in Outcome}
    return {
        "sent": summary.num_sent,
        "met": counts["met"],
        "late": summary.num_late,
        "refused": counts["refused"],
        "failed": counts["failed"],
        "outcomes": counts,
        "offered_attainment": summary.offered_attainment,
        "admitted_attainment": summary.admitted_attainment,
        "goodput_per_s": summary.goodput_per_s,
        "degraded": summary.num_degraded,
        "prompt_tokens": summary.num_prompt_tokens,
        "cached_prompt_tokens": summary.num_cached_tokens,
        "cached_prompt_tokens_by_tier": summary.cached_tokens_by_tier,
        "output_tokens": summary.num_output_tokens,
        "ttft_s": _quantiles_json(summary.ttft),
        "tpot_s": _quantiles_json(summary.tpot),
        "itl_s": _quantiles_json(summary.itl),
        "e2e_s": _quantiles_json(summary.e2e),
        "send_lag_s": _quantiles_json(summary.send_lag),
    }


def _quantiles_json(quantiles: Quantiles | None) -> dict[str, float] | None:
    if quantiles is None:
        return None
    return {
        "count": quantiles.num_samples,
        "mean": quantiles.mean_s,
        "p50": quantiles.p50_s,
        "p90": quantiles.p90_s,
        "p95": quantiles.p95_s,
        "p99": quantiles.p99_s,
        "max": quantiles.max_s,
    }


def _asked_json(result: BenchResult, name: str | None) -> dict[str, Any]:
    """Of the counted requests of a class, or of all: how many a second, and lengths as planned."""
    planned = [trace.planned for trace, _ in result.counted if name is None or trace.planned.slo_class == name]
    length_s = result.window.length_s
    return {
        "per_s": len(planned) / length_s if length_s else None,
        "prompt_tokens": _lengths_json([each.num_prompt_tokens for each in planned]),
        "output_tokens": _lengths_json([each.num_output_tokens for each in planned]),
    }


def _lengths_json(lengths: Sequence[int]) -> dict[str, int] | None:
    """Lengths that occur; null: nothing was asked."""
    if not lengths:
        return None
    p50, p90, p99 = (int(value) for value in np.quantile(lengths, (0.5, 0.9, 0.99), method="inverted_cdf"))
    return {"p50": p50, "p90": p90, "p99": p99, "max": max(lengths), "sum": sum(lengths)}


def _targets_json(result: BenchResult, name: str | None) -> dict[str, dict[str, float] | None]:
    """Of the counted requests of a class, or of all: each target's range, since one may grow with the prompt. Null: no
    request was judged by it."""
    targets = [
        result.targets_of(trace) for trace, _ in result.counted if name is None or trace.planned.slo_class == name
    ]
    return {field.name: _range_json(targets, field.name) for field in dataclasses.fields(Targets)}


def _range_json(targets: Sequence[Targets], field: str) -> dict[str, float] | None:
    values = [value for each in targets if (value := getattr(each, field)) is not None]
    return {"min": min(values), "max": max(values)} if values else None


def _conversations_json(traces: Iterable[RequestTrace]) -> dict[str, int]:
    """Of all phases: conversations that began, and the turns of theirs that were sent."""
    turns = [trace.planned for trace in traces if trace.planned.session is not None]
    return {"begun": len({turn.session for turn in turns}), "turns_sent": len(turns)}
