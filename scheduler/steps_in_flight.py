"""Steps between `schedule` and `update`, and the references to blocks that they keep alive."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence

from scheduler.block_pool import BlockPool, ReleasePreview
from scheduler.latency_model import StepPrediction
from scheduler.output import RequestResult, SchedulerOutput, StepResult
from scheduler.request import FinishReason, Request, RequestStatus


@dataclasses.dataclass(slots=True)
class StepEntry:
    """One request's part of a step in flight. Never changed; not frozen, because that takes time in every step."""

    request: Request
    num_tokens: int
    samples: bool
    num_lives: int
    """Of the request when it was scheduled: if it has more by now, this part is void."""

    @property
    def may_fail(self) -> bool:
        """Whether it waits for a load, or nobody cares any more: it may come back without its sample."""
        return bool(self.request.load_ids) or self.request.status is RequestStatus.FINISHED

    @property
    def is_void(self) -> bool:
        return self.request.num_lives != self.num_lives


@dataclasses.dataclass(frozen=True, slots=True)
class InFlightStep:
    """A scheduled step whose results are not known."""

    step_id: int
    entries: tuple[StepEntry, ...]
    held_block_ids: list[int]
    """One reference each, given back at `update`: of requests that left meanwhile, and of sources of copies."""
    prediction: StepPrediction | None = None
    """Of its duration; None where there is no latency model."""
    has_backlog: bool = False
    """Prompts were left over that could have been computed."""
    unfinished_classes: frozenset[str] = frozenset()
    """Of prompts that were computed in part before and are not done with this step."""

    def match(self, result: StepResult) -> Sequence[RequestResult]:
        """The results, in the order of the entries.

        Raises:
            ValueError: they are not those of the scheduled requests.
        """
        if len(result.results) != len(self.entries):
            raise ValueError(f"step {self.step_id}: {len(result.results)} results for {len(self.entries)} requests")
        results = self._in_order(result.results)
        for entry, one in zip(self.entries, results, strict=True):
            if one.num_sampled == entry.samples or one.finish_reason is FinishReason.ERROR:
                continue
            if not entry.is_void and not (one.num_sampled == 0 and entry.may_fail):
                raise ValueError(
                    f"step {self.step_id}: {one.num_sampled} samples of {one.request_id!r}, it asked for "
                    f"{int(entry.samples)}"
                )
        return results

    def _in_order(self, results: Sequence[RequestResult]) -> Sequence[RequestResult]:
        ids = [entry.request.request_id for entry in self.entries]
        if [one.request_id for one in results] == ids:
            return results
        by_id = {one.request_id: one for one in results}
        for request_id in ids:
            if request_id not in by_id:
                raise ValueError(f"step {self.step_id}: no result for {request_id!r}")
        return [by_id[request_id] for request_id in ids]


class StepsInFlight:
    """The steps that were scheduled and not updated, oldest first."""

    def __init__(self, max_steps: int, pool: BlockPool) -> None:
        self._max_steps = max_steps
        self._pool = pool
        self._steps: deque[InFlightStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def check_room(self) -> None:
        """Raises RuntimeError: as many steps as allowed are in flight."""
        if len(self._steps) >= self._max_steps:
            raise RuntimeError(f"step {self._steps[0].step_id} must be updated before another one is scheduled")

    def push(self, step: InFlightStep) -> None:
        self._steps.append(step)

    def pop(self, output: SchedulerOutput, result: StepResult) -> tuple[InFlightStep, Sequence[RequestResult]]:
        """Take out the oldest step with its results, in the order of its entries.

        Raises:
            ValueError: `output` or `result` is of another step, or the results do not fit; nothing changed.
        """
        oldest = self._steps[0] if self._steps else None
        if oldest is None or not output.step_id == result.step_id == oldest.step_id:
            expected = "none is in flight" if oldest is None else f"the oldest in flight is {oldest.step_id}"
            raise ValueError(f"output of step {output.step_id}, result of step {result.step_id}; {expected}")
        results = oldest.match(result)
        self._steps.popleft()
        return oldest, results

    def hold(self, request: Request, block_ids: list[int]) -> bool:
        """Keep the blocks of a request that leaves until no step uses them. False: none does."""
        for step in reversed(self._steps):
            if any(entry.request is request for entry in step.entries):
                step.held_block_ids.extend(block_ids)
                return True
        return False

    def held_block_ids(self) -> list[int]:
        """Every reference that the steps hold."""
        return [block_id for step in self._steps for block_id in step.held_block_ids]

    def num_blocks_coming(self, leased: Sequence[int] = ()) -> int:
        """Blocks that become free when the steps in flight are updated and leases of copies end.

        Args:
            leased: blocks that copies hold, one entry a lease.
        """
        held = [*self.held_block_ids(), *leased]
        return ReleasePreview(self._pool).drop(held) if held else 0

    def _entries_of(self, request: Request) -> Iterator[StepEntry]:
        for step in self._steps:
            for entry in step.entries:
                if entry.request is request and not entry.is_void:
                    yield entry

    def check(self, request: Request) -> None:
        """Assert that a request's counts in flight are those of the steps."""
        entries = list(self._entries_of(request))
        assert request.num_scheduled_tokens == sum(e.num_tokens for e in entries), f"{request.request_id}: tokens"
        assert request.num_pending_samples == sum(e.samples for e in entries), f"{request.request_id}: samples"
