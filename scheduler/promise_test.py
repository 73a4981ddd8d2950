"""Whether a promise can be made: the pace of the decodes, the first token, memory and a seat, for all who have one.

Sources: SCORPIO (Tang et al., 2025) for the virtual batch, demand bounds of earliest deadline first for the first
tokens, Past-Future (Gong et al., ASPLOS 2025) for memory; judged by what the load will be once every prompt that waits
is computed, as Mooncake (Qin et al., FAST 2025) found necessary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from scheduler.block_pool import BlockPool
from scheduler.class_shares import ClassShares
from scheduler.config import SchedulerConfig
from scheduler.decode_load import PREFILL_RESERVE, DecodeLoad, VirtualBatch
from scheduler.demand_curve import Work, WorkCost
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.output_lengths import future_peak_blocks
from scheduler.policy import Policy
from scheduler.prefill_cost import MAX_STRETCH, PrefillCost, PrefillQuote
from scheduler.promise_book import ROUNDING_S, PromiseBook
from scheduler.request import Request, RequestSpec
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClass, SLOClasses
from scheduler.step_features import StepFeatures
from scheduler.waiting_queue import WaitingQueue

MIN_RETRY_S = 0.5
MAX_RETRY_S = 60.0
STALE_S = 10.0
"""What steps have taught counts less than the record once nothing ran for so long: else one slow hour would close an
idle server for good."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a promise cannot be made."""

    what: str
    """For the client: what is expected, and the target."""
    retry_after_s: float | None
    """When it could be made if nothing else came; None: never, it cannot be kept even alone."""


