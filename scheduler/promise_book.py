"""Who was promised what, what of it is still to be done, and what became of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from scheduler.block_pool import BlockPool
from scheduler.config import SchedulerConfig
from scheduler.demand_curve import DemandCurve, Work
from scheduler.output_lengths import OutputLengths
from scheduler.promise_margin import PromiseMargin
from scheduler.request import BlockHash, FinishReason, Request, RequestSpec
from scheduler.slo import SLOClass, SLOClasses

ROUNDING_S = 1e-9
"""Sums of seconds are not exact."""


@dataclasses.dataclass(slots=True)
class _Promise:
    """Of one request, and how it is kept so far."""

    first_due_s: float
    last_s: float | None = None
    worst_gap_s: float = 0.0


class PromiseBook:
    """Follows requests from their arrival to their end. Owns the demand curve, the lengths of answers and the margin.

    A request counts from its arrival with what it would find in the prefix cache then, and from its start with what it
    found. Whoever has its first token, or left, is not in the curve; whoever lost its blocks is in it again.
    """

    def __init__(self, config: SchedulerConfig, classes: SLOClasses, pool: BlockPool) -> None:
        self._config = config
        self._classes = classes
        self._pool = pool
        self._last_rank = max((c.rank for c in classes if c.is_guaranteed), default=-1)
        self._promises: dict[str, _Promise] = {}
        self._now_s = -math.inf
        self.curve = DemandCurve()
        self.lengths = OutputLengths(classes.names)
        self.margin = PromiseMargin()
        self.waiting: dict[str, Request] = {}
        """Promised, and without a seat."""

    @property
    def last_activity_s(self) -> float:
        """When a request started or had a token; minus infinity before the first."""
        return self._now_s

    def num_cached_tokens(self, spec: RequestSpec, block_hashes: Sequence[BlockHash]) -> int:
        """What its prompt would find in the prefix cache now; blocks may go before it starts, and others come.

        Whole prompts would be no safer: the target of the first token shrinks with what is found.
        """
        if not self._config.enable_prefix_caching or not spec.reads_prefix_cache:
            return 0
        num_blocks = 0
        for block_hash in block_hashes[: (spec.num_prompt_tokens - 1) // self._config.block_size]:
            if self._pool.lookup(block_hash) is None:
                break
            num_blocks += 1
        return num_blocks * self._config.block_size

    def work_of(self, spec: RequestSpec, num_cached_tokens: int) -> Work:
        """Of a first start. A choice with a leader computes the last token of the prompt."""
        start = num_cached_tokens if spec.leader_id is None else spec.num_prompt_tokens - 1
        return Work.between(start, spec.num_prompt_tokens)

    def added(self, request: Request) -> None:
        """It waits: it arrived, or it lost its blocks and computes its tokens again."""
        spec, slo_class = request.spec, request.slo_class
        is_promised = slo_class.is_guaranteed
        if is_promised:
            self.waiting[spec.request_id] = request
            self._promises.setdefault(spec.request_id, _Promise(request.deadlines.next_s))
        elif not self._precedes(slo_class):
            return
        num_cached = self.num_cached_tokens(spec, request.block_hashes)
        due_s = request.deadlines.next_s
        if request.num_preemptions:
            work = Work.between(num_cached, min(request.num_tokens, spec.num_kv_tokens))
        else:
            work = self.work_of(spec, num_cached)
            due_s += spec.slo.first_token_limit_s(slo_class, spec.num_prompt_tokens - num_cached)
            due_s -= spec.slo.first_token_limit_s(slo_class, spec.num_prompt_tokens)
        self.curve.put(spec.request_id, request.order, due_s if is_promised else math.inf, work)

    def started(self, request: Request, now_s: float) -> None:
        """It has a seat, and what it found in the prefix cache is known."""
        self._now_s = max(self._now_s, now_s)
        spec = request.spec
        self.waiting.pop(spec.request_id, None)
        promise = self._promises.get(spec.request_id)
        if promise is not None and not request.num_preemptions:  # later its token may have been put off
            promise.first_due_s = request.deadlines.next_s
        if spec.request_id in self.curve:
            due_s = math.inf if promise is None else request.deadlines.next_s
            self.curve.put(spec.request_id, request.order, due_s, _work_left(request))

    def computed(self, request: Request) -> None:
        """More of its tokens are computed."""
        if request.spec.request_id in self.curve:
            self.curve.set_work(request.spec.request_id, _work_left(request))

    def emitted(self, request: Request, now_s: float) -> None:
        """A token of it is out, at `now_s`. O(1) but for the first one."""
        self._now_s = now_s
        request_id = request.spec.request_id
        self.curve.drop(request_id)
        promise = self._promises.get(request_id)
        if promise is None:
            return
        if promise.last_s is not None and now_s - promise.last_s > promise.worst_gap_s:
            promise.worst_gap_s = now_s - promise.last_s
        promise.last_s = now_s

    def left(self, request: Request) -> None:
        """It is over: by its end, by an error, or because its client left or it waited too long."""
        request_id, reason = request.spec.request_id, request.finish_reason
        self.curve.drop(request_id)
        self.waiting.pop(request_id, None)
        has_ended = reason in (FinishReason.STOP, FinishReason.LENGTH)
        if has_ended and request.spec.max_tokens:
            self.lengths.observe(request.slo_class.name, request.num_output_tokens)
        promise = self._promises.pop(request_id, None)
        if promise is None or reason is FinishReason.ERROR:
            return
        is_kept = self._is_kept(request, promise)
        if request.spec.slo.ttft_s is not None or request.spec.slo.tpot_s is not None:
            return  # who asks for what is barely possible is not to narrow what others get
        if has_ended or not is_kept:  # a client that left in time neither counts as kept
            self.margin.ended(is_kept=is_kept)

    def _is_kept(self, request: Request, promise: _Promise) -> bool:
        """On the scheduler's own clock: the first token, every gap and the mean gap."""
        first_s, last_s = request.first_token_s, request.last_token_s
        if first_s is None or last_s is None:
            return not request.spec.max_tokens or self._now_s <= promise.first_due_s
        tpot_s, max_stall_s = request.deadlines.tpot_s, request.slo_class.max_stall_s
        limit_s = math.inf if max_stall_s is None else max(max_stall_s, tpot_s)
        is_first_kept = first_s <= promise.first_due_s + ROUNDING_S
        is_pace_kept = last_s - first_s <= (request.num_output_tokens - 1) * tpot_s + ROUNDING_S
        return is_first_kept and is_pace_kept and promise.worst_gap_s <= limit_s + ROUNDING_S

    def _precedes(self, slo_class: SLOClass) -> bool:
        """Whether requests of a class without promises may be served before one with a promise."""
        return self._config.scheduler_policy == "edf" or slo_class.rank < self._last_rank

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that what is kept is of these live requests."""
        live = {request.request_id: request for request in requests}
        self.curve.check(live)
        self.lengths.check()
        self.margin.check()
        assert set(self._promises) == {i for i, r in live.items() if r.slo_class.is_guaranteed}
        assert set(self.waiting) == {i for i in self._promises if not live[i].block_ids}


def _work_left(request: Request) -> Work:
    return Work.between(request.num_computed_tokens, min(request.num_tokens, request.spec.num_kv_tokens))
