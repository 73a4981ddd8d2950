"""What the client saw of one request: raw timestamps and counts, from which `loadgen.metrics` computes everything."""

from __future__ import annotations

import dataclasses
import enum

from loadgen.targets import ToldTargets
from loadgen.workload import PlannedRequest


class TraceEnd(enum.Enum):
    """How a request ended for the client, before its times are judged."""

    COMPLETED = "completed"
    REFUSED = "refused"  # 429, or 503: no room
    EXPIRED = "expired"  # 503: it waited too long in the server's queue
    FAILED = "failed"  # any other answer, a broken stream, a broken connection
    TIMED_OUT = "timed_out"  # our own patience ended
    CANCELLED = "cancelled"  # the run was interrupted, or the client left as planned


LEFT = "left"
"""Error code of a request whose client left as planned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the answer's text."""

    time_s: float
    num_tokens: int
    """1 where the server does not say how many tokens a chunk carries."""


@dataclasses.dataclass(slots=True)
class RequestTrace:
    """One request. All times are seconds on the client's monotonic clock."""

    planned: PlannedRequest
    intended_s: float
    """When it was due: what every latency is measured from."""
    sent_s: float
    """When it was handed to the HTTP client."""
    headers_s: float | None = None
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    finished_s: float | None = None
    end: TraceEnd | None = None
    status: int | None = None
    error: str | None = None
    """One line: why it is not completed."""
    error_code: str | None = None
    """The `code` that the server gave, else a name of what happened: what equal errors have in common."""
    finish_reason: str | None = None
    told: ToldTargets | None = None
    service_tier: str | None = None
    """As the response reports it: the tier granted."""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    cached_tokens_by_tier: dict[str, int] | None = None
    """Where the cached ones were."""
    usage_output_tokens: int | None = None
    """All from the response's usage; None: the server did not say."""
    answer: str = ""
    """Kept for requests of a conversation alone."""

    @property
    def is_left(self) -> bool:
        """Whether its client left as planned."""
        return self.end is TraceEnd.CANCELLED and self.error_code == LEFT

    @property
    def num_output_tokens(self) -> int:
        """As the server counts them, else as the chunks do."""
        if self.usage_output_tokens is not None:
            return self.usage_output_tokens
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_uncached_tokens(self) -> int:
        """Prompt tokens that the server had to compute, as far as it is known."""
        num_prompt_tokens = self.num_prompt_tokens
        if num_prompt_tokens is None:
            num_prompt_tokens = self.planned.num_prompt_tokens
        return max(num_prompt_tokens - (self.num_cached_tokens or 0), 0)

    @property
    def send_lag_s(self) -> float:
        return max(self.sent_s - self.intended_s, 0.0)

    def finish(self, end: TraceEnd, now_s: float, error: str | None = None, code: str | None = None) -> None:
        """The request is over; the first call counts."""
        if self.end is None:
            self.end, self.finished_s, self.error, self.error_code = end, now_s, error, code
