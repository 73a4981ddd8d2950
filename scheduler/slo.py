"""Latency-SLO classes, the promise made to one request, and the outcomes it can have.

Definitions: TTFT is measured from the moment the body was read to the first token handed to the socket;
TPOT is (t_last - t_first) / (n - 1), undefined for n = 1; a stall is the longest gap between two tokens.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Literal


class Outcome(enum.Enum):
    """What became of an offered request. Exactly one a request; every offered request has one."""

    MET = "met"
    LATE_TTFT = "late_ttft"
    LATE_TPOT = "late_tpot"
    LATE_STALL = "late_stall"
    LATE_E2E = "late_e2e"
    REFUSED = "refused"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True, slots=True)
class SLOClass:
    """One latency class: its targets, its rights and its limits."""

    name: str
    rank: int
    """0 is the highest; a request never preempts one of a lower or equal number."""
    service_tiers: tuple[str, ...]
    """OpenAI `service_tier` values that ask for this class; the first is what a response reports."""
    ttft_base_s: float
    ttft_per_1k_tokens_s: float
    """Added to `ttft_base_s` per 1,000 uncached prompt tokens."""
    tpot_s: float
    max_stall_s: float | None
    """Longest gap between two tokens that still meets the target; None: not judged."""
    protected: bool
    """A protected class's deadlines bound the step's time budget."""
    when_infeasible: Literal["refuse", "degrade", "queue"]
    degrade_to: str | None
    objective: float
    """Share of offered requests that should meet their targets, 0..1."""
    share: float
    """Share of step time the class gets when it is backlogged, 0..1."""
    queue_cap_tokens: int
    """Prompt tokens of queued requests above which the class refuses (429)."""
    max_wait_s: float
    """A request that has not started by then expires (503)."""

    def __post_init__(self) -> None:
        for field, low in (("ttft_base_s", 0.0), ("tpot_s", 0.0), ("queue_cap_tokens", 0), ("max_wait_s", 0.0)):
            value = getattr(self, field)
            if not value > low:
                raise ValueError(f"class {self.name!r}: {field} is {value}, it must be above {low}")
        for field in ("objective", "share"):
            value = getattr(self, field)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"class {self.name!r}: {field} is {value}, it must lie in 0..1")

    @property
    def is_guaranteed(self) -> bool:
        """A request is let in only with a promise; else it queues, and may be late."""
        return self.when_infeasible != "queue"

    def ttft_s(self, num_uncached_prompt_tokens: int) -> float:
        """Target of the time to first token, in seconds, for a prompt of that many uncached tokens."""
        return self.ttft_base_s + self.ttft_per_1k_tokens_s * num_uncached_prompt_tokens / 1000.0


@dataclasses.dataclass(frozen=True, slots=True)
class SLO:
    """What one request asked for and was granted. Crosses the process boundary."""

    requested: str
    """Name of the class asked for: the label `slo_class` of every metric."""
    granted: str
    """Name of the class it is served in; differs from `requested` only after a consented degrade."""
    ttft_s: float | None = None
    """The client's own TTFT target; None: the class's, by uncached prompt length."""
    tpot_s: float | None = None
    """The client's own TPOT target; None: the class's."""
    e2e_deadline_s: float | None = None
    """Seconds from arrival to the last token; None: not judged."""
    may_degrade: bool = False
    """The client consents to being served in `degrade_to` of its class."""

    def ttft_target_s(self, slo_class: SLOClass, num_uncached_prompt_tokens: int) -> float:
        """The TTFT target in force: the client's own, else that of the class it is served in."""
        return slo_class.ttft_s(num_uncached_prompt_tokens) if self.ttft_s is None else self.ttft_s

    def first_token_limit_s(self, slo_class: SLOClass, num_uncached_prompt_tokens: int) -> float:
        """Seconds after arrival by which the first token must come: its target, or an end that comes before."""
        limit_s = self.ttft_target_s(slo_class, num_uncached_prompt_tokens)
        return limit_s if self.e2e_deadline_s is None else min(limit_s, self.e2e_deadline_s)

    def tpot_target_s(self, slo_class: SLOClass) -> float:
        """The TPOT target in force: the client's own, else that of the class it is served in."""
        return slo_class.tpot_s if self.tpot_s is None else self.tpot_s

    def start_limit_s(self, slo_class: SLOClass) -> float:
        """Seconds after arrival at which it expires unless one of its choices has started."""
        limit_s = slo_class.max_wait_s
        return limit_s if self.e2e_deadline_s is None else min(limit_s, self.e2e_deadline_s)


DEFAULT_CLASSES: tuple[SLOClass, ...] = (
    SLOClass("realtime", 0, ("priority",), 0.4, 0.1, 0.030, 0.150, True, "refuse", None, 0.99, 0.30, 8_000, 10.0),
    SLOClass(
        "interactive", 1, ("fast",), 1.0, 0.2, 0.050, 0.500, True, "degrade", "standard", 0.99, 0.30, 32_000, 30.0
    ),
    SLOClass("standard", 2, ("default", "auto"), 3.0, 0.3, 0.080, 2.0, True, "queue", None, 0.95, 0.25, 128_000, 600.0),
    SLOClass("batch", 3, ("flex",), 600.0, 0.0, 0.400, None, False, "queue", None, 0.90, 0.10, 1_000_000, 600.0),
)


class SLOClasses:
    """The table of classes, immutable, looked up by name or by service tier.

    Raises:
        ValueError: names, ranks or tiers repeat; a `degrade_to` or the default names no class; shares exceed 1.
    """

    def __init__(self, classes: tuple[SLOClass, ...] = DEFAULT_CLASSES, default: str = "standard") -> None:
        self._by_name = {c.name: c for c in classes}
        self._by_tier = {tier: c for c in classes for tier in c.service_tiers}
        if len(self._by_name) != len(classes):
            raise ValueError(f"class names repeat: {[c.name for c in classes]}")
        if len({c.rank for c in classes}) != len(classes):
            raise ValueError(f"class ranks repeat: {[(c.name, c.rank) for c in classes]}")
        if len(self._by_tier) != sum(len(c.service_tiers) for c in classes):
            raise ValueError(f"a service tier names two classes: {[(c.name, c.service_tiers) for c in classes]}")
        if default not in self._by_name:
            raise ValueError(f"default class {default!r} is not one of {sorted(self._by_name)}")
        for c in classes:
            if c.degrade_to is not None and c.degrade_to not in self._by_name:
                raise ValueError(f"class {c.name!r}: degrade_to {c.degrade_to!r} is not one of {sorted(self._by_name)}")
        if sum(c.share for c in classes) > 1.0 + 1e-9:
            raise ValueError(f"shares add up to {sum(c.share for c in classes):.3f}, the limit is 1")
        self._classes = tuple(sorted(classes, key=lambda c: c.rank))
        self._default = default

    def __iter__(self) -> Iterator[SLOClass]:
        return iter(self._classes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self._classes)

    @property
    def default(self) -> SLOClass:
        return self._by_name[self._default]

    def get(self, name: str) -> SLOClass:
        """Raises KeyError: no class of that name."""
        return self._by_name[name]

    def by_tier(self, tier: str) -> SLOClass | None:
        """The class a `service_tier` asks for; None: no class claims that tier."""
        return self._by_tier.get(tier)
