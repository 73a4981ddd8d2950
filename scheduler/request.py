"""One choice of a request and the states it passes through, counted in tokens.

The scheduler never reads a token id: it sees counts, opaque block hashes and finish reasons.
"""

from __future__ import annotations

import dataclasses
import enum

from scheduler.slo import SLO

BlockHash = bytes
"""Chained key of a full block (see `scheduler.block_hash`), opaque to the scheduler."""


class InvalidTransition(RuntimeError):
    """A request was moved between two states that no edge joins. Always a bug of ours."""


class RequestStatus(enum.Enum):
    WAITING = "waiting"  # holds no device block
    RUNNING = "running"  # its blocks are on the device
    FINISHED = "finished"  # final; every block is given back


class FinishReason(enum.Enum):
    STOP = "stop"  # an end-of-sequence or stop token, or a stop string found by the server
    LENGTH = "length"  # max_tokens reached
    ABORT = "abort"  # the client left, a deadline passed, drain or shutdown
    ERROR = "error"  # the runner failed


_NEXT: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING, RequestStatus.FINISHED}),
    RequestStatus.RUNNING: frozenset({RequestStatus.WAITING, RequestStatus.FINISHED}),
    RequestStatus.FINISHED: frozenset(),
}


@dataclasses.dataclass(frozen=True, slots=True)
class RequestSpec:
    """What the scheduler is told of one choice when it arrives."""

    request_id: str
    """Unique among live requests."""
    group_id: str
    """All choices of one HTTP request; admitted, refused and cancelled together."""
    num_prompt_tokens: int
    """At least 1."""
    max_tokens: int
    """Output tokens after which it finishes with LENGTH; 0: the prompt is computed and nothing sampled."""
    block_hashes: tuple[BlockHash, ...]
    """One per full block of the prompt."""
    slo: SLO
    arrival_s: float
    """When the body was read, on the engine's clock."""
    leader_id: str | None = None
    """The choice of the same prompt whose computed blocks this one takes over; None: it leads itself."""
    reads_prefix_cache: bool = True
    """False where prompt logprobs need every prompt row computed."""
    tenant: str = ""


@dataclasses.dataclass(slots=True)
class Request:
    """A request inside the scheduler."""

    spec: RequestSpec
    status: RequestStatus = RequestStatus.WAITING
    num_output_tokens: int = 0
    """Sampled and committed through `update`."""
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in its blocks, committed through `update`."""
    num_scheduled_tokens: int = 0
    """Tokens in a step that was scheduled and not yet updated."""
    num_pending_samples: int = 0
    """Samples that the step in flight will return: the placeholders of the tokens to come."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    num_preemptions: int = 0
    block_ids: list[int] = dataclasses.field(default_factory=list)
    block_hashes: list[BlockHash] = dataclasses.field(default_factory=list)
    """Hashes of its full blocks so far: the prompt's at first, then extended by `update`."""
    admitted_s: float | None = None
    first_token_s: float | None = None
    """One a request: a preemption does not move it."""
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and the committed output."""
        return self.spec.num_prompt_tokens + self.num_output_tokens

    def move(self, to: RequestStatus) -> None:
        """Change state.

        Raises:
            InvalidTransition: `to` does not follow from the present state.
        """
        if to not in _NEXT[self.status]:
            raise InvalidTransition(f"{self.request_id}: {self.status.value} -> {to.value}")
        self.status = to