@dataclasses.dataclass(slots=True)
class _Load:
    """Sums over what runs, what was promised and waits, and the newcomer."""

    batch: VirtualBatch
    guaranteed_s: float = math.inf
    """Tightest pace that was promised."""
    protected_s: float = math.inf
    """Tightest pace that bounds a step."""
    growing: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Tokens to come and blocks, of those that do not yield."""
    ends_s: list[float] = dataclasses.field(default_factory=list)
    """Until those that run, or were promised to, end at the pace of their targets."""
    seats_s: list[float] = dataclasses.field(default_factory=list)
    """The same, of those that run and do not yield."""
    num_seats: int = 0
    is_in_flight: bool = False
    lead_s: float = math.inf
    """Until the first of the tokens that bound a step is due."""
    num_prefill_tokens: int = 0


class PromiseTest:
    """Judges by the model, the link, what runs and the book; changes none of them. O(running) for a newcomer."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        policy: Policy,
        max_model_len: int,
        watermark_blocks: int,
        queue: WaitingQueue,
        running: RunningSet,
        pool: BlockPool,
        model: LatencyModel,
        book: PromiseBook,
        shares: ClassShares | None = None,
    ) -> None:
        """
        Args:
            shares: of step time, which a class without promises takes from the others once it is behind; None: none.
        """
        self._config = config
        self._classes = classes
        self._watermark_blocks = watermark_blocks
        self._queue = queue
        self._running = running
        self._pool = pool
        self._model = model
        self._book = book
        self._shares = shares
        self._policy = policy
        self._decodes = DecodeLoad(model, skips=config.scheduler_policy == "deadline")
        self._prefills = PrefillCost(model, config, max_model_len)
        self._link = NO_LINK
        self._least: WorkCost | None = None

    def observe_link(self, link: LinkSnapshot) -> None:
        """What is judged by from here."""
        self._link = link
        self._decodes.observe_link(link)
        self._least = None

    def shortfall(self, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float) -> Shortfall | None:
        """Why a group cannot be promised the targets in force in a class; None: it can.

        With nothing else there, it is refused only what cannot be kept even alone.
        """
        if group[0].slo.granted != slo_class.name:
            slo = dataclasses.replace(group[0].slo, granted=slo_class.name)
            group = tuple(dataclasses.replace(spec, slo=slo) for spec in group)
        if not len(self._running) and not self._queue.num_requests:
            return self._short_alone(group, slo_class, now_s)
        short = self._short_beside(group, slo_class, now_s)
        return None if short is None else self._short_alone(group, slo_class, now_s) or short

    # Alone.

    def _short_alone(self, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float) -> Shortfall | None:
        """By the mean, without a margin: who asks for what the machine can do is not sent away for ever."""
        if len(group) > self._config.max_num_seqs:
            return Shortfall(
                f"{len(group)} choices would need seats at a time, this server has {self._config.max_num_seqs}", None
            )
        context = max(spec.num_prompt_tokens for spec in group) + 1
        features = StepFeatures(0, len(group), len(group) * context, context, 0.0, len(group))
        step_s = self._model.mean_s(features, self._link)
        tpot_s = group[0].slo.tpot_target_s(slo_class)
        if any(spec.max_tokens > 1 for spec in group) and (short := self._excess(step_s, tpot_s, features, now_s)):
            return Shortfall(
                f"{step_s * 1000:.1f} ms per output token are expected even with nothing beside it, the target is "
                f"{tpot_s * 1000:g} ms",
                short.retry_after_s,
            )
        prompts_s, target_s = 0.0, math.inf
        for spec, num_cached in self._prompts(group):
            prompts_s += self._prefills.alone_s(num_cached, spec.num_prompt_tokens, self._link)
            target_s = min(target_s, spec.slo.first_token_limit_s(slo_class, spec.num_prompt_tokens - num_cached))
        most = min(max(spec.num_prompt_tokens for spec in group), self._config.max_num_batched_tokens)
        prompt = StepFeatures().with_chunk(most, 0, samples=True)
        if (short := self._excess(prompts_s, target_s - self._config.egress_s, prompt, now_s)) is None:
            return None
        return Shortfall(
            f"the first token is expected {prompts_s:.3g} s after the start even with nothing beside it, the "
            f"target is {target_s:.3g} s",
            short.retry_after_s,
        )

    def _excess(self, expected_s: float, target_s: float, features: StepFeatures, now_s: float) -> Shortfall | None:
        """Whether a target is missed even alone: for good by the record, for a while where steps are slower than that.

        Args:
            features: of a step of the kind that takes the time.
        """
        if expected_s <= target_s:
            return None
        prediction = self._model.predict(features, self._link)
        by_record_s = expected_s * min(1.0, prediction.uncorrected_s / prediction.mean_s)
        if by_record_s > target_s:
            return Shortfall("", None)
        is_stale = now_s - self._book.last_activity_s >= STALE_S - ROUNDING_S
        return None if is_stale else Shortfall("", STALE_S)

    def _prompts(self, group: tuple[RequestSpec, ...]) -> Iterator[tuple[RequestSpec, int]]:
        """The choices that compute a prompt, each with what it would find in the prefix cache."""
        for spec in group:
            if spec.leader_id is None:
                yield spec, self._book.num_cached_tokens(spec, spec.block_hashes)

    # Beside the others.

    def _short_beside(self, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float) -> Shortfall | None:
        load = self._load(group, slo_class, now_s)
        decodes_s = self._decodes.step_s(load.batch, load.guaranteed_s)
        bearable_s = load.guaranteed_s * (1.0 - PREFILL_RESERVE) * (1.0 - self._book.margin.value)
        if decodes_s > bearable_s:
            return Shortfall(
                f"{decodes_s * 1000:.1f} ms per output token are expected beside what runs and was promised, the "
                f"tightest target there is {load.guaranteed_s * 1000:g} ms, and prompts need a part of it",
                _until_ended(load.ends_s, 1.0 - bearable_s / decodes_s),
            )
        return (
            self._short_of_memory(load, slo_class)
            or self._short_of_seats(load, group, slo_class)
            or self._short_of_time(load, group, slo_class, now_s)
        )

    def _load(self, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float) -> _Load:
        """One pass over what runs."""
        load = _Load(VirtualBatch())
        batch, lengths, least_s = load.batch, self._book.lengths, self._decodes.least_s
        for request in self._running:
            deadlines, spec, granted = request.deadlines, request.spec, request.slo_class
            tpot_s = deadlines.tpot_s
            remaining = lengths.remaining(granted.name, request.num_output_tokens, spec.max_tokens)
            batch.add(tpot_s, request.num_tokens + remaining)
            if not deadlines.is_lost and tpot_s >= least_s:
                if request.is_protected:
                    load.protected_s = min(load.protected_s, tpot_s)
                    if request.first_token_s is not None:
                        load.lead_s = min(load.lead_s, deadlines.next_s - now_s)
                if tpot_s < load.guaranteed_s and granted.is_guaranteed:
                    load.guaranteed_s = tpot_s
            end_s = remaining * tpot_s
            load.ends_s.append(end_s)
            if not self._yields(request, slo_class):
                load.growing.append((remaining, len(request.block_ids)))
                load.seats_s.append(end_s)
            if request.num_scheduled_tokens:
                load.is_in_flight = True
            num_left = request.num_tokens_to_compute
            if num_left > 1:
                load.num_prefill_tokens += num_left
        for spec, tpot_s in self._coming(group, slo_class):
            remaining = lengths.remaining(slo_class.name, 0, spec.max_tokens)
            batch.add(tpot_s, spec.num_prompt_tokens + remaining)
            load.guaranteed_s = min(load.guaranteed_s, tpot_s)
            num_tokens = spec.num_prompt_tokens if spec.leader_id is None else 1
            load.growing.append((remaining, -(-num_tokens // self._config.block_size)))
            load.num_seats += 1
            if spec.group_id != group[0].group_id:
                load.ends_s.append(remaining * tpot_s)
        load.num_seats += len(load.seats_s)
        load.protected_s = min(load.protected_s, load.guaranteed_s)
        return load

    def _coming(self, group: tuple[RequestSpec, ...], slo_class: SLOClass) -> Iterator[tuple[RequestSpec, float]]:
        """Whoever was promised a seat and the newcomer, each with its pace."""
        for request in self._book.waiting.values():
            yield request.spec, request.deadlines.tpot_s
        tpot_s = group[0].slo.tpot_target_s(slo_class)
        for spec in group:
            yield spec, tpot_s

    def _yields(self, request: Request, slo_class: SLOClass) -> bool:
        """Whether a running request gives its seat and blocks to one of a class, and nobody's promise is broken."""
        if request.slo_class.is_guaranteed:
            return False
        return request.slo_class.rank > slo_class.rank and request.num_preemptions < self._config.max_preemptions

    def _short_of_memory(self, load: _Load, slo_class: SLOClass) -> Shortfall | None:
        num_blocks = self._num_blocks(slo_class) - self._watermark_blocks
        block_size = self._config.block_size
        if sum(held - (-remaining // block_size) for remaining, held in load.growing) <= num_blocks:
            return None
        peak = future_peak_blocks(load.growing, block_size)
        if peak <= num_blocks:
            return None
        return Shortfall(
            f"what runs and was promised may come to need {peak} KV blocks with it, {num_blocks} are there",
            _until_ended(load.ends_s, 1.0 - num_blocks / peak),
        )

    def _num_blocks(self, slo_class: SLOClass) -> int:
        """That there may be: where more layers may be streamed beside the class, blocks come when they are needed."""
        floor = self._link.floor(slo_class.name)
        most = None if floor is None else floor.max_streamed_layers
        can_grow = most is not None and self._link.num_streamed_layers < most
        return self._pool.num_blocks if can_grow else self._pool.limit

    def _short_of_seats(self, load: _Load, group: tuple[RequestSpec, ...], slo_class: SLOClass) -> Shortfall | None:
        """A seat that becomes free before half of the time to the first token is over is one."""
        num_missing = load.num_seats - self._config.max_num_seqs
        if num_missing <= 0:
            return None
        target_s = group[0].slo.ttft_target_s(slo_class, group[0].num_prompt_tokens)
        ends_s = sorted(load.seats_s)
        wait_s = ends_s[num_missing - 1] if num_missing <= len(ends_s) else math.inf
        if wait_s <= target_s / 2:
            return None
        return Shortfall(
            f"all {self._config.max_num_seqs} seats are taken or promised, and {num_missing} more are needed within "
            f"{target_s:.3g} s",
            _bounded(wait_s) if wait_s < math.inf else _until_ended(load.ends_s, 1.0),
        )

    def _short_of_time(
        self, load: _Load, group: tuple[RequestSpec, ...], slo_class: SLOClass, now_s: float
    ) -> Shortfall | None:
        """Of the steps of those that run, for its prompt and for those that were accepted before."""
        book, first = self._book, group[0]
        work, target_s = Work(0, 0.0), math.inf
        for spec in group:
            if spec.leader_id is not None:
                work += book.work_of(spec, 0)
        for spec, num_cached in self._prompts(group):
            work += book.work_of(spec, num_cached)
            target_s = min(target_s, spec.slo.first_token_limit_s(slo_class, spec.num_prompt_tokens - num_cached))
        quote = self._quote(load, work)
        if quote is None:
            return Shortfall(
                f"the decodes beside it leave no time for its prompt, the target is {target_s:.3g} s",
                _until_ended(load.ends_s, 0.0),
            )
        stretch = 1.0 / (1.0 - book.margin.value)
        share = quote.cost.decode_share
        credit_s = (
            max(load.lead_s, 0.0) * share / max(1.0 - share, 1.0 / MAX_STRETCH) if load.lead_s < math.inf else 0.0
        )
        cost = dataclasses.replace(quote.cost, credit_s=credit_s).stretched(stretch / (1.0 - self._share_of_others()))
        # Its chunk may have to wait for the decodes of one step, and shares its own with them: the rest is its work.
        lag_s = (2 * quote.least_s + (quote.last_step_s if load.is_in_flight else 0.0)) * stretch
        lag_s += self._seat_wait_s(load)
        due_s = first.arrival_s + target_s - self._config.egress_s
        late = book.curve.lateness(self._policy.order(first, 0), due_s, work, cost, self._least_cost(), now_s, lag_s)
        if late.own_s > 0.0:
            expected_s = late.finish_s - first.arrival_s
            return Shortfall(
                f"the first token is expected after {expected_s:.3g} s, the target is {target_s:.3g} s",
                _bounded(max(late.own_s, late.finish_s - now_s - cost.seconds(work.num_tokens, work.num_pairs))),
            )
        if late.others_s > 0.0:
            total = book.curve.total()
            return Shortfall(
                f"with it, the first token of one accepted before would come {late.others_s * 1000:.0f} ms late",
                _bounded(max(late.others_s, cost.seconds(total.num_tokens, total.num_pairs))),
            )
        return None

    def _quote(self, load: _Load, work: Work) -> PrefillQuote | None:
        """What prompts cost beside the decodes to come; None: these leave no time."""
        budget_s = min(load.protected_s, self._config.max_step_s)
        waiting = sum(self._queue.num_tokens_by_class.values())
        num_tokens = load.num_prefill_tokens + waiting + work.num_tokens
        return self._prefills.beside(self._decodes.rows(load.batch, budget_s), budget_s, num_tokens, self._link)

    def _least_cost(self) -> WorkCost:
        """Of prompts with nothing beside them: what cannot be in time at this cost is lost."""
        if self._least is None:
            quote = self._prefills.beside(StepFeatures(), self._config.max_step_s, 1, self._link)
            self._least = WorkCost(0.0, 0.0) if quote is None else quote.cost
        return self._least

    def _seat_wait_s(self, load: _Load) -> float:
        """Until it has a seat, all others having theirs."""
        num_missing = load.num_seats - self._config.max_num_seqs
        return sorted(load.seats_s)[num_missing - 1] if num_missing > 0 else 0.0

    def _share_of_others(self) -> float:
        """Of step time, what classes without promises take because they are behind, or soon will be."""
        if self._shares is None:
            return 0.0
        return min(sum(c.share for c in self._classes if not c.is_guaranteed and self._shares.is_behind(c.name)), 0.9)


def _until_ended(ends_s: list[float], share: float) -> float:
    """When that share of those that end then, at least one, has ended."""
    if not ends_s:
        return MIN_RETRY_S
    num_ended = min(max(math.ceil(share * len(ends_s)), 1), len(ends_s))
    return _bounded(sorted(ends_s)[num_ended - 1])


def _bounded(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_S), MAX_RETRY_S)
