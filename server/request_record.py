"""When things happened to one offered request: the raw timestamps that its verdict is made of.

All times are seconds on CLOCK_MONOTONIC. The record knows no targets of its own and decides nothing:
`server.slo_verdict` judges it, `server.request_log` writes it down.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol

from engine.messages import GroupAdmitted
from scheduler.slo import SLO


class End(enum.Enum):
    """How a request ended, before its times are judged."""

    COMPLETED = "completed"  # every choice has its finish reason and was handed over
    REFUSED = "refused"  # turned away before it started
    EXPIRED = "expired"  # waited too long and never started
    FAILED = "failed"  # the server's fault: engine death, drain, a bug
    CANCELLED = "cancelled"  # the client left


@dataclasses.dataclass(slots=True)
class ChoiceTimes:
    """The tokens of one choice, as they were handed to the socket."""

    num_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    max_gap_s: float = 0.0
    """Longest time between two chunks of tokens."""
    finish_reason: str | None = None
    """stop | length | abort | error; None: it never finished."""
    chunks: list[tuple[float, int]] | None = None
    """(time, tokens) of each chunk, where the record keeps them."""


class RecordObserver(Protocol):
    """Told of a record's events as they happen, for live metrics."""

    def on_admitted(self, record: RequestRecord, queue_s: float) -> None: ...

    def on_first_tokens(self, record: RequestRecord, ttft_s: float) -> None:
        """Every choice has its first token; `ttft_s` is the latest one's."""

    def on_gap(self, record: RequestRecord, gap_s: float, num_tokens: int) -> None:
        """A later chunk of `num_tokens` tokens came `gap_s` after the one before."""


@dataclasses.dataclass(slots=True)
class RequestRecord:
    """One offered HTTP request, from the moment its body was read."""

    request_id: str
    slo: SLO
    arrival_s: float
    """When the body was read."""
    num_choices: int
    keeps_chunks: bool = False
    """Keep every chunk's time, for the request log."""
    observer: RecordObserver | None = None
    num_prompt_tokens: int = 0
    """Set once the prompt is tokenized; over all prompts of the request."""
    num_cached_tokens: int = 0
    """In all tiers..."""
    num_host_cached_tokens: int = 0
    """... of them on the host..."""
    num_disk_cached_tokens: int = 0
    """... and on the disk."""
    granted: str | None = None
    """Class it was admitted in; None: never admitted."""
    admitted_s: float | None = None
    ttft_target_s: float | None = None
    """The target in force in the granted class, as told to the client."""
    tpot_target_s: float | None = None
    is_best_effort: bool = False
    """The plan in force cannot meet the targets of the granted class."""
    end: End | None = None
    reason: str | None = None
    """Why it was refused, expired or failed; a short code."""
    message: str | None = None
    """What the client was told where it was refused or expired: what was expected, and the target."""
    finished_s: float | None = None
    choices: list[ChoiceTimes] = dataclasses.field(init=False)
    _num_unstarted: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if self.num_choices < 1:
            raise ValueError(f"num_choices is {self.num_choices}, it must be at least 1")
        self.choices = [ChoiceTimes(chunks=[] if self.keeps_chunks else None) for _ in range(self.num_choices)]
        self._num_unstarted = self.num_choices

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def admitted(self, message: GroupAdmitted, now_s: float) -> None:
        """The engine started it: from here its headers may be sent, and its promise stands. Counts once."""
        if self.admitted_s is not None:
            return
        self.admitted_s = now_s
        self.granted = message.granted
        self.num_cached_tokens = message.num_cached_tokens
        self.num_host_cached_tokens = message.num_host_cached_tokens
        self.num_disk_cached_tokens = message.num_disk_cached_tokens
        self.ttft_target_s = message.ttft_target_s
        self.tpot_target_s = message.tpot_target_s
        self.is_best_effort = message.is_best_effort
        if self.observer is not None:
            self.observer.on_admitted(self, now_s - self.arrival_s)

    def token(self, choice: int, now_s: float, n: int = 1) -> None:
        """`n` tokens of a choice are handed to the socket, in one chunk.

        A response that is not streamed hands its tokens over when they are collected: its pace is what the
        engine and the server made of it, the client sees the end alone.
        """
        times = self.choices[choice]
        if times.last_token_s is None:
            times.first_token_s = now_s
            self._num_unstarted -= 1
            if self._num_unstarted == 0 and self.observer is not None:
                self.observer.on_first_tokens(self, now_s - self.arrival_s)
        else:
            gap_s = now_s - times.last_token_s
            times.max_gap_s = max(times.max_gap_s, gap_s)
            if self.observer is not None:
                self.observer.on_gap(self, gap_s, n)
        times.num_tokens += n
        times.last_token_s = now_s
        if times.chunks is not None:
            times.chunks.append((now_s, n))

    def choice_finished(self, choice: int, finish_reason: str) -> None:
        """A choice has its finish reason; the first one counts."""
        if self.choices[choice].finish_reason is None:
            self.choices[choice].finish_reason = finish_reason

    def finish(self, end: End, now_s: float, reason: str | None = None, message: str | None = None) -> bool:
        """The request is over. False: it was already, and nothing changes."""
        if self.end is not None:
            return False
        self.end, self.finished_s, self.reason, self.message = end, now_s, reason, message
        return True
