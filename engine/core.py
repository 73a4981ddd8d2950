"""The step: inbox -> schedule -> execute -> update -> one message. Owns the token ids of every live request."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from engine.errors import RepeatedStepFailure
from engine.event_log import AbortAction, Action, AddAction, EventLog
from engine.live_group import LiveChoice, LiveGroup, build_group
from engine.messages import AbortChoices, AddGroup, GroupAdmitted, GroupRefused, StepOutputs, StepStats
from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.offload_manager import NoOffload, OffloadManager
from engine.pending_delta import PendingDelta
from engine.runner import Clock, Runner
from engine.stats import step_stats
from scheduler.kv_transfer import TransferResult
from scheduler.link import LinkSnapshot
from scheduler.output import (
    Expiry,
    FinishedRequest,
    RefusalReason,
    RequestResult,
    ScheduledRequest,
    SchedulerOutput,
    StepResult,
    VerdictKind,
)
from scheduler.request import FinishReason
from scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the process gives up: a fresh one may have a working device."""


@dataclasses.dataclass(slots=True)
class _TurnReport:
    """What one turn of the loop has to say, in the making."""

    admitted: list[GroupAdmitted] = dataclasses.field(default_factory=list)
    refused: list[GroupRefused] = dataclasses.field(default_factory=list)
    deltas: dict[str, PendingDelta] = dataclasses.field(default_factory=dict)
    actions: list[Action] = dataclasses.field(default_factory=list)
    """For the event log."""

    def delta(self, choice: LiveChoice) -> PendingDelta:
        delta = self.deltas.get(choice.request_id)
        if delta is None:
            delta = self.deltas[choice.request_id] = PendingDelta(choice.group.group_id, choice.sequence.choice)
        return delta

    def message(self, stats: StepStats) -> StepOutputs:
        return StepOutputs(
            admitted=tuple(self.admitted),
            refused=tuple(self.refused),
            deltas=tuple(d.build() for d in self.deltas.values() if not d.is_empty),
            stats=stats,
        )


