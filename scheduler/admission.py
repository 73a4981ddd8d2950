"""The verdict on a group on arrival: can it ever be served, can its promise be kept, and is there room to wait."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler.block_pool import BlockPool
from scheduler.class_shares import ClassShares
from scheduler.closed_class import other_class, why_closed
from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.output import RefusalReason, Verdict, VerdictKind
from scheduler.policy import Policy
from scheduler.promise_book import PromiseBook
from scheduler.promise_test import PromiseTest, Shortfall
from scheduler.request import Request, RequestSpec
from scheduler.running_set import RunningSet
from scheduler.servable import ServableLimits
from scheduler.slo import SLOClass
from scheduler.stats import PromiseStats
from scheduler.waiting_queue import WaitingQueue, num_queued_tokens

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
WANTED_S = 30.0
"""So long after it was asked for, a pace is kept possible."""
RATE_DECAY = 0.98
"""Weight of the past per step in the observed token rate: about 50 steps count."""


class AdmissionControl:
    """Judges groups by what it looks at: the queue, what runs, the pool. It changes none of them.

    Where promises are tested, it keeps the book of them: the scheduler tells it what becomes of every request that it
    let in: `added` whenever one waits (on arrival and after a preemption), `started` when it runs, `computed` and
    `emitted` by step, `left` at its end.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy,
        max_model_len: int,
        watermark_blocks: int,
        queue: WaitingQueue,
        running: RunningSet,
        pool: BlockPool,
        latency: LatencyModel | None = None,
        shares: ClassShares | None = None,
    ) -> None:
        """
        Args:
            latency: predicts steps; only read here. None: no promise is tested, the caps alone decide.
            shares: of step time; only read here. None: the policy gives none.
        """
        self._config = config
        self._classes = classes = policy.classes
        self._watermark_blocks = watermark_blocks
        self._queue = queue
        self._running = running
        self._pool = pool
        self._limits = ServableLimits(config, pool.num_blocks, max_model_len)
        self._book: PromiseBook | None = None
        self._promises: PromiseTest | None = None
        # Steps that end where tokens end, whatever is due, keep no pace: fcfs makes no promises.
        if latency is not None and config.admission == "promise" and config.scheduler_policy != "fcfs":
            self._book = PromiseBook(config, classes, pool)
            self._promises = PromiseTest(
                config,
                classes,
                policy,
                max_model_len,
                watermark_blocks,
                queue,
                running,
                pool,
                latency,
                self._book,
                shares,
            )
        self._link = NO_LINK
        self._has_new_floors = False
        self._wanted: dict[str, tuple[float, float]] = {}
        """By class with promises: the pace that was asked for last, and when."""
        self._recent_tokens = 0.0
        self._recent_s = 0.0

    def observe_link(self, link: LinkSnapshot) -> None:
        """What is judged by from here."""
        if link.classes is not self._link.classes and link.classes != self._link.classes:
            self._has_new_floors = True
        self._link = link
        if self._promises is not None:
            self._promises.observe_link(link)

    def wanted_tpot_s(self, now_s: float) -> float:
        """The tightest pace that classes with promises were asked for of late; infinite: none was."""
        return min((tpot_s for tpot_s, at_s in self._wanted.values() if now_s - at_s < WANTED_S), default=math.inf)

    def observe_step(self, num_tokens: int, duration_s: float) -> None:
        """A step computed that many tokens in that time."""
        self._recent_tokens = self._recent_tokens * RATE_DECAY + num_tokens
        self._recent_s = self._recent_s * RATE_DECAY + max(duration_s, 0.0)

    # What becomes of requests.

    def added(self, request: Request) -> None:
        """It waits: it arrived, or it lost its blocks and computes its tokens again."""
        if self._book is not None:
            self._book.added(request)

    def started(self, request: Request, now_s: float) -> None:
        """It runs; what it found in the prefix cache is known."""
        if self._book is not None:
            self._book.started(request, now_s)

    def computed(self, request: Request) -> None:
        """More of its tokens are computed and committed, not all of them as decodes."""
        if self._book is not None:
            self._book.computed(request)

    def emitted(self, request: Request, now_s: float) -> None:
        """A token of it is out."""
        if self._book is not None:
            self._book.emitted(request, now_s)

    def left(self, request: Request) -> None:
        """It is over, whatever the reason."""
        if self._book is not None:
            self._book.left(request)

    def stats(self) -> PromiseStats:
        """The margin of now and what became of promises so far."""
        if self._book is None:
            return PromiseStats()
        margin = self._book.margin
        return PromiseStats(margin.value, margin.num_kept, margin.num_broken)

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that what is kept is of these live requests."""
        if self._book is not None:
            self._book.check(requests)

    def judge(self, group: tuple[RequestSpec, ...], now_s: float) -> Verdict:
        """ADMIT: there is room to start it at once. QUEUE: it waits. DEGRADE: it is served in a lower class.

        A class that is refused or degraded where its targets cannot be met takes a group only with a promise. The caps
        are for what must wait: a group that can start, or the only one of its class, is never refused for them, so
        that what is refused can come back.
        """
        slo = group[0].slo
        slo_class = self._classes.get(slo.granted)
        if (never := self._limits.why_never(group)) is not None:
            return _refuse(slo_class, RefusalReason.NEVER_FITS, never, None)
        if (closed := why_closed(slo, slo_class, self._link)) is not None:
            return self._degraded(group, slo_class, now_s) or _refuse(
                slo_class, RefusalReason.CLASS_CLOSED, closed, None
            )
        if (short := self._shortfall(group, slo_class, now_s)) is not None:
            return self._degraded(group, slo_class, now_s) or self._refuse_promise(slo_class, short)
        if self._can_start(group):
            return Verdict(VerdictKind.ADMIT, slo_class.name)
        num_tokens = sum(map(num_queued_tokens, group))
        if len(self._running) + self._queue.num_requests + len(group) > self._limits.max_live_requests:
            return self._refuse_full_instance(slo_class)
        if self._has_room(slo_class, num_tokens):
            return Verdict(VerdictKind.QUEUE, slo_class.name)
        return self._degraded(group, slo_class, now_s) or self._refuse_full_class(slo_class, num_tokens)

    def has_new_floors(self) -> bool:
        """Whether floors have changed since this was asked last: `why_closed` may judge what waits otherwise."""
        has_new, self._has_new_floors = self._has_new_floors, False
        return has_new

    def why_closed(self, request: Request) -> str | None:
        """Why a request's targets cannot be met whatever the load, for its client; None: they can, or may be late."""
        return why_closed(request.spec.slo, self._classes.get(request.spec.slo.granted), self._link)

    def _shortfall(self, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float) -> Shortfall | None:
        """Why no promise can be made to a group in a class; None: it can, or the class makes none."""
        if self._promises is None or not slo_class.is_guaranteed:
            return None
        self._wanted[slo_class.name] = group[0].slo.tpot_target_s(slo_class), now_s
        return self._promises.shortfall(group, slo_class, now_s)

    def _degraded(self, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float) -> Verdict | None:
        """In the lower class that its client consented to, if that is open, keeps its promises and has room."""
        if not group[0].slo.may_degrade or slo_class.degrade_to is None:
            return None
        lower, floor = self._classes.get(slo_class.degrade_to), self._link.floor(slo_class.degrade_to)
        is_open = (floor is None or floor.is_open) and why_closed(group[0].slo, lower, self._link) is None
        if not is_open or not self._has_room(lower, sum(map(num_queued_tokens, group))):
            return None
        if len(self._running) + self._queue.num_requests + len(group) > self._limits.max_live_requests:
            return None
        if self._shortfall(group, lower, now_s) is not None:
            return None
        return Verdict(VerdictKind.DEGRADE, lower.name)

    def _can_start(self, group: tuple[RequestSpec, ...]) -> bool:
        """Whether all that wait and this group can run beside what runs now. Prefix hits are not counted on."""
        if len(self._running) + self._queue.num_requests + len(group) > self._config.max_num_seqs:
            return False
        block_size = self._config.block_size
        num_blocks = sum(-(-s.num_prompt_tokens // block_size) if s.leader_id is None else 1 for s in group)
        return self._queue.num_blocks + num_blocks + self._watermark_blocks <= self._pool.num_free_blocks

    def _has_room(self, slo_class: SLOClass, num_tokens: int) -> bool:
        queued = self._queue.num_tokens_by_class[slo_class.name]
        return queued == 0 or queued + num_tokens <= slo_class.queue_cap_tokens

    def _refuse_promise(self, slo_class: SLOClass, short: Shortfall) -> Verdict:
        if short.retry_after_s is None:
            message = f"class {slo_class.name!r}: {short.what}; {other_class(slo_class)}"
            return _refuse(slo_class, RefusalReason.CLASS_CLOSED, message, None)
        assert self._book is not None
        self._book.margin.refused()
        message = (
            f"class {slo_class.name!r}: {short.what}; retry in {short.retry_after_s:.3g} s, allow more time, "
            f"{other_class(slo_class)}"
        )
        return _refuse(slo_class, RefusalReason.SLO_UNATTAINABLE, message, short.retry_after_s)

    def _refuse_full_instance(self, slo_class: SLOClass) -> Verdict:
        message = (
            f"{self._queue.num_requests} requests wait and {self._config.max_queued_requests} may "
            f"(max_queued_requests); retry later"
        )
        return _refuse(slo_class, RefusalReason.INSTANCE_FULL, message, self.retry_after_s(slo_class))

    def _refuse_full_class(self, slo_class: SLOClass, num_tokens: int) -> Verdict:
        queued = self._queue.num_tokens_by_class[slo_class.name]
        message = (
            f"class {slo_class.name!r} has {queued} prompt tokens waiting and takes {slo_class.queue_cap_tokens}, "
            f"this request has {num_tokens}; retry later, shorten the prompt or ask for another class"
        )
        return _refuse(slo_class, RefusalReason.CLASS_QUEUE_FULL, message, self.retry_after_s(slo_class))

    def retry_after_s(self, slo_class: SLOClass) -> float:
        """When to come back: once what waits ahead, in the class and in those before it, is worked off.

        Room may open sooner, but who comes back for it waits behind the same backlog.
        """
        names = [c.name for c in self._classes if c.rank <= slo_class.rank]
        return self._seconds_for(sum(self._queue.num_tokens_by_class[name] for name in names))

    def _seconds_for(self, num_tokens: int) -> float:
        """Time to compute that many tokens at the rate of the last steps, within bounds; the least if unknown."""
        if self._recent_s == 0.0 or self._recent_tokens == 0.0:
            return MIN_RETRY_S
        return min(max(num_tokens * self._recent_s / self._recent_tokens, MIN_RETRY_S), MAX_RETRY_S)


def _refuse(slo_class: SLOClass, reason: RefusalReason, message: str, retry_after_s: float | None) -> Verdict:
    assert retry_after_s is None or (retry_after_s > 0 and math.isfinite(retry_after_s))
    return Verdict(VerdictKind.REFUSE, slo_class.name, reason, message, retry_after_s)
