"""One step while it is put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler.decode_load import RunningDecodes
from scheduler.kv_transfer import GatedLoad, KVTransfer
from scheduler.latency_model import StepPrediction
from scheduler.output import Admission, BlockCopy, Expiry, MemoryDemand, ScheduledRequest, SchedulerOutput
from scheduler.request import Request
from scheduler.steps_in_flight import InFlightStep, StepEntry


class StepPlan:
    """Puts a step together. Whatever is added stays; preemptions come before starts."""

    def __init__(self, step_id: int, now_s: float, max_tokens: int, max_victims: int) -> None:
        self.step_id = step_id
        self.now_s = now_s
        self.num_tokens = 0
        """That the step computes."""
        self.num_tokens_left = max_tokens
        self.num_samples = 0
        self.num_victims_left = max_victims
        self.beneficiary: Request | None = None
        """The waiting request that victims made room for: the one that may start in a step that preempted."""
        self.has_backlog = False
        """Prompts are left over that could have been computed."""
        self.prefilling: Sequence[Request] = ()
        """Prompts that are computed in part, whether the step computes more of them or not."""
        self.loading: list[Request] = []
        """Running requests whose blocks are on their way, whether the step waits for them or not."""
        self.is_reserved = False
        """What is scheduled now is owed to its class, whatever it costs the others."""
        self.decodes: RunningDecodes | None = None
        """What runs, once a start asked what that bears."""
        self.preempted: list[str] = []
        self.expired: list[Expiry] = []
        self.admissions: list[Admission] = []
        self._scheduled: list[ScheduledRequest] = []
        self._entries: list[StepEntry] = []
        self._copies: list[BlockCopy] = []
        self._gated: list[GatedLoad] = []
        self._reasons: dict[str, None] = {}  # in order of appearance

    def add(self, request: Request, num_tokens: int, first_block: int, new_block_ids: tuple[int, ...]) -> None:
        """Schedule the next `num_tokens` tokens of a request; it samples if they are its last known ones."""
        position = request.num_computed_tokens + request.num_scheduled_tokens
        num_known = request.num_prompt_tokens + request.num_output_tokens + request.num_pending_samples
        samples = position + num_tokens == num_known and request.max_tokens > 0
        self._scheduled.append(
            ScheduledRequest(request.request_id, num_tokens, position, first_block, new_block_ids, samples)
        )
        self._entries.append(StepEntry(request, num_tokens, samples, request.num_lives))
        if request.load_ids:
            self._gated.extend(GatedLoad(request.request_id, load_id) for load_id in sorted(request.load_ids))
        request.num_scheduled_tokens += num_tokens
        request.is_placed = True
        if samples:
            request.num_pending_samples += 1
            self.num_samples += 1
        self.num_tokens += num_tokens
        self.num_tokens_left -= num_tokens

    def add_decodes(self, decodes: Iterator[Request], block_size: int) -> Request | None:
        """Schedule one token each, as long as there is room for it in their last blocks.

        This is `add` for the many, without a call for each.

        Returns:
            The first that needs a block, taken out of `decodes`; None: all are scheduled.
        """
        scheduled, entries = self._scheduled, self._entries
        num_before, num_samples, needs_block = len(scheduled), 0, None
        for request in decodes:
            num_blocks = len(request.block_ids)
            position = request.num_computed_tokens + request.num_scheduled_tokens
            if position >= num_blocks * block_size:
                needs_block = request
                break
            num_known = request.num_prompt_tokens + request.num_output_tokens + request.num_pending_samples
            samples = position + 1 == num_known and request.max_tokens > 0
            scheduled.append(ScheduledRequest(request.request_id, 1, position, num_blocks, (), samples))
            entries.append(StepEntry(request, 1, samples, request.num_lives))
            request.num_scheduled_tokens += 1
            if samples:
                request.num_pending_samples += 1
                num_samples += 1
        num_tokens = len(scheduled) - num_before
        self.num_tokens += num_tokens
        self.num_tokens_left -= num_tokens
        self.num_samples += num_samples
        return needs_block

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy blocks before the step computes; the step holds the reference that `KVCacheManager.fork` took."""
        self._copies.extend(copies)

    @property
    def scheduled(self) -> Sequence[ScheduledRequest]:
        """So far."""
        return self._scheduled

    @property
    def has_copies(self) -> bool:
        """Whether blocks are copied before it computes, or loads awaited while it does."""
        return bool(self._copies or self._gated)

    def explain(self, reason: str) -> None:
        """Note why something was not scheduled."""
        self._reasons[reason] = None

    def seal(
        self,
        demand: MemoryDemand,
        prediction: StepPrediction | None = None,
        budget_s: float | None = None,
        transfers: tuple[KVTransfer, ...] = (),
    ) -> tuple[SchedulerOutput, InFlightStep]:
        """The record for the runner, and what `update` needs to know of it."""
        output = SchedulerOutput(
            step_id=self.step_id,
            now_s=self.now_s,
            scheduled=tuple(self._scheduled),
            block_copies=tuple(self._copies),
            admissions=tuple(self.admissions),
            preempted=tuple(self.preempted),
            expired=tuple(self.expired),
            predicted_s=None if prediction is None else prediction.mean_s,
            budget_s=budget_s,
            demand=demand,
            reasons=tuple(self._reasons),
            transfers=transfers,
            gated_loads=tuple(self._gated),
        )
        held = [copy.source for copy in self._copies]
        unfinished = frozenset(r.slo_class.name for r in self.prefilling if r.num_tokens_to_compute > 0)
        return output, InFlightStep(self.step_id, tuple(self._entries), held, prediction, self.has_backlog, unfinished)