class EngineCore:
    """Turns messages into steps and steps into messages. No sockets, no threads, no time but its clock's.

    Invariant (`check`): a group lives exactly as long as one of its choices, a choice exactly as long as its request in
    the scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        *,
        block_size: int,
        eos_token_ids: frozenset[int],
        event_log: EventLog | None = None,
        offload: OffloadManager | None = None,
    ) -> None:
        """
        Args:
            offload: of the runner's weights and blocks; None: all of them are on the device.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids
        self._event_log = event_log
        self._offload = NoOffload() if offload is None else offload
        self._groups: dict[str, LiveGroup] = {}
        self._choices: dict[str, LiveChoice] = {}
        self._num_dropped_tokens = 0
        """Output of aborted choices that the server did not use."""
        self._num_consecutive_failures = 0
        self._is_stuck = False

    @property
    def num_live_choices(self) -> int:
        return len(self._choices)

    def wait_s(self) -> float | None:
        """How long the next turn may wait for a message; None: until one comes; 0: there is work."""
        if self._offload.has_results():
            return 0.0
        if not self._is_stuck and (self._scheduler.has_work() or self._scheduler.has_background_work()):
            return 0.0
        waits_s = [self._offload.wakeup_s()]
        if self._scheduler.has_work() and (wakeup_s := self._scheduler.next_wakeup_s()) is not None:
            waits_s.append(max(wakeup_s - self._clock.now_s(), 0.0))
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def turn(self, messages: Iterable[AddGroup | AbortChoices], sent_s: float = 0.0) -> StepOutputs:
        """One turn of the loop.

        Args:
            messages: the inbox since the last turn.
            sent_s: seconds that encoding and sending the last turn's message took, counted as overhead of this one.
        """
        now_s = self._clock.now_s()
        report = _TurnReport()
        link = self._offload.snapshot()
        self._scheduler.observe(link)
        for message in messages:
            if isinstance(message, AddGroup):
                self._add(message, now_s, report)
            else:
                self._abort(message, now_s, report)
        output = self._schedule(now_s, link, report)
        execute_s = self._clock.now_s()
        self._offload.begin(output, now_s)
        computed = self._execute(output) if output.scheduled else None
        transfers = self._offload.collect()
        update_s = self._clock.now_s()
        self._update(output, computed, transfers, update_s, report)
        acted = output.scheduled or output.preempted or output.expired or output.transfers
        self._is_stuck = not (acted or transfers)
        step_s = self._clock.now_s() - now_s + sent_s
        stats = step_stats(
            output,
            self._scheduler.stats(),
            step_s=step_s,
            overhead_s=step_s - (update_s - execute_s),
            num_dropped_tokens=self._num_dropped_tokens,
            offload=self._offload.stats(),
            kv_bytes=self._offload.kv_bytes(),
        )
        return report.message(stats)

    def raise_if_failing(self) -> None:
        """Raises RepeatedStepFailure: the last `MAX_CONSECUTIVE_FAILURES` steps all failed."""
        if self._num_consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            raise RepeatedStepFailure(f"{self._num_consecutive_failures} steps in a row failed; see the log above")

    def check(self) -> None:
        """Assert what must always hold; tests call it after every turn."""
        self._scheduler.check()
        assert all(group.choices for group in self._groups.values()), "a group outlived its choices"
        of_groups = {c.request_id for group in self._groups.values() for c in group.choices.values()}
        assert of_groups == set(self._choices), "groups and choices differ"
        if not self._choices:
            assert not self._scheduler.has_work(), "the scheduler holds requests that the core does not know"

    def _add(self, message: AddGroup, now_s: float, report: _TurnReport) -> None:
        if message.group_id in self._groups:
            logger.error("%s: dropped, a group of that id is live", message.group_id)
            return
        try:
            group, specs = build_group(message, self._eos_token_ids, self._block_size)
            verdict = self._scheduler.add(specs, now_s)
        except (ValueError, OverflowError) as error:  # what the server should have found must not end the others
            logger.error("%s: refused, it makes no sense: %s", message.group_id, error)
            reason = RefusalReason.NEVER_FITS.value
            report.refused.append(GroupRefused(group_id=message.group_id, reason=reason, message=str(error)))
            return
        report.actions.append(AddAction(specs, now_s, verdict))
        if verdict.kind is VerdictKind.REFUSE:
            assert verdict.reason is not None
            report.refused.append(
                GroupRefused(
                    group_id=group.group_id,
                    reason=verdict.reason.value,
                    message=verdict.message,
                    retry_after_s=verdict.retry_after_s,
                )
            )
            return
        group.granted = verdict.granted
        self._groups[group.group_id] = group
        self._choices.update((choice.request_id, choice) for choice in group.choices.values())

    def _abort(self, message: AbortChoices, now_s: float, report: _TurnReport) -> None:
        group = self._groups.get(message.group_id)
        if group is None:
            return
        wanted = tuple(group.choices) if message.choices is None else message.choices
        choices = [group.choices[index] for index in wanted if index in group.choices]
        request_ids = tuple(choice.request_id for choice in choices)
        finished = self._scheduler.abort(request_ids, now_s)
        report.actions.append(AbortAction(request_ids, now_s, finished))
        for choice in choices:
            kept = message.kept_tokens.get(choice.sequence.choice, 0)
            self._num_dropped_tokens += max(choice.sequence.num_output_tokens - kept, 0)
        self._finish(finished, report)

    def _schedule(self, now_s: float, link: LinkSnapshot, report: _TurnReport) -> SchedulerOutput:
        output = self._scheduler.schedule(now_s, link)
        if self._event_log is not None:
            self._event_log.scheduled(tuple(report.actions), link, now_s, output)
        for admission in output.admissions:
            choice = self._choices[admission.request_id]
            admitted = choice.group.admit(choice, admission)
            if admitted is not None:
                report.admitted.append(admitted)
        for request_id in output.preempted:
            self._leave_runner(self._choices[request_id])
        for expiry in output.expired:
            self._expire(self._groups[expiry.group_id], expiry, report)
        return output

    def _expire(self, group: LiveGroup, expiry: Expiry, report: _TurnReport) -> None:
        report.refused.append(
            GroupRefused(
                group_id=group.group_id,
                reason=expiry.reason.value,
                message=expiry.message,
                retry_after_s=expiry.retry_after_s,
            )
        )
        for choice in tuple(group.choices.values()):
            self._forget(choice)

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Compute a step; None: it failed, which is the end of its requests but not of the others."""
        try:
            try:
                computed = self._compute(output)
            finally:
                self._offload.end()
            _check_computed(output, computed)
        except Exception:  # the loop's outermost: whatever the runner raises ends this step only
            request_ids = ", ".join(scheduled.request_id for scheduled in output.scheduled)
            logger.exception("step %d failed, its requests end with an error: %s", output.step_id, request_ids)
            self._num_consecutive_failures += 1
            return None
        self._num_consecutive_failures = 0
        return computed

    def _compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for scheduled in output.scheduled:
            choice = self._choices[scheduled.request_id]
            if not choice.is_in_runner:
                self._runner.add(choice.sequence)
                choice.is_in_runner = True
        return self._runner.execute(output)

    def _update(
        self,
        output: SchedulerOutput,
        computed: ModelRunnerOutput | None,
        transfers: tuple[TransferResult, ...],
        now_s: float,
        report: _TurnReport,
    ) -> None:
        if computed is None:
            results = tuple(_failed(scheduled.request_id) for scheduled in output.scheduled)
        else:
            void = self._offload.void_requests(output)
            results = tuple(
                self._void(scheduled) if scheduled.request_id in void else self._commit(scheduled, request, report)
                for scheduled, request in zip(output.scheduled, computed.outputs, strict=True)
            )
        result = StepResult(output.step_id, results, transfers)
        finished = self._scheduler.update(output, result, now_s)
        if self._event_log is not None:
            self._event_log.updated(result, now_s, finished)
        self._finish(finished, report)

    def _void(self, scheduled: ScheduledRequest) -> RequestResult:
        """It was computed upon blocks that never arrived: no token of it counts, and the runner begins it anew."""
        logger.warning("%s: a load of its prefix failed, it computes that again", scheduled.request_id)
        self._leave_runner(self._choices[scheduled.request_id])
        return RequestResult(scheduled.request_id, 0, None, ())

    def _commit(self, scheduled: ScheduledRequest, request: RequestOutput, report: _TurnReport) -> RequestResult:
        """Take over what a step made of one request."""
        choice = self._choices[scheduled.request_id]
        if request.error is not None:
            logger.error("%s ends with an error: %s", scheduled.request_id, request.error)
            return _failed(scheduled.request_id)
        sequence = choice.sequence
        if request.prompt_logprobs:
            self._add_prompt_logprobs(choice, scheduled, request, report)
        new_block_hashes = sequence.hash_full_blocks(scheduled.num_computed_tokens + scheduled.num_tokens)
        token_id = request.token_id
        if token_id is None:
            return RequestResult(scheduled.request_id, 0, None, new_block_hashes)
        sequence.append(token_id)
        delta = report.delta(choice)
        delta.token_ids.append(token_id)
        if request.logprob is not None:
            delta.logprobs.append(request.logprob)
        if token_id not in sequence.stop_token_ids:
            return RequestResult(scheduled.request_id, 1, None, new_block_hashes)
        delta.stop_token_id = token_id
        return RequestResult(scheduled.request_id, 1, FinishReason.STOP, new_block_hashes)

    def _add_prompt_logprobs(
        self, choice: LiveChoice, scheduled: ScheduledRequest, request: RequestOutput, report: _TurnReport
    ) -> None:
        """Pass them to the choice and to those of the same prompt, which compute only its last token."""
        end = min(scheduled.num_computed_tokens + scheduled.num_tokens, choice.sequence.num_prompt_tokens - 1)
        first = end - len(request.prompt_logprobs)
        for receiver in (choice, *choice.group.siblings(choice)):
            num_known = receiver.take_prompt_rows(first, end)
            report.delta(receiver).prompt_logprobs += request.prompt_logprobs[num_known:]

    def _finish(self, finished: Iterable[FinishedRequest], report: _TurnReport) -> None:
        for request in finished:
            choice = self._choices[request.request_id]
            report.delta(choice).finish_reason = request.finish_reason.value
            self._forget(choice)

    def _forget(self, choice: LiveChoice) -> None:
        self._leave_runner(choice)
        del self._choices[choice.request_id]
        group = choice.group
        del group.choices[choice.sequence.choice]
        if not group.choices:
            del self._groups[group.group_id]

    def _leave_runner(self, choice: LiveChoice) -> None:
        if choice.is_in_runner:
            self._runner.remove(choice.request_id)
            choice.is_in_runner = False


def _failed(request_id: str) -> RequestResult:
    return RequestResult(request_id, 0, FinishReason.ERROR, ())


def _check_computed(output: SchedulerOutput, computed: ModelRunnerOutput) -> None:
    """Raises AssertionError: the runner's answer is not one to this step."""
    assert computed.step_id == output.step_id, f"step {output.step_id} answered as {computed.step_id}"
    assert len(computed.outputs) == len(output.scheduled), "a request of the step has no answer"
    for scheduled, request in zip(output.scheduled, computed.outputs, strict=True):
        assert scheduled.request_id == request.request_id, f"{scheduled.request_id} answered as {request.request_id}"
        sampled = request.token_id is not None
        assert request.error is not None or sampled == scheduled.samples, f"{scheduled.request_id}: sample missing"
