"""The records of a step: what the runner shall do, and what came of it. Plain values, no tensors."""

from __future__ import annotations

import dataclasses
import enum

from scheduler.kv_transfer import GatedLoad, KVTransfer, TransferResult
from scheduler.request import BlockHash, FinishReason


@dataclasses.dataclass(slots=True)
class ScheduledRequest:
    """The part of one request in a step: prefill, chunk, decode and recomputation are values of `num_tokens`.

    Nobody changes it. It is not frozen, because one is made for every running request in every step, and that would
    take six times as long.
    """

    request_id: str
    num_tokens: int
    """Tokens to compute, from position `num_computed_tokens` on; at least 1."""
    num_computed_tokens: int
    first_block: int
    """Index in the request's block table at which `new_block_ids` go; 0 with a whole table at a (re)start."""
    new_block_ids: tuple[int, ...]
    samples: bool
    """True: the row of the last of these tokens yields the next token."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy all layers of block `source` to block `target` on the device before the step computes."""

    source: int
    target: int


class VerdictKind(enum.Enum):
    ADMIT = "admit"
    QUEUE = "queue"
    DEGRADE = "degrade"
    REFUSE = "refuse"


class RefusalReason(enum.Enum):
    """Why a group is refused or leaves the queue; the server maps each to a status and an OpenAI error."""

    NEVER_FITS = "never_fits"  # 400: can never be served by this instance
    CLASS_QUEUE_FULL = "class_queue_full"  # 429
    INSTANCE_FULL = "instance_full"  # 503
    CLASS_CLOSED = "slo_infeasible"  # 429, not to be retried: the targets cannot be met whatever the load
    SLO_UNATTAINABLE = "slo_unattainable"  # 429: the targets cannot be met under the load of the moment
    EXPIRED = "expired"  # 503: not started within max_wait_s or its end-to-end deadline
    DRAINING = "draining"  # 503


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What `Scheduler.add` decides on a group, before any byte is sent."""

    kind: VerdictKind
    granted: str
    """Name of the class it is served in."""
    reason: RefusalReason | None = None
    message: str = ""
    """For the client: names the value, the limit and the way out."""
    retry_after_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """A choice's first start: from here its headers may be sent."""

    request_id: str
    group_id: str
    num_cached_tokens: int
    """In all tiers."""
    ttft_target_s: float
    """The target in force, after the cached tokens are known."""
    tpot_target_s: float
    is_best_effort: bool = False
    """It will be late: the plan in force cannot meet the class's targets, or its first token is overdue already."""
    num_host_cached_tokens: int = 0
    """Of the cached ones, those that are loaded from the host..."""
    num_disk_cached_tokens: int = 0
    """... and those that came from the disk."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What live requests want of the device's memory, and for whom."""

    num_wanted_blocks: int = 0
    """Blocks that running requests use and waiting ones need to start, as far as there are seats."""
    num_blocks_beyond: int = 0
    """Blocks at or beyond the border in force that are still used; 0: the border is clear."""
    classes: tuple[str, ...] = ()
    """Granted classes of live requests, by rank."""
    tightest_tpot_s: float | None = None
    """The least time per output token that a protected running request was promised, of those promises that the plan in
    force can keep; None: there is none."""
    decode_s: float | None = None
    """What the step's decodes alone take at the layers streamed now, 19 times of 20; None: nobody knows."""
    is_late: bool = False
    """That is more than the tightest promise, and a streamed layer fewer would make it less."""


@dataclasses.dataclass(frozen=True, slots=True)
class Expiry:
    """A group that left the queue before it started: it waited too long, or its class closed."""

    group_id: str
    message: str
    retry_after_s: float | None
    """Estimate, from what waited ahead of it; None: there is no use in coming back."""
    reason: RefusalReason = RefusalReason.EXPIRED


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step. Deterministic in the scheduler's state, `now_s` and the link snapshot."""

    step_id: int
    now_s: float
    scheduled: tuple[ScheduledRequest, ...]
    block_copies: tuple[BlockCopy, ...] = ()
    admissions: tuple[Admission, ...] = ()
    preempted: tuple[str, ...] = ()
    """Request ids that lost their blocks in this step."""
    expired: tuple[Expiry, ...] = ()
    predicted_s: float | None = None
    """Predicted duration of the step; None where there is no latency model."""
    budget_s: float | None = None
    """Time budget of the step; None: bounded by tokens alone."""
    demand: MemoryDemand = MemoryDemand()
    """After what this step takes."""
    reasons: tuple[str, ...] = ()
    """Why something was not scheduled: short codes for logs and metrics."""
    transfers: tuple[KVTransfer, ...] = ()
    """Copies of blocks to start before the step computes."""
    gated_loads: tuple[GatedLoad, ...] = ()
    """Loads, of this step or of earlier ones, whose requests it computes before they are known to have arrived."""

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.scheduled)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestResult:
    """What a step did for one scheduled request, without token ids."""

    request_id: str
    num_sampled: int
    """0 or 1; 0 where a load that it was computed upon failed."""
    finish_reason: FinishReason | None
    """STOP where the engine saw a stop token, ERROR where the runner failed; LENGTH is the scheduler's own."""
    new_block_hashes: tuple[BlockHash, ...]
    """Hashes of the blocks that became full with this step's tokens, in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """What came of step `step_id`; given to `Scheduler.update`, possibly one step late."""

    step_id: int
    results: tuple[RequestResult, ...]
    transfers: tuple[TransferResult, ...] = ()
    """Copies of blocks that have ended since the last update, those that the step was gated on among them."""


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedRequest:
    """Returned by `update`, `abort` and `schedule` (expiry): the engine drops its state and tells the server."""

    request_id: str
    group_id: str
    finish_reason: FinishReason
