"""How many requests of a simulation were served in time, over all and by class: judged as served ones are."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler.slo import Outcome, SLOClasses
from server.request_record import RequestRecord
from server.slo_verdict import judge, measure

_LATE = (Outcome.LATE_TTFT, Outcome.LATE_E2E, Outcome.LATE_TPOT, Outcome.LATE_STALL)
_TURNED_AWAY = (Outcome.REFUSED, Outcome.EXPIRED)


@dataclasses.dataclass(frozen=True, slots=True)
class Attainment:
    """Of a set of requests, by the class that they asked for."""

    outcomes: Counter[Outcome]
    ttfts_s: tuple[float, ...]
    """Ascending, of requests that were served."""
    tpots_s: tuple[float, ...]
    refusals: Counter[str]
    """Refused and expired ones, by the code that their clients get."""

    @property
    def num_sent(self) -> int:
        return self.outcomes.total()

    @property
    def num_admitted(self) -> int:
        """Neither refused nor expired."""
        return self.num_sent - sum(self.outcomes[outcome] for outcome in _TURNED_AWAY)

    @property
    def num_late(self) -> int:
        return sum(self.outcomes[outcome] for outcome in _LATE)

    @property
    def offered(self) -> float | None:
        """Met / (sent - cancelled); None: nothing counts. Cancelled are those who left before anything was late."""
        return self._met_of(self.num_sent)

    @property
    def admitted(self) -> float | None:
        """Met / (sent - refused - expired - cancelled); None: nothing counts."""
        return self._met_of(self.num_admitted)

    def _met_of(self, num_requests: int) -> float | None:
        num_judged = num_requests - self.outcomes[Outcome.CANCELLED]
        return self.outcomes[Outcome.MET] / num_judged if num_judged else None

    def values(self) -> dict[str, Any]:
        """For JSON."""
        late = {outcome.value: self.outcomes[outcome] for outcome in _LATE}
        return {
            "sent": self.num_sent,
            "admitted": self.num_admitted,
            "met": self.outcomes[Outcome.MET],
            "refused": self.outcomes[Outcome.REFUSED],
            "expired": self.outcomes[Outcome.EXPIRED],
            "failed": self.outcomes[Outcome.FAILED],
            "cancelled": self.outcomes[Outcome.CANCELLED],
            **late,
            "refusals": dict(sorted(self.refusals.items())),
            "offered_attainment": self.offered,
            "admitted_attainment": self.admitted,
            "ttft_s": _quantiles(self.ttfts_s),
            "tpot_s": _quantiles(self.tpots_s),
        }


def attainment(records: Iterable[RequestRecord], classes: SLOClasses) -> Attainment:
    """Judge finished requests against the class they asked for."""
    outcomes: Counter[Outcome] = Counter()
    refusals: Counter[str] = Counter()
    ttfts, tpots = [], []
    for record in records:
        outcome = judge(record, classes)
        outcomes[outcome] += 1
        if outcome in _TURNED_AWAY:
            refusals[str(record.reason)] += 1
        if any(choice.first_token_s is None for choice in record.choices):
            continue
        measured = measure(record)
        ttfts.append(measured.ttft_s)
        if measured.tpot_s is not None:
            tpots.append(measured.tpot_s)
    return Attainment(outcomes, tuple(sorted(ttfts)), tuple(sorted(tpots)), refusals)


def by_class(records: Sequence[RequestRecord], classes: SLOClasses) -> dict[str, Attainment]:
    """By the class asked for, in the order of ranks; classes that nobody asked for are left out."""
    asked = {record.slo.requested for record in records}
    return {
        name: attainment((record for record in records if record.slo.requested == name), classes)
        for name in classes.names
        if name in asked
    }


def protected_share(records: Sequence[RequestRecord], classes: SLOClasses) -> float:
    """Offered attainment of the protected classes together; where none of them was asked for, of all."""
    share = attainment(counted_for_capacity(records, classes), classes).offered
    return 0.0 if share is None else share


def counted_for_capacity(records: Sequence[RequestRecord], classes: SLOClasses) -> Sequence[RequestRecord]:
    """Those of the protected classes; where none of them was asked for, all."""
    return [record for record in records if classes.get(record.slo.requested).protected] or records


def worst_class(records: Sequence[RequestRecord], classes: SLOClasses) -> str:
    """Of what counts for the capacity, the class with the smallest share in time, and what became of its requests."""
    found = by_class(counted_for_capacity(records, classes), classes)
    name = min(found, key=lambda name: found[name].offered or 0.0)
    fates = ", ".join(f"{outcome.value}: {number}" for outcome, number in found[name].outcomes.most_common())
    return f"{name} ({fates})"


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed; None: there are no values."""
    return ascending[max(math.ceil(share * len(ascending)), 1) - 1] if ascending else None


def _quantiles(ascending: Sequence[float]) -> dict[str, float | None]:
    return {"p50": quantile(ascending, 0.5), "p99": quantile(ascending, 0.99)}
