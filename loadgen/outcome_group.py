"""Outcomes as a picture shows them: few groups, each with a name and a filling of its own."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from loadgen.metrics import LATE, Outcome


class OutcomeGroup(enum.Enum):
    """Named as in the report; the value is also the name of its filling."""

    MET = "met"
    LATE = "late"
    REFUSED = "refused"
    FAILED = "failed"
    OTHER = "not judged"

    @property
    def fill(self) -> str:
        """Name of the CSS class and of the pattern."""
        return self.value.replace(" ", "-")


_GROUPS: Mapping[Outcome, OutcomeGroup] = {
    Outcome.MET: OutcomeGroup.MET,
    **dict.fromkeys(LATE, OutcomeGroup.LATE),
    Outcome.REFUSED: OutcomeGroup.REFUSED,
    Outcome.EXPIRED: OutcomeGroup.REFUSED,
    Outcome.FAILED: OutcomeGroup.FAILED,
    Outcome.TIMED_OUT: OutcomeGroup.FAILED,
    Outcome.CANCELLED: OutcomeGroup.OTHER,
    Outcome.UNJUDGED: OutcomeGroup.OTHER,
}
GROUP_TEXT: Mapping[OutcomeGroup, str] = {
    OutcomeGroup.MET: "met every target",
    OutcomeGroup.LATE: "late: missed a target",
    OutcomeGroup.REFUSED: "refused, or expired in the queue",
    OutcomeGroup.FAILED: "failed or timed out",
    OutcomeGroup.OTHER: "cancelled, or without a target",
}


def group_of(outcome: Outcome) -> OutcomeGroup:
    return _GROUPS[outcome]
