"""What a step that is done tells of the machine's pace, and of who got its time."""

from __future__ import annotations

from scheduler.admission import AdmissionControl
from scheduler.class_shares import ClassShares
from scheduler.prefill_pace import PrefillPace
from scheduler.request import RequestStatus
from scheduler.steps_in_flight import InFlightStep
from scheduler.waiting_queue import WaitingQueue


class StepAccount:
    """Tells those who keep the numbers; owns none."""

    def __init__(
        self, queue: WaitingQueue, admission: AdmissionControl, pace: PrefillPace, shares: ClassShares | None
    ) -> None:
        self._queue = queue
        self._admission = admission
        self._pace = pace
        self._shares = shares

    def add(self, step: InFlightStep, num_tokens: int, duration_s: float) -> None:
        """A step of so many tokens took so long; its results are taken in."""
        self._admission.observe_step(num_tokens, duration_s)
        if step.has_backlog:
            self._pace.observe(duration_s, sum(e.num_tokens for e in step.entries if e.num_tokens > 1 or not e.samples))
        if self._shares is None:
            return
        tokens_by_class: dict[str, int] = {}
        backlogged = {name for name, count in self._queue.num_requests_by_class.items() if count}
        backlogged |= step.unfinished_classes
        for entry in step.entries:
            name = entry.request.slo_class.name
            tokens_by_class[name] = tokens_by_class.get(name, 0) + entry.num_tokens
            if not entry.samples and entry.request.status is RequestStatus.RUNNING:
                backlogged.add(name)  # by a prompt that is computed in part
        self._shares.observe(duration_s, tokens_by_class, backlogged)
