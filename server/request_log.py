"""The request log: one JSON line per finished request, with the raw timestamps its outcome was judged by.

Whoever doubts a counter can recompute it from these lines and the table of classes. No text and no token id is
written. A line holds:

    request_id, unix_s                  wall clock at the end, for humans; every other time is CLOCK_MONOTONIC
    requested, granted                  classes; granted is null where it was never admitted
    ttft_s, tpot_s, e2e_deadline_s      the client's own targets, or null
    arrival_s, admitted_s, finished_s
    ttft_target_s, tpot_target_s        the targets told at admission, or null
    num_prompt_tokens, num_cached_tokens
    num_host_cached_tokens, num_disk_cached_tokens
                                        of the cached ones, those that were not on the device
    end, reason                         how it ended, and why where it did not complete
    message                             what a refused or expired one was told, such as the time expected; else null
    choices                             [{"finish_reason": ..., "chunks": [[time, tokens], ...]}, ...]
    outcome                             the verdict
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TextIO

from scheduler.slo import Outcome
from server.request_record import RequestRecord

logger = logging.getLogger(__name__)


class RequestLog:
    """Appends finished requests to a JSONL file. A full disk costs lines, which are counted, never a request."""

    def __init__(self, path: str) -> None:
        """Raises OSError: the file cannot be opened for appending."""
        self._file: TextIO = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 (open for the server's life)
        self._path = path
        self.num_lost = 0
        """Lines that could not be written."""

    def write(self, record: RequestRecord, outcome: Outcome) -> bool:
        """Append one finished request; the line is handed to the operating system before this returns. False: lost."""
        try:
            self._file.write(json.dumps(_line(record, outcome), separators=(",", ":")) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            if self.num_lost == 0:
                logger.warning("request log %s: line of %s lost: %s", self._path, record.request_id, error)
            self.num_lost += 1
            return False
        return True

    def close(self) -> None:
        """Close the file; lines after this are lost."""
        try:
            self._file.close()
        except OSError as error:
            logger.warning("request log %s: %s", self._path, error)


def _line(record: RequestRecord, outcome: Outcome) -> dict[str, object]:
    return {
        "request_id": record.request_id,
        "unix_s": round(time.time(), 6),
        "requested": record.slo.requested,
        "granted": record.granted,
        "ttft_s": record.slo.ttft_s,
        "tpot_s": record.slo.tpot_s,
        "e2e_deadline_s": record.slo.e2e_deadline_s,
        "arrival_s": record.arrival_s,
        "admitted_s": record.admitted_s,
        "finished_s": record.finished_s,
        "ttft_target_s": record.ttft_target_s,
        "tpot_target_s": record.tpot_target_s,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "num_host_cached_tokens": record.num_host_cached_tokens,
        "num_disk_cached_tokens": record.num_disk_cached_tokens,
        "end": record.end.value if record.end is not None else None,
        "reason": record.reason,
        "message": record.message,
        "choices": [
            {"finish_reason": choice.finish_reason, "chunks": choice.chunks or []} for choice in record.choices
        ],
        "outcome": outcome.value,
    }
