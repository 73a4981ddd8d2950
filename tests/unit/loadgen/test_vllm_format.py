"""vLLM's form of the result, recomputed from the traces by its own definitions."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics

import pytest

from loadgen.config import BenchConfig
from loadgen.metrics import Outcome
from loadgen.report import encode_json
from loadgen.trace import TraceEnd
from loadgen.vllm_format import to_vllm_json
from tests.sample_bench import sample_result

VLLM_KEYS = {
    "date",
    "backend",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
} | {f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")}
"""Of vLLM's result file, those that plotting scripts read."""


def _nearest(values: list[float], p: float) -> float:
    """A percentile, linear between samples."""
    values = sorted(values)
    place = (len(values) - 1) * p
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_number_is_vllms_definition_over_the_traces(seed: int) -> None:
    result = sample_result(seed=seed)
    body = to_vllm_json(result)
    assert set(body) >= VLLM_KEYS
    done = [t for t in result.run.traces if t.end is TraceEnd.COMPLETED]
    duration_s = result.run.ended_s - result.run.started_s
    sums = [sum(t.num_prompt_tokens or 0 for t in done), sum(c.num_tokens for t in done for c in t.chunks)]
    assert (body["completed"], body["failed"]) == (len(done), len(result.run.traces) - len(done))
    assert [body["total_input_tokens"], body["total_output_tokens"]] == sums
    assert body["request_throughput"] == pytest.approx(len(done) / duration_s)
    assert body["total_token_throughput"] == pytest.approx(sum(sums) / duration_s)
    num_met = sum(outcome is Outcome.MET for _, outcome in result.judged)
    assert body["request_goodput"] == pytest.approx(num_met / duration_s)

    values = {"ttft": [], "tpot": [], "itl": [], "e2el": []}  # type: dict[str, list[float]]
    for t in done:
        assert t.finished_s is not None
        values["ttft"].append((t.chunks[0].time_s - t.sent_s) * 1e3)
        values["e2el"].append((t.finished_s - t.sent_s) * 1e3)
        values["itl"] += [(b.time_s - a.time_s) * 1e3 for a, b in itertools.pairwise(t.chunks)]
        if (n := sum(c.num_tokens for c in t.chunks)) > 1:
            values["tpot"].append((values["e2el"][-1] - values["ttft"][-1]) / (n - 1))
    for name, each in values.items():
        assert body[f"mean_{name}_ms"] == pytest.approx(statistics.fmean(each))
        assert body[f"median_{name}_ms"] == pytest.approx(statistics.median(each))
        assert body[f"std_{name}_ms"] == pytest.approx(statistics.pstdev(each))
        assert body[f"p99_{name}_ms"] == pytest.approx(_nearest(each, 0.99))


def test_the_most_open_requests_are_those_of_some_moment() -> None:
    result = sample_result(seed=3)
    done = [t for t in result.run.traces if t.end is TraceEnd.COMPLETED]
    open_at = [sum(t.sent_s <= at.sent_s < (t.finished_s or 0.0) for t in done) for at in done]
    body = to_vllm_json(result)
    assert body["max_concurrent_requests"] == max(open_at)
    first_s = min(t.sent_s for t in done)
    seconds = [int(c.time_s - first_s) for t in done for c in t.chunks]
    assert body["max_output_tokens_per_s"] == max(seconds.count(second) for second in set(seconds))


def test_details_come_with_the_requests_and_are_as_many() -> None:
    body = to_vllm_json(sample_result(save_requests=True))
    lists = {key: value for key, value in body.items() if isinstance(value, list)}
    assert {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"} <= set(lists)
    assert {len(value) for value in lists.values()} == {body["num_prompts"]}
    assert sum(lists["output_lens"]) == body["total_output_tokens"]
    assert sum(error == "" for error in lists["errors"]) == body["completed"]
    assert not any(isinstance(value, list) for value in to_vllm_json(sample_result()).values())


def test_a_run_without_answers_is_zeros_as_in_vllm() -> None:
    body = to_vllm_json(sample_result(0, warm_up_s=0.0, cool_down_s=0.0))
    assert (body["completed"], body["mean_ttft_ms"], body["request_goodput"]) == (0, 0.0, None)


@pytest.mark.parametrize(
    ("options", "rate", "burstiness"),
    [
        ({"rate": 3.0}, 3.0, 1.0),
        ({"rate": 3.0, "arrivals": "gamma", "burstiness": 0.5}, 3.0, 0.5),
        ({"rate": 3.0, "arrivals": "constant"}, 3.0, None),
        ({"rate": None, "concurrency": 4}, "inf", None),
    ],
)
def test_the_load_is_named_as_vllm_names_it(options: dict[str, object], rate: object, burstiness: object) -> None:
    result = sample_result()
    result = dataclasses.replace(result, config=BenchConfig("http://x", **options))  # type: ignore[arg-type]
    body = to_vllm_json(result)
    assert (body["request_rate"], body["burstiness"]) == (rate, burstiness)


def test_the_option_chooses_the_form() -> None:
    assert json.loads(encode_json(sample_result(json_format="vllm")))["model_id"] == "tiny"
    assert json.loads(encode_json(sample_result()))["headrace_bench"] == 1
