"""The verdict on a group on arrival: can it ever be served, and is there room to wait."""

from __future__ import annotations

import math

from scheduler.config import SchedulerConfig
from scheduler.link import ClassFloor, LinkSnapshot
from scheduler.output import RefusalReason, Verdict, VerdictKind
from scheduler.request import RequestSpec
from scheduler.slo import SLO, SLOClass, SLOClasses
from scheduler.waiting_queue import WaitingQueue, num_queued_tokens

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
RATE_DECAY = 0.98
"""Weight of the past per step in the observed token rate: about 50 steps count."""


class AdmissionControl:
    """Judges groups. Knows the limits, and the token rate of the last steps."""

    def __init__(
        self, config: SchedulerConfig, classes: SLOClasses, num_blocks: int, max_model_len: int, watermark_blocks: int
    ) -> None:
        self._config = config
        self._classes = classes
        self._num_blocks = num_blocks
        self._max_model_len = max_model_len
        self._watermark_blocks = watermark_blocks
        self._recent_tokens = 0.0
        self._recent_s = 0.0

    def observe(self, num_tokens: int, duration_s: float) -> None:
        """A step computed that many tokens in that time."""
        self._recent_tokens = self._recent_tokens * RATE_DECAY + num_tokens
        self._recent_s = self._recent_s * RATE_DECAY + max(duration_s, 0.0)

    def judge(
        self,
        group: tuple[RequestSpec, ...],
        queue: WaitingQueue,
        num_running: int,
        num_free_blocks: int,
        link: LinkSnapshot,
    ) -> Verdict:
        """ADMIT: there is room to start it at once. QUEUE: it waits. DEGRADE: it is served in a lower class.

        The caps are for what must wait: a group that can start, or the only one of its class, is never refused for
        them, so that what is refused can come back.
        """
        slo = group[0].slo
        slo_class = self._classes.get(slo.granted)
        if (never := self._why_never(group)) is not None:
            return _refuse(slo_class, RefusalReason.NEVER_FITS, never, None)
        floor = link.floor(slo_class.name)
        if floor is not None and _is_infeasible(slo, slo_class, floor):
            return self._judge_closed(group, queue, slo_class, floor, link)
        if self._can_start(group, queue, num_running, num_free_blocks):
            return Verdict(VerdictKind.ADMIT, slo_class.name)
        num_tokens = sum(map(num_queued_tokens, group))
        if num_running + queue.num_requests + len(group) > self._max_live_requests:
            return self._refuse_full_instance(slo_class, queue)
        if _has_room(slo_class, queue, num_tokens):
            return Verdict(VerdictKind.QUEUE, slo_class.name)
        if slo.may_degrade and slo_class.degrade_to is not None:
            lower = self._classes.get(slo_class.degrade_to)
            if _has_room(lower, queue, num_tokens):
                return Verdict(VerdictKind.DEGRADE, lower.name)
        return self._refuse_full_class(slo_class, queue, num_tokens)

    def _judge_closed(
        self,
        group: tuple[RequestSpec, ...],
        queue: WaitingQueue,
        slo_class: SLOClass,
        floor: ClassFloor,
        link: LinkSnapshot,
    ) -> Verdict:
        """Of a class whose targets cannot be met whatever the load: a lower one by consent, or none."""
        slo = group[0].slo
        if slo.may_degrade and slo_class.degrade_to is not None:
            lower, lower_floor = self._classes.get(slo_class.degrade_to), link.floor(slo_class.degrade_to)
            is_open = lower_floor is None or lower_floor.is_open
            if is_open and _has_room(lower, queue, sum(map(num_queued_tokens, group))):
                return Verdict(VerdictKind.DEGRADE, lower.name)
        return _refuse(slo_class, RefusalReason.CLASS_CLOSED, _why_closed(slo, slo_class, floor), None)

    @property
    def _max_live_requests(self) -> int:
        return self._config.max_num_seqs + self._config.max_queued_requests

    def _why_never(self, group: tuple[RequestSpec, ...]) -> str | None:
        """Choices need not run at the same time, so each must fit alone."""
        if len(group) > self._max_live_requests:
            return (
                f"{len(group)} choices are asked for, this server holds at most {self._max_live_requests} requests; "
                "ask for fewer choices or prompts at a time"
            )
        for spec in group:
            num_tokens = spec.num_prompt_tokens + spec.max_tokens
            asked = f"{num_tokens} tokens ({spec.num_prompt_tokens} prompt + {spec.max_tokens} output)"
            if num_tokens > self._max_model_len:
                return (
                    f"{asked} are asked for, the context holds {self._max_model_len}; "
                    f"{_way_out(spec, self._max_model_len)}"
                )
            block_size = self._config.block_size
            num_blocks = -(-spec.num_kv_tokens // block_size)
            if num_blocks > self._num_blocks:
                limit = self._num_blocks * block_size + (1 if spec.max_tokens else 0)  # the last output has no KV
                return (
                    f"{asked} need {num_blocks} KV blocks of {block_size} tokens, this server has "
                    f"{self._num_blocks}; {_way_out(spec, limit)}, or start the server with more KV cache memory"
                )
        return None

    def _can_start(
        self, group: tuple[RequestSpec, ...], queue: WaitingQueue, num_running: int, num_free_blocks: int
    ) -> bool:
        """Whether all that wait and this group can run beside what runs now. Prefix hits are not counted on."""
        if num_running + queue.num_requests + len(group) > self._config.max_num_seqs:
            return False
        block_size = self._config.block_size
        num_blocks = sum(-(-s.num_prompt_tokens // block_size) if s.leader_id is None else 1 for s in group)
        return queue.num_blocks + num_blocks + self._watermark_blocks <= num_free_blocks

    def _refuse_full_instance(self, slo_class: SLOClass, queue: WaitingQueue) -> Verdict:
        message = (
            f"{queue.num_requests} requests wait and {self._config.max_queued_requests} may "
            f"(max_queued_requests); retry later"
        )
        return _refuse(slo_class, RefusalReason.INSTANCE_FULL, message, self.retry_after_s(slo_class, queue))

    def _refuse_full_class(self, slo_class: SLOClass, queue: WaitingQueue, num_tokens: int) -> Verdict:
        queued = queue.num_tokens_by_class[slo_class.name]
        message = (
            f"class {slo_class.name!r} has {queued} prompt tokens waiting and takes {slo_class.queue_cap_tokens}, "
            f"this request has {num_tokens}; retry later, shorten the prompt or ask for another class"
        )
        return _refuse(slo_class, RefusalReason.CLASS_QUEUE_FULL, message, self.retry_after_s(slo_class, queue))

    def retry_after_s(self, slo_class: SLOClass, queue: WaitingQueue) -> float:
        """When to come back: once what waits ahead, in the class and in those before it, is worked off.

        Room may open sooner, but who comes back for it waits behind the same backlog.
        """
        names = [c.name for c in self._classes if c.rank <= slo_class.rank]
        return self._seconds_for(sum(queue.num_tokens_by_class[name] for name in names))

    def _seconds_for(self, num_tokens: int) -> float:
        """Time to compute that many tokens at the rate of the last steps, within bounds; the least if unknown."""
        if self._recent_s == 0.0 or self._recent_tokens == 0.0:
            return MIN_RETRY_S
        return min(max(num_tokens * self._recent_s / self._recent_tokens, MIN_RETRY_S), MAX_RETRY_S)


def _has_room(slo_class: SLOClass, queue: WaitingQueue, num_tokens: int) -> bool:
    queued = queue.num_tokens_by_class[slo_class.name]
    return queued == 0 or queued + num_tokens <= slo_class.queue_cap_tokens


def _way_out(spec: RequestSpec, max_tokens_in_all: int) -> str:
    if spec.num_prompt_tokens + min(spec.max_tokens, 1) > max_tokens_in_all:
        return f"shorten the prompt to at most {max_tokens_in_all - min(spec.max_tokens, 1)} tokens"
    return f"lower max_tokens to at most {max_tokens_in_all - spec.num_prompt_tokens} or shorten the prompt"


def _is_infeasible(slo: SLO, slo_class: SLOClass, floor: ClassFloor) -> bool:
    """Whether the plan cannot meet the targets in force: the class's, or for each token the request's own."""
    if slo_class.when_infeasible == "queue":
        return False
    if slo.tpot_s is None:
        return not floor.is_open
    return slo.tpot_s < floor.tpot_s or (not floor.is_open and floor.ttft_s > _ttft_s(slo, slo_class))


def _ttft_s(slo: SLO, slo_class: SLOClass) -> float:
    return slo_class.ttft_base_s if slo.ttft_s is None else slo.ttft_s


def _why_closed(slo: SLO, slo_class: SLOClass, floor: ClassFloor) -> str:
    way_out = "ask for another class (GET /v1/slo shows which are open)"
    if slo_class.degrade_to is not None:
        way_out += f", or consent to class {slo_class.degrade_to!r} with slo.degrade or x-slo-degrade: 1"
    if slo.tpot_s is None:
        what, whose = f"class {slo_class.name!r} is closed", "its targets"
    else:
        what, whose = f"the target of {slo.tpot_s * 1000:g} ms per output token cannot be met", "the targets in force"
        way_out = f"ask for at least {floor.tpot_s * 1000:.0f} ms per output token, {way_out}"
    return (
        f"{what}: this server's floors are {floor.tpot_s * 1000:.0f} ms per output token "
        f"and {floor.ttft_s * 1000:.0f} ms to the first one, {whose} {slo.tpot_target_s(slo_class) * 1000:.0f} ms and "
        f"{_ttft_s(slo, slo_class) * 1000:.0f} ms; {way_out}"
    )


def _refuse(slo_class: SLOClass, reason: RefusalReason, message: str, retry_after_s: float | None) -> Verdict:
    assert retry_after_s is None or (retry_after_s > 0 and math.isfinite(retry_after_s))
    return Verdict(VerdictKind.REFUSE, slo_class.name, reason, message, retry_after_s)
