"""The requests of a run as lines of JSON, each written when its request ends: a run that is broken off loses none."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from loadgen.config import BenchError
from loadgen.metrics import Outcome
from loadgen.phases import Phase
from loadgen.trace import RequestTrace


class RequestLines:
    """An open file of lines."""

    def __init__(self, path: str, file: TextIO) -> None:
        self._path = path
        self._file = file

    def write(self, trace: RequestTrace, outcome: Outcome, started_s: float) -> None:
        """One line, handed to the system at once.

        Raises:
            BenchError: it cannot be written.
        """
        try:
            self._file.write(json.dumps(request_json(trace, outcome, started_s), separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            raise BenchError(f"cannot write requests to {self._path}: {error.strerror}") from error


@contextlib.contextmanager
def open_request_lines(path: str | None) -> Iterator[RequestLines | None]:
    """The file, made anew; None where there is no path.

    Raises:
        BenchError: it cannot be opened.
    """
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed below, where other errors are not ours
    except OSError as error:
        raise BenchError(f"cannot write requests to {path}: {error.strerror}") from error
    with file:
        yield RequestLines(path, file)


def request_json(trace: RequestTrace, outcome: Outcome, started_s: float, phase: Phase | None = None) -> dict[str, Any]:
    """One request; its times are seconds from the start of the schedule. `phase` None: it is not known yet."""

    def since_start(time_s: float | None) -> float | None:
        return None if time_s is None else round(time_s - started_s, 6)

    planned, told = trace.planned, trace.told
    body = {
        "index": planned.index,
        "trace_id": planned.index if planned.trace_id is None else planned.trace_id,
        "session": planned.session,
        "after": planned.after,
        "slo_class": planned.slo_class,
        "granted": told.granted if told is not None else None,
        "service_tier": trace.service_tier,
        "outcome": outcome.value,
        "status": trace.status,
        "error": trace.error,
        "error_code": trace.error_code,
        "finish_reason": trace.finish_reason,
        "intended_s": since_start(trace.intended_s),
        "sent_s": since_start(trace.sent_s),
        "headers_s": since_start(trace.headers_s),
        "chunks": [[since_start(chunk.time_s), chunk.num_tokens] for chunk in trace.chunks],
        "finished_s": since_start(trace.finished_s),
        "told_targets": dataclasses.asdict(told.targets) if told is not None else None,
        "planned_prompt_tokens": planned.num_prompt_tokens,
        "planned_output_tokens": planned.num_output_tokens,
        "prompt_tokens": trace.num_prompt_tokens,
        "cached_prompt_tokens": trace.num_cached_tokens,
        "cached_prompt_tokens_by_tier": trace.cached_tokens_by_tier,
        "output_tokens": trace.num_output_tokens,
    }
    return body if phase is None else {**body, "phase": phase.value}
