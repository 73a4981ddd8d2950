"""Every offered request, from its arrival to exactly one outcome."""

from __future__ import annotations

from scheduler.slo import SLO, Outcome, SLOClasses
from server.metrics import Metrics
from server.request_log import RequestLog
from server.request_record import End, RequestRecord
from server.slo_verdict import judge


class RequestLedger:
    """Opens a record for each offered request, and judges, counts and logs it once when it closes.

    Invariant: offered = requests with an outcome + `num_live`, by class.
    """

    def __init__(self, classes: SLOClasses, metrics: Metrics, log: RequestLog | None = None) -> None:
        self._classes = classes
        self._metrics = metrics
        self._log = log
        self._live: dict[int, RequestRecord] = {}

    @property
    def num_live(self) -> int:
        return len(self._live)

    def open(self, request_id: str, slo: SLO, arrival_s: float, num_choices: int) -> RequestRecord:
        """A request whose class is known is offered; `arrival_s` is when its body was read."""
        record = RequestRecord(
            request_id,
            slo,
            arrival_s,
            num_choices,
            keeps_chunks=self._log is not None,
            observer=self._metrics.observer,
        )
        self._live[id(record)] = record
        self._metrics.observe_offered(record)
        return record

    def close(
        self, record: RequestRecord, end: End, now_s: float, reason: str | None = None, message: str | None = None
    ) -> Outcome:
        """The request is over. The first call decides; a later one changes and counts nothing."""
        is_first = record.finish(end, now_s, reason, message)
        outcome = judge(record, self._classes)
        if is_first:
            del self._live[id(record)]
            self._metrics.finish(record, outcome)
            if self._log is not None and not self._log.write(record, outcome):
                self._metrics.observe_lost_log_line()
        return outcome

    def check(self) -> None:
        """Assert what must always hold."""
        assert all(record.end is None for record in self._live.values())
        live = dict.fromkeys(self._classes.names, 0)
        for record in self._live.values():
            live[record.slo.requested] += 1
        for name, counts in self._metrics.request_counts().items():
            ended = sum(counts[outcome.value] for outcome in Outcome)
            assert counts["offered"] == ended + live[name], f"{name}: {counts}, {live[name]} live"
