"""Whatever becomes of requests, the counters equal what the request log's raw timestamps say.

The recomputation below is written from the definitions, on the log's lines and the table of classes alone; it shares
no code with the server's verdict.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import GroupAdmitted
from scheduler.slo import SLO, SLOClass, SLOClasses
from server.metrics import Metrics
from server.request_ledger import RequestLedger
from server.request_log import RequestLog
from server.request_record import End, RequestRecord

CLASSES = SLOClasses()
Draw = Callable[[st.SearchStrategy[Any]], Any]
_times = st.sampled_from([0.0, 1 / 64, 1 / 32, 3 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.5])
_maybe = st.sampled_from([None, 1 / 16, 1 / 4, 1.0, 4.0])


@st.composite
def _slos(draw: st.DrawFn) -> SLO:
    name = draw(st.sampled_from(CLASSES.names))
    return SLO(name, name, ttft_s=draw(_maybe), tpot_s=draw(_maybe), e2e_deadline_s=draw(_maybe), may_degrade=True)


def _live_through(draw: Draw, ledger: RequestLedger, number: int) -> RequestRecord:
    """One request with an arbitrary life: admitted or not, degraded or not, any tokens, any end."""
    slo = draw(_slos())
    now_s = 100.0
    record = ledger.open(f"r{number}", slo, now_s, draw(st.integers(1, 3)))
    record.num_prompt_tokens = draw(st.sampled_from([1, 500, 4000]))
    if draw(st.booleans()):
        now_s = _admit_and_generate(draw, record, slo)
    elif draw(st.booleans()):
        now_s += draw(_times)
    admitted = record.granted is not None
    ends = (
        [End.COMPLETED, End.CANCELLED, End.FAILED]
        if admitted
        else [End.REFUSED, End.EXPIRED, End.FAILED, End.CANCELLED]
    )
    if draw(st.integers(0, 9)):  # else it is still live when the log is read
        end = draw(st.sampled_from(ends))
        for choice in range(record.num_choices):
            if end is End.COMPLETED:
                record.choice_finished(choice, "length")
        reason = draw(st.sampled_from([None, "instance_full", "class_queue_full"]))
        ledger.close(record, end, now_s, reason)
        ledger.close(record, End.FAILED, now_s + 1.0, "counts nothing")
    return record


def _admit_and_generate(draw: Draw, record: RequestRecord, slo: SLO) -> float:
    requested = CLASSES.get(slo.requested)
    granted = draw(st.sampled_from([slo.requested, requested.degrade_to or slo.requested]))
    cached = draw(st.sampled_from([0, record.num_prompt_tokens // 2]))
    now_s = record.arrival_s + draw(_times)
    target = CLASSES.get(granted)
    record.admitted(
        GroupAdmitted(
            group_id="g",
            granted=granted,
            num_cached_tokens=cached,
            ttft_target_s=slo.ttft_s or target.ttft_s(record.num_prompt_tokens - cached),
            tpot_target_s=slo.tpot_s or target.tpot_s,
        ),
        now_s,
    )
    for _ in range(draw(st.integers(0, 6))):
        now_s += draw(_times)
        choice = draw(st.integers(0, record.num_choices - 1))
        if record.choices[choice].finish_reason is None:
            record.token(choice, now_s, draw(st.sampled_from([1, 1, 3])))
            if not draw(st.integers(0, 4)):
                record.choice_finished(choice, "stop")
    return float(now_s + draw(_times))


# ---- the recomputation, from the definitions ----


def _limits(line: dict[str, Any], slo_class: SLOClass) -> tuple[float, float, float | None]:
    """TTFT, TPOT and longest stall of a class for one line."""
    uncached = line["num_prompt_tokens"] - line["num_cached_tokens"]
    ttft_s = (
        line["ttft_s"]
        if line["ttft_s"] is not None
        else slo_class.ttft_base_s + (slo_class.ttft_per_1k_tokens_s * uncached / 1000.0)
    )
    tpot_s = line["tpot_s"] if line["tpot_s"] is not None else slo_class.tpot_s
    return ttft_s, tpot_s, None if slo_class.max_stall_s is None else max(slo_class.max_stall_s, tpot_s)


def _verdict(line: dict[str, Any], slo_class: SLOClass) -> str | None:
    """The first miss in the documented order over all choices; None: nothing was missed."""
    ttft_limit_s, tpot_limit_s, stall_limit_s = _limits(line, slo_class)
    misses: set[str] = set()
    last_s = line["arrival_s"]
    for choice in line["choices"]:
        stamps = [(time_s, n) for time_s, n in choice["chunks"]]
        if line["end"] == "cancelled" and choice["finish_reason"] is None:
            check_at = [stamps, [*stamps, (line["finished_s"], 1)]]  # what it got, and what it was waiting for
        elif not stamps:
            check_at = [[(line["finished_s"], 1)]]
        else:
            check_at = [stamps]
        for seen in filter(None, check_at):
            if seen[0][0] - line["arrival_s"] > ttft_limit_s:
                misses.add("late_ttft")
            total = sum(n for _, n in seen)
            if total > 1 and (seen[-1][0] - seen[0][0]) / (total - 1) > tpot_limit_s:
                misses.add("late_tpot")
            gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(seen)]
            if stall_limit_s is not None and max(gaps, default=0.0) > stall_limit_s:
                misses.add("late_stall")
            last_s = max(last_s, seen[-1][0])
    if line["end"] == "cancelled":
        last_s = line["finished_s"]
    if line["e2e_deadline_s"] is not None and last_s - line["arrival_s"] > line["e2e_deadline_s"]:
        misses.add("late_e2e")
    return next((miss for miss in ("late_ttft", "late_e2e", "late_tpot", "late_stall") if miss in misses), None)


def _outcome(line: dict[str, Any]) -> str:
    if line["end"] in ("refused", "expired", "failed"):
        return str(line["end"])
    on_time = "met" if line["end"] == "completed" else "cancelled"
    return _verdict(line, CLASSES.get(line["requested"])) or on_time


def _promise(line: dict[str, Any]) -> str | None:
    if line["granted"] is None:
        return None
    if line["end"] == "failed" or _verdict(line, CLASSES.get(line["granted"])) is not None:
        return "false"
    return "true" if line["end"] == "completed" else None


def _counters(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """The non-zero series with a class, by name, then by (slo_class, other labels)."""
    table: dict[str, dict[tuple[str, ...], float]] = collections.defaultdict(dict)
    for family in text_string_to_metric_families(metrics.render().decode()):
        for s in family.samples:
            if s.value and "slo_class" in s.labels:
                key = (s.labels["slo_class"], *(v for k, v in s.labels.items() if k != "slo_class"))
                table[s.name][key] = s.value
    return table


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counts_equal_a_recomputation_from_the_request_log(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "requests.jsonl"
        metrics = Metrics(CLASSES, "tiny")
        with contextlib.closing(RequestLog(str(path))) as log:
            ledger = RequestLedger(CLASSES, metrics, log)
            records = [_live_through(data.draw, ledger, number) for number in range(data.draw(st.integers(1, 8)))]
            ledger.check()
        lines = [json.loads(line) for line in path.read_text().splitlines()]

    counted = _counters(metrics)
    outcomes = collections.Counter((line["requested"], _outcome(line)) for line in lines)
    assert counted["headrace_requests_slo_total"] == outcomes
    promises = [(line["granted"], kept) for line in lines if (kept := _promise(line)) is not None]
    assert counted["headrace_promises_total"] == collections.Counter(promises)
    assert [line["outcome"] for line in lines] == [_outcome(line) for line in lines]
    refused = [line for line in lines if line["end"] in ("refused", "expired")]
    assert sum(counted["headrace_requests_refused_total"].values()) == len(refused)
    assert sum(counted["headrace_requests_offered_total"].values()) == len(lines) + ledger.num_live
    live = [record for record in records if record.end is None]
    assert ledger.num_live == len(live)
    gaps = sum(n for line in lines for choice in line["choices"] for _, n in choice["chunks"][1:])
    gaps += sum(n for record in live for choice in record.choices for _, n in (choice.chunks or [])[1:])
    assert sum(counted["headrace_inter_token_seconds_count"].values()) == gaps
