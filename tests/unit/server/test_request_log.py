"""The request log: a line a request, and a disk that fails costs lines, not requests."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from engine.messages import GroupAdmitted
from scheduler.output import RefusalReason
from scheduler.slo import SLO, Outcome, SLOClasses
from server.metrics import Metrics
from server.request_ledger import RequestLedger
from server.request_log import RequestLog
from server.request_record import End, RequestRecord
from tests.http_harness import Harness, run


def _finished() -> RequestRecord:
    record = RequestRecord("req-1", SLO("batch", "batch", e2e_deadline_s=9.0), 1.0, 2, keeps_chunks=True)
    record.num_prompt_tokens = 12
    record.admitted(
        GroupAdmitted(
            group_id="g",
            granted="batch",
            num_cached_tokens=8,
            num_host_cached_tokens=1,
            num_disk_cached_tokens=3,
            ttft_target_s=2.0,
            tpot_target_s=0.1,
        ),
        1.5,
    )
    record.token(0, 2.0)
    record.token(0, 2.25, n=3)
    record.token(1, 2.5)
    record.choice_finished(0, "stop")
    record.finish(End.COMPLETED, 2.5)
    return record


def test_a_line_holds_the_raw_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(str(path))
    log.write(_finished(), Outcome.MET)
    log.close()
    line = json.loads(path.read_text())
    assert line.pop("unix_s") > 0
    assert line == {
        "request_id": "req-1",
        "requested": "batch",
        "granted": "batch",
        "ttft_s": None,
        "tpot_s": None,
        "e2e_deadline_s": 9.0,
        "arrival_s": 1.0,
        "admitted_s": 1.5,
        "finished_s": 2.5,
        "ttft_target_s": 2.0,
        "tpot_target_s": 0.1,
        "num_prompt_tokens": 12,
        "num_cached_tokens": 8,
        "num_host_cached_tokens": 1,
        "num_disk_cached_tokens": 3,
        "end": "completed",
        "reason": None,
        "message": None,
        "choices": [
            {"finish_reason": "stop", "chunks": [[2.0, 1], [2.25, 3]]},
            {"finish_reason": None, "chunks": [[2.5, 1]]},
        ],
        "outcome": "met",
    }


@pytest.mark.parametrize(
    ("reason", "end", "message"),
    [
        (RefusalReason.SLO_UNATTAINABLE, "refused", "refused as scripted: slo_unattainable"),
        (RefusalReason.EXPIRED, "expired", "refused as scripted: expired"),
        (None, "completed", None),
    ],
)
def test_the_line_of_a_refused_request_holds_what_its_client_was_told(
    tmp_path: Path, reason: RefusalReason | None, end: str, message: str | None
) -> None:
    async def body(h: Harness) -> None:
        h.engine.script.refuses = reason
        await h.chat()

    path = tmp_path / "requests.jsonl"
    with contextlib.closing(RequestLog(str(path))) as log:
        run(body, request_log=log)
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["end"], line["message"]) == (end, message)
    assert line["reason"] == (None if reason is None else reason.value)


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    for _ in range(2):
        log = RequestLog(str(path))
        log.write(_finished(), Outcome.MET)
        log.close()
    assert len(path.read_text().splitlines()) == 2


def test_a_line_that_cannot_be_written_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(str(tmp_path / "requests.jsonl"))
    assert log.write(_finished(), Outcome.MET)
    log.close()
    assert not log.write(_finished(), Outcome.MET)
    assert not log.write(_finished(), Outcome.MET)
    assert log.num_lost == 2
    assert caplog.text.count("req-1") == 1


def test_a_path_that_cannot_be_opened_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        RequestLog(str(tmp_path / "absent" / "requests.jsonl"))


def test_lost_lines_are_shown_as_a_metric(tmp_path: Path) -> None:
    classes = SLOClasses()
    metrics = Metrics(classes, "m")
    log = RequestLog(str(tmp_path / "requests.jsonl"))
    ledger = RequestLedger(classes, metrics, log)

    def finish() -> bytes:
        record = ledger.open("req-1", SLO("standard", "standard"), 1.0, 1)
        ledger.close(record, End.CANCELLED, 2.0, "client_left")
        return metrics.render()

    assert b"headrace_request_log_lost_lines_total 0.0" in finish()
    log.close()
    assert b"headrace_request_log_lost_lines_total 1.0" in finish()
