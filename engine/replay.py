"""Run the scheduler again from a recording and compare every decision."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from engine.errors import EventLogError, ReplayMismatch
from engine.event_log import AddAction, Header, ScheduleFrame, UpdateFrame, digest, read_frames
from scheduler.latency_model import LatencyModel
from scheduler.output import SchedulerOutput
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay that agreed with its recording went through."""

    num_processes: int
    """Engine processes that wrote the log."""
    num_steps: int
    num_tokens: int
    """Scheduled, over all steps."""


class _Replay:
    """One scheduler made anew per header, fed with the recorded inputs."""

    def __init__(self, header: Header, process: int) -> None:
        self._process = process
        classes = SLOClasses(header.classes, header.default_class)
        latency = None if header.latency is None else LatencyModel(header.latency)
        self._scheduler = Scheduler(
            header.scheduler, classes, header.num_blocks, header.max_model_len, latency, header.tiers
        )
        self._in_flight: dict[int, SchedulerOutput] = {}

    def schedule(self, frame: ScheduleFrame) -> SchedulerOutput:
        """Raises ReplayMismatch: a verdict, an abort or the step differs."""
        self._scheduler.observe(frame.link)
        for action in frame.actions:
            if isinstance(action, AddAction):
                if self._scheduler.add(action.specs, action.now_s) != action.verdict:
                    raise self._mismatch(frame.step_id, f"the verdict on group {action.specs[0].group_id}")
            elif self._scheduler.abort(action.request_ids, action.now_s) != action.finished:
                raise self._mismatch(frame.step_id, f"what the abort of {', '.join(action.request_ids)} ended")
        output = self._scheduler.schedule(frame.now_s, frame.link)
        if output.step_id != frame.step_id or digest(output) != frame.digest:
            raise self._mismatch(frame.step_id, "what was scheduled")
        self._in_flight[output.step_id] = output
        return output

    def _mismatch(self, step_id: int, what: str) -> ReplayMismatch:
        return ReplayMismatch(self._process, step_id, what)

    def update(self, frame: UpdateFrame) -> None:
        """Raises ReplayMismatch: other requests finished."""
        output = self._in_flight.pop(frame.result.step_id, None)
        if output is None:
            raise self._mismatch(frame.result.step_id, "the order of the frames")
        if digest(self._scheduler.update(output, frame.result, frame.now_s)) != frame.digest:
            raise self._mismatch(frame.result.step_id, "what the step ended")


def replay(path: Path) -> ReplayReport:
    """Re-run the scheduler from the log at `path`.

    Raises:
        ReplayMismatch: names the first step that differs.
        EventLogError: the log cannot be read.
        OSError: the file cannot be read.
    """
    num_processes = num_steps = num_tokens = 0
    session: _Replay | None = None
    for frame in read_frames(path):
        if isinstance(frame, Header):
            num_processes += 1
            session = _Replay(frame, num_processes)
        elif session is None:
            raise EventLogError(f"{path}: the first frame is no header")
        elif isinstance(frame, ScheduleFrame):
            num_tokens += session.schedule(frame).num_tokens
            num_steps += 1
        else:
            session.update(frame)
    if session is None:
        raise EventLogError(f"{path}: no engine process that became ready has written to it")
    return ReplayReport(num_processes, num_steps, num_tokens)
