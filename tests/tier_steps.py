"""What the rig of the tiers knows of live requests and of steps in flight."""

from __future__ import annotations

import dataclasses

from scheduler.output import Admission, ScheduledRequest, SchedulerOutput
from scheduler.request import RequestSpec
from tests.device_model import ModelSequence


@dataclasses.dataclass(eq=False)
class Choice:
    """A live request, as far as the engine knows it."""

    sequence: ModelSequence
    table: list[int] | None = None
    """None: it does not run, as far as steps have told."""
    position: int = 0
    """Past everything scheduled."""
    num_computed: int = 0
    """Past everything updated."""
    num_pending: int = 0
    """Samples in flight."""
    admission: Admission | None = None

    @property
    def name(self) -> str:
        return self.sequence.request_id

    @property
    def spec(self) -> RequestSpec:
        return self.sequence.spec

    def stop(self) -> None:
        """Its blocks are gone, and so is what it was to sample."""
        self.table = None
        self.position = self.num_computed = self.num_pending = 0
        del self.sequence.chain[self.sequence.num_committed_tokens :]


@dataclasses.dataclass(frozen=True)
class Part:
    scheduled: ScheduledRequest
    choice: Choice
    table: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.scheduled.num_computed_tokens + self.scheduled.num_tokens


@dataclasses.dataclass
class Step:
    """Scheduled and not updated."""

    output: SchedulerOutput
    parts: tuple[Part, ...]
    end_s: float
    has_run: bool = False
    void: set[str] = dataclasses.field(default_factory=set)
    """Requests that lost their blocks since it was scheduled."""
    spoilt: set[str] = dataclasses.field(default_factory=set)
    """Requests that were computed upon a load that failed."""
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)

    def is_gated(self, name: str, transfer_id: int) -> bool:
        return any(g.request_id == name and g.transfer_id == transfer_id for g in self.output.gated_loads)
