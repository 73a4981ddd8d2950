"""The result in the form of vLLM's `vllm bench serve`, which many scripts plot.

Its definitions, not ours, so that the numbers compare with vLLM's own:

- every request of the run, also those of warm-up and cool-down; rates are over the run's whole duration;
- times from when a request was *sent*, not from when it was due: a client that lags does not show. The lag alone is in
  `queue_times`;
- TTFT to the first text (vLLM takes the first event with a choice, which servers send together with it); E2EL to the
  end of the stream, not to the last text; TPOT (E2EL - TTFT) / (n - 1); ITL one gap a chunk, whatever its tokens;
- latencies of completed requests alone; `failed` is every other one: refused, expired, timed out and cancelled too.

`request_goodput` is our own count, by each class's targets and from the time due, over the duration: vLLM knows one set
of targets for all. It is null where no request has targets. Source: vLLM, `vllm/benchmarks/serve.py` at 009e6d4.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.metrics import Outcome
from loadgen.result import BenchResult
from loadgen.trace import RequestTrace, TraceEnd

_BACKENDS = {"chat": "openai-chat", "completions": "openai"}
_PERCENTILES = (50, 90, 95, 99)


def to_vllm_json(result: BenchResult) -> dict[str, Any]:
    """The keys of vLLM's result file; with `save_requests` those of its `--save-detailed` too."""
    config, run = result.config, result.run
    completed = [trace for trace in run.traces if trace.end is TraceEnd.COMPLETED]
    duration_s = max(run.ended_s - run.started_s, 1e-9)
    num_input = sum(_input_len(trace) for trace in completed)
    num_output = sum(trace.num_output_tokens for trace in completed)
    body: dict[str, Any] = {
        "date": _date(result),
        "endpoint_type": _BACKENDS[config.api],
        "backend": _BACKENDS[config.api],
        "label": None,
        "model_id": result.server.model,
        "tokenizer_id": result.server.model,
        "num_prompts": len(run.traces),
        "request_rate": _request_rate(result),
        "burstiness": _burstiness(result),
        "max_concurrency": config.concurrency,
        "duration": duration_s,
        "completed": len(completed),
        "failed": len(run.traces) - len(completed),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(completed) / duration_s,
        "request_goodput": _goodput(result, duration_s),
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
        "max_output_tokens_per_s": _max_chunks_per_s(completed),
        "max_concurrent_requests": _max_open(completed),
    }
    if config.save_requests:
        body |= _detailed(run.traces)
    for name, values in _latencies_s(completed).items():
        body |= _statistics(name, values)
    return body


def _date(result: BenchResult) -> str | None:
    if result.conditions is None:
        return None
    return datetime.datetime.fromisoformat(result.conditions.started_at).strftime("%Y%m%d-%H%M%S")


def _request_rate(result: BenchResult) -> float | str:
    """As vLLM writes it: "inf" where nothing but the concurrency bounds the load."""
    config = result.config
    if not config.is_open_loop:
        return "inf"
    if config.arrival_kind == "trace" and config.rate is None:
        trace_rate_per_s = None if result.replay is None else result.replay.trace_rate_per_s
        return "inf" if trace_rate_per_s is None else trace_rate_per_s
    return config.rate_per_s


def _burstiness(result: BenchResult) -> float | None:
    """Shape of the gaps; None: they are constant, or a trace's. vLLM calls constant gaps infinite, which JSON lacks."""
    kind = result.config.arrival_kind
    return {"poisson": 1.0, "gamma": result.config.burstiness}.get(kind) if result.config.is_open_loop else None


def _goodput(result: BenchResult, duration_s: float) -> float | None:
    if not any(result.targets_of(trace).judges for trace in result.run.traces):
        return None
    return sum(outcome is Outcome.MET for _, outcome in result.judged) / duration_s


def _input_len(trace: RequestTrace) -> int:
    return trace.planned.num_prompt_tokens if trace.num_prompt_tokens is None else trace.num_prompt_tokens


def _ttft_s(trace: RequestTrace) -> float:
    """0 where there was no text, as vLLM has it."""
    return trace.chunks[0].time_s - trace.sent_s if trace.chunks else 0.0


def _e2el_s(trace: RequestTrace) -> float:
    assert trace.finished_s is not None, f"request {trace.planned.index} is not over"
    return trace.finished_s - trace.sent_s


def _itls_s(trace: RequestTrace) -> list[float]:
    return [later.time_s - earlier.time_s for earlier, later in itertools.pairwise(trace.chunks)]


def _latencies_s(completed: Sequence[RequestTrace]) -> dict[str, list[float]]:
    return {
        "ttft": [_ttft_s(trace) for trace in completed],
        "tpot": [
            (_e2el_s(trace) - _ttft_s(trace)) / (trace.num_output_tokens - 1)
            for trace in completed
            if trace.num_output_tokens > 1
        ],
        "itl": [gap_s for trace in completed for gap_s in _itls_s(trace)],
        "e2el": [_e2el_s(trace) for trace in completed],
    }


def _statistics(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """In milliseconds; 0 where there is nothing to measure, as vLLM has it."""
    array = np.asarray(values_s or [0.0]) * 1000.0
    return {
        f"mean_{name}_ms": float(array.mean()),
        f"median_{name}_ms": float(np.median(array)),
        f"std_{name}_ms": float(array.std()),
        **{f"p{p}_{name}_ms": float(np.percentile(array, p)) for p in _PERCENTILES},
    }


def _detailed(traces: Sequence[RequestTrace]) -> dict[str, list[Any]]:
    is_completed = [trace.end is TraceEnd.COMPLETED for trace in traces]
    return {
        "input_lens": [_input_len(trace) for trace in traces],
        "output_lens": [trace.num_output_tokens if ok else 0 for trace, ok in zip(traces, is_completed, strict=True)],
        "ttfts": [_ttft_s(trace) for trace in traces],
        "itls": [_itls_s(trace) for trace in traces],
        "latencies": [_e2el_s(trace) if ok else 0.0 for trace, ok in zip(traces, is_completed, strict=True)],
        "start_times": [trace.sent_s for trace in traces],
        "queue_times": [trace.send_lag_s for trace in traces],
        "errors": [trace.error or "" for trace in traces],
    }


def _max_chunks_per_s(completed: Sequence[RequestTrace]) -> float:
    """Of the fullest second since the first request was sent. vLLM counts a chunk as a token."""
    times_s = [chunk.time_s for trace in completed for chunk in trace.chunks]
    if not times_s:
        return 0.0
    first_s = min(trace.sent_s for trace in completed)
    return float(np.bincount((np.asarray(times_s) - first_s).astype(np.int64)).max())


def _max_open(completed: Sequence[RequestTrace]) -> int:
    """The most completed requests that were open together; one that ends as another begins is not."""
    changes = sorted(
        [*((trace.sent_s, 1) for trace in completed), *((trace.sent_s + _e2el_s(trace), -1) for trace in completed)]
    )
    return max(itertools.accumulate(change for _, change in changes), default=0)
