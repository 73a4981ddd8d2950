"""A load test as `headrace bench --json FILE --save-requests` has written it, as far as two of them are compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.config import BenchError
from loadgen.metrics import LATE, Outcome

_PLAN_KEYS = (
    *("seed", "rate", "arrivals", "burstiness", "concurrency", "requests", "duration_s"),
    *("classes", "slo", "prompt_tokens", "output_tokens", "shared_prefix_tokens", "ignore_eos"),
    *("cancel_share", "warm_up_s", "cool_down_s", "timeout_s"),
)
"""Of the config: what is sent, and how it is judged. The words of the prompts (prompt_salt) do not matter."""
_TRACE_KEYS = ("sha256", "num_rows", "num_too_long", "too_long")
_LATE = {outcome.value for outcome in LATE}
_UNKNOWN = {Outcome.CANCELLED.value, Outcome.UNJUDGED.value}
_STEADY = "steady"


@dataclasses.dataclass(frozen=True, slots=True)
class SavedRequest:
    """One request of the steady window."""

    trace_id: int
    """What requests of two runs are paired by."""
    slo_class: str
    session: str | None
    met: bool | None
    """None: cancelled or not judged."""
    ttft_s: float | None
    tpot_s: float | None
    """None: it did not complete, or has too few tokens."""
    targets: tuple[tuple[str, float | None], ...]
    """As the response told them."""
    num_prompt_tokens: int = 0
    """0: not known."""
    num_cached_tokens: int = 0
    """Of these."""


@dataclasses.dataclass(frozen=True, slots=True)
class SavedRun:
    """One run."""

    path: str
    plan: Mapping[str, object]
    """What must be equal for its requests to be comparable one by one."""
    invalid_reasons: tuple[str, ...]
    requests: tuple[SavedRequest, ...]


def read_saved_run(path: Path) -> SavedRun:
    """Read a result.

    Raises:
        BenchError: the file cannot be read, is no result, or holds no requests.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BenchError(f"{path} is no JSON: {error}") from error
    if not isinstance(body, dict) or "headrace_bench" not in body:
        raise BenchError(f"{path} is no result of `headrace bench --json FILE` (in its own format, not vLLM's)")
    if "requests" not in body:
        raise BenchError(f"{path} holds no requests: run `headrace bench` with --save-requests")
    try:
        requests = tuple(_read_request(entry) for entry in body["requests"] if entry.get("phase", _STEADY) == _STEADY)
        plan = _read_plan(body)
        reasons = ("it was interrupted",) if body["interrupted"] else ()
        return SavedRun(str(path), plan, (*body["invalid_reasons"], *reasons), requests)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BenchError(f"{path} is a broken result ({type(error).__name__}: {error}): run it again") from error


def plan_differences(first: SavedRun, second: SavedRun) -> tuple[str, ...]:
    """What was planned differently, as `name: first, then second`."""
    names = dict.fromkeys((*first.plan, *second.plan))
    return tuple(
        f"{name}: {_shown(first.plan.get(name))}, then {_shown(second.plan.get(name))}"
        for name in names
        if first.plan.get(name) != second.plan.get(name)
    )


def _read_plan(body: Mapping[str, Any]) -> dict[str, object]:
    plan: dict[str, object] = {key: body["config"].get(key) for key in _PLAN_KEYS}
    trace = body.get("trace")
    plan |= {f"trace {key}": None if trace is None else trace.get(key) for key in _TRACE_KEYS}
    return plan


def _read_request(entry: Mapping[str, Any]) -> SavedRequest:
    outcome = Outcome(entry["outcome"]).value
    is_complete = entry["error"] is None and outcome in {Outcome.MET.value, Outcome.UNJUDGED.value, *_LATE}
    trace_id, told = entry.get("trace_id"), entry["told_targets"]
    ttft_s, tpot_s = _latencies_s(entry) if is_complete else (None, None)
    return SavedRequest(
        trace_id=int(entry["index"] if trace_id is None else trace_id),
        slo_class=str(entry["slo_class"]),
        session=entry.get("session"),
        met=None if outcome in _UNKNOWN else outcome == Outcome.MET.value,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        targets=tuple(told.items()) if told else (),
        num_prompt_tokens=int(entry["prompt_tokens"] or 0),
        num_cached_tokens=int(entry["cached_prompt_tokens"] or 0),
    )


def _latencies_s(entry: Mapping[str, Any]) -> tuple[float, float | None]:
    """As `loadgen.metrics.measure` defines them."""
    chunks, num_tokens = entry["chunks"], int(entry["output_tokens"])
    if not chunks:
        return float(entry["finished_s"] - entry["intended_s"]), None
    first_s, last_s = chunks[0][0], chunks[-1][0]
    tpot_s = float(last_s - first_s) / (num_tokens - 1) if num_tokens > 1 else None
    return float(first_s - entry["intended_s"]), tpot_s


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value)
