"""One choice of a request and the states it passes through, counted in tokens.

The scheduler never reads a token id: it sees counts, opaque block hashes and finish reasons.
"""

from __future__ import annotations

import dataclasses
import enum

from scheduler.slo import SLO, SLOClass
from scheduler.token_deadlines import TokenDeadlines

BlockHash = bytes
"""Chained key of a full block (see `scheduler.block_hash`), opaque to the scheduler."""

OrderKey = tuple[int, float, float, str, int]
"""Rank, seconds, arrival, group id, place in the group: unique, and the same in whatever order requests are added."""


MAX_FAILED_LOADS = 2


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
    retention: int = 1
    """Priority with which its prompt blocks are kept in cheaper tiers: 1, or 2 where the client named a
    prompt_cache_key or asked for long retention."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose keys and values it may ever hold: the last sampled token is never computed."""
        return self.num_prompt_tokens + max(self.max_tokens, 1) - 1


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """A request inside the scheduler. Compared by identity."""

    spec: RequestSpec
    order: OrderKey
    """Place among the waiting requests and the partial prefills; smaller goes first."""
    seniority: OrderKey
    """Place among the running requests when blocks are short; the largest yields first."""
    rank: int
    """Whose blocks it may take: those of larger ranks. 0 is the highest."""
    slo_class: SLOClass
    """That it is served in."""
    is_protected: bool
    """Its deadlines bound the steps."""
    deadlines: TokenDeadlines
    is_relegated: bool = False
    """Its first token cannot be in time any more: it goes behind those of its class that can."""
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
    num_host_cached_tokens: int = 0
    """Of them, those that were loaded from the host..."""
    num_disk_cached_tokens: int = 0
    """... and those that had come from the disk."""
    num_preemptions: int = 0
    num_lives: int = 0
    """How often it lost its blocks, by preemption or because a load failed: a step of an earlier life is void."""
    num_lost_tokens: int = 0
    """Tokens computed before it lost its blocks: up to there, computing is computing again."""
    started_s: float | None = None
    """When it last got its blocks."""
    is_placed: bool = False
    """A step had it since: the runner knows its table."""
    load_ids: frozenset[int] = frozenset()
    """Transfers under way that bring blocks of its table; it computes nothing meanwhile, unless a step waits for them
    layer by layer."""
    num_failed_loads: int = 0
    """How often it started again because blocks did not arrive."""
    has_read_disk: bool = False
    """Blocks were fetched from the disk for its next start: what is not there by then is computed."""
    num_read_tokens: int = 0
    """That were fetched so."""
    num_registered_blocks: int = 0
    """Leading blocks of its table that were offered to the prefix cache."""
    block_ids: list[int] = dataclasses.field(default_factory=list)
    block_hashes: list[BlockHash] = dataclasses.field(default_factory=list)
    """Hashes of its full blocks so far: the prompt's at first, then extended by `update`."""
    admitted_s: float | None = None
    first_token_s: float | None = None
    """One a request: a preemption does not move it."""
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None
    # Of its spec, for what is done with each running request in each step.
    request_id: str = dataclasses.field(init=False)
    num_prompt_tokens: int = dataclasses.field(init=False)
    max_tokens: int = dataclasses.field(init=False)
    num_kv_tokens: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.request_id, self.num_prompt_tokens = spec.request_id, spec.num_prompt_tokens
        self.max_tokens, self.num_kv_tokens = spec.max_tokens, spec.num_kv_tokens

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and the committed output."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def position(self) -> int:
        """Where its next tokens go: past everything computed and everything in the step in flight."""
        return self.num_computed_tokens + self.num_scheduled_tokens

    @property
    def num_known_tokens(self) -> int:
        """Known tokens and the placeholders of those that the step in flight samples."""
        return self.num_prompt_tokens + self.num_output_tokens + self.num_pending_samples

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens it could compute now; 0 while its last sample is in flight."""
        end = self.num_prompt_tokens + self.num_output_tokens + self.num_pending_samples
        if end > self.num_kv_tokens:
            end = self.num_kv_tokens
        return end - self.num_computed_tokens - self.num_scheduled_tokens

    def move(self, to: RequestStatus) -> None:
        """Change state.

        Raises:
            InvalidTransition: `to` does not follow from the present state.
        """
        if to not in _NEXT[self.status]:
            raise InvalidTransition(f"{self.request_id}: {self.status.value} -> {to.value}")
        self.status = to

    @property
    def has_reached_length(self) -> bool:
        """Everything asked for is there; with `max_tokens` 0 that is the prompt."""
        return self.num_output_tokens >= self.max_tokens and self.num_computed_tokens >= self.num_kv_tokens

    def commit(self, num_tokens: int, samples: bool, now_s: float) -> None:
        """A step that computed `num_tokens` of its tokens, and sampled one if `samples`, is done."""
        self.num_computed_tokens += num_tokens
        self.num_scheduled_tokens -= num_tokens
        if not samples:
            return
        self.num_pending_samples -= 1
        self.num_output_tokens += 1
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.deadlines.emitted(now_s)

    @property
    def trusts_tiers(self) -> bool:
        """Whether it loads what it finds beside the device; not after `MAX_FAILED_LOADS`: it is computed then."""
        return self.num_failed_loads < MAX_FAILED_LOADS

    def forget_computed(self) -> None:
        """Its blocks are gone: everything is to be had again, and what is in flight is void."""
        self.num_lost_tokens = max(self.num_lost_tokens, self.num_computed_tokens)
        self.num_computed_tokens = self.num_scheduled_tokens = self.num_pending_samples = 0
        self.num_lives += 1
        self.is_placed = self.has_read_disk = False
        self.load_ids = frozenset()

    def check(self) -> None:
        """Assert that its counts and times fit each other."""
        name = self.request_id
        assert self.num_tokens_to_compute >= 0, f"{name}: computes more than it knows"
        assert self.num_output_tokens + self.num_pending_samples <= self.max_tokens, f"{name}: too much output"
        if self.status is not RequestStatus.RUNNING:
            assert not self.block_ids and self.position == 0, f"{name}: holds blocks and does not run"
            assert not self.load_ids and not self.is_placed, f"{name}: blocks come for it, and it does not run"
        times = (self.spec.arrival_s, self.admitted_s, self.first_token_s, self.last_token_s)
        known = [t for t in times if t is not None]
        assert known == sorted(known), f"{name}: {times} run backwards"
        self.deadlines.check()
