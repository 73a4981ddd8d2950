"""What is read back from a saved result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.config import BenchError
from loadgen.metrics import measure
from loadgen.saved_run import plan_differences, read_saved_run
from loadgen.trace import TraceEnd
from tests.saved_runs import Answer, make_run, save_run

ANSWERS = [
    Answer("a", 0.25, 0.01, 9),
    Answer("b", 1.5, 0.03, 2),
    Answer("a", 0.75, 0.01, 1),
    Answer("a", 0.125, 0.0, 0),
    Answer("b", 0.1, end=TraceEnd.REFUSED),
    Answer("b", 0.1, end=TraceEnd.CANCELLED),
    Answer("b", 3.0, end=TraceEnd.CANCELLED),
    Answer("b", 0.1, end=TraceEnd.FAILED, session="s"),
]


def test_outcomes_and_latencies_are_those_that_the_run_measured(tmp_path: Path) -> None:
    saved = read_saved_run(save_run(tmp_path / "run.json", ANSWERS))
    judged = make_run(ANSWERS).judged
    assert [r.trace_id for r in saved.requests] == list(range(len(ANSWERS)))
    assert [r.slo_class for r in saved.requests] == [a.slo_class for a in ANSWERS]
    assert [r.session for r in saved.requests] == [a.session for a in ANSWERS]
    for request, (trace, outcome) in zip(saved.requests, judged, strict=True):
        assert request.met == {"met": True, "cancelled": None}.get(outcome.value, False)
        if trace.end is TraceEnd.COMPLETED:
            assert request.ttft_s == pytest.approx(measure(trace).ttft_s, abs=2e-6)
            assert request.tpot_s == (pytest.approx(t, abs=2e-6) if (t := measure(trace).tpot_s) is not None else None)
        else:
            assert (request.ttft_s, request.tpot_s) == (None, None)
    assert [r.met for r in saved.requests] == [True, False, True, True, False, None, False, False]


def test_only_the_steady_window_counts(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run.json", [Answer()] * 10, warm_up_s=2.5, cool_down_s=3.0)
    assert [r.trace_id for r in read_saved_run(path).requests] == [3, 4, 5, 6]


def test_what_was_planned_differently_is_named(tmp_path: Path) -> None:
    plain = save_run(tmp_path / "a.json", ANSWERS)
    other = save_run(tmp_path / "b.json", ANSWERS, seed=3, rate=2.5, model="other", prompt_salt=8, progress=False)
    runs = [read_saved_run(path) for path in (plain, other)]
    assert plan_differences(*runs) == ("seed: 0, then 3", "rate: none, then 2.5")
    assert plan_differences(runs[0], runs[0]) == ()
    body = json.loads(plain.read_text())
    body["trace"] = {"path": "x.jsonl", "sha256": "abc", "num_rows": 8, "num_too_long": 0, "too_long": "fail"}
    replayed = tmp_path / "c.json"
    replayed.write_text(json.dumps(body))
    found = plan_differences(runs[0], read_saved_run(replayed))
    assert 'trace sha256: none, then "abc"' in found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.pop("headrace_bench"), "is no result of `headrace bench --json FILE`"),
        (lambda body: body.pop("requests"), "run `headrace bench` with --save-requests"),
        (lambda body: body["requests"][0].pop("outcome"), "is a broken result"),
        (lambda body: body["requests"][0].update(outcome="odd"), "is a broken result"),
        (lambda body: body["requests"][0].update(chunks=[["soon", 1]]), "is a broken result"),
    ],
)
def test_what_is_no_result_is_told(tmp_path: Path, change: Any, message: str) -> None:
    path = save_run(tmp_path / "run.json", ANSWERS)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(BenchError, match=message):
        read_saved_run(path)


def test_what_is_no_file_or_no_json_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        read_saved_run(tmp_path / "absent.json")
    (tmp_path / "text").write_text("{")
    with pytest.raises(BenchError, match="is no JSON"):
        read_saved_run(tmp_path / "text")
