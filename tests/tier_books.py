"""The books of an engine over tiers: requests, tables and tokens as steps tell of them, and who starts again.

Nothing here looks inside the scheduler.
"""

from __future__ import annotations

import itertools
from collections import deque

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, TransferKind
from scheduler.output import Admission, ScheduledRequest, SchedulerOutput, StepResult
from scheduler.request import FinishReason, RequestSpec
from tests.device_model import ModelSequence
from tests.tier_content import Flight, TierContent, Truth
from tests.tier_steps import Choice, Part, Step

NO_ORDER = (0, 0.0, 0.0, "", 0)


class TierBooks:
    """Follows what the engine is told and what it computes."""

    def __init__(self, config: SchedulerConfig, truth: Truth, content: TierContent) -> None:
        self.config = config
        self.truth = truth
        self.content = content
        self.live: dict[str, Choice] = {}
        self.outcomes: dict[str, str] = {}
        self.known_chains: list[list[int]] = []
        """Prefix ids of requests that have ended by themselves, in this life or an earlier one: prompt and output."""
        self.admissions: dict[str, Admission] = {}
        self.steps: deque[Step] = deque()
        self.num_restarts = 0
        """Of requests that were computed upon a load that failed."""
        self._doomed: set[str] = set()  # those of them of which the scheduler was not told yet

    def num_on_disk(self, chain: list[int]) -> int:
        """Leading full blocks of a chain whose files are there and right."""
        present = (self.content.disk.get(block_hash) is not None for block_hash in self.truth.hashes(chain))
        return sum(itertools.takewhile(bool, present))

    def names_in_flight(self) -> list[str]:
        """Live requests of whose blocks some are being copied."""
        moving = {h for flight in self.content.flights.values() for h in flight.transfer.block_hashes}
        return sorted(n for n, c in self.live.items() if moving & set(self.truth.hashes(c.sequence.chain)))

    def _enter(self, spec: RequestSpec, chain: list[int]) -> None:
        """It lives from here."""
        num_tokens, ids = spec.num_prompt_tokens, self.truth.prefix_ids
        sequence = ModelSequence(
            spec, 0, NO_ORDER, (0, 0.0, "", 0), ids, list(chain), len(spec.block_hashes), num_tokens
        )
        self.live[spec.request_id] = Choice(sequence)

    def _take_left(self, output: SchedulerOutput) -> None:
        """Who expired, who lost its blocks, who was let in."""
        for expiry in output.expired:
            for name in [n for n, c in self.live.items() if c.spec.group_id == expiry.group_id]:
                self._leave(name, "expired")
        for name in output.preempted:
            self._restart(self.live[name])
        for admission in output.admissions:
            assert admission.request_id not in self.admissions, f"{admission.request_id} is admitted twice"
            self.admissions[admission.request_id] = admission

    def _take_in(self, scheduled: ScheduledRequest) -> Part:
        """One request's part of a new step, as the engine would read it."""
        choice = self.live[scheduled.request_id]
        sequence = choice.sequence
        if choice.table is None:
            assert scheduled.first_block == 0 and scheduled.new_block_ids, f"{choice.name} starts without a table"
            choice.table = []
            choice.position = choice.num_computed = scheduled.num_computed_tokens
        assert scheduled.first_block == len(choice.table), f"{choice.name}: a hole in its table"
        choice.table.extend(scheduled.new_block_ids)
        assert scheduled.num_computed_tokens == choice.position, f"{choice.name}: tokens twice or never"
        part = Part(scheduled, choice, tuple(choice.table))
        known = sequence.num_committed_tokens + choice.num_pending
        assert scheduled.num_tokens >= 1 and part.end <= min(known, sequence.spec.num_kv_tokens)
        assert scheduled.samples == (part.end == known and sequence.spec.max_tokens > 0)
        assert len(part.table) * self.config.block_size >= part.end, f"{choice.name}: no room"
        choice.position = part.end
        choice.num_pending += scheduled.samples
        return part

    def _loading(self) -> dict[int, int]:
        """Device blocks that a load fills whose result is not known, and its number."""
        loads = [f.transfer for f in self.content.flights.values()]
        loads += [t for step in self.steps if not step.has_run for t in step.output.transfers]
        return {b: t.transfer_id for t in loads if t.kind is TransferKind.LOAD for b in t.device_blocks}

    def _check_gates(self, step: Step) -> None:
        """Whoever is computed upon a load that may fail yet is gated on it; gates are on what is under way."""
        loading = self._loading()
        size = self.config.block_size
        for part in step.parts:
            for index in range(-(-part.end // size)):
                load = loading.get(part.table[index])
                if load is None:
                    continue
                is_gated = any(one.is_gated(part.choice.name, load) for one in self.steps)
                assert is_gated, f"{part.choice.name} reads block {part.table[index]} of load {load}, not gated on it"
                assert index < part.scheduled.num_computed_tokens // size, "a block is loaded and computed"
        names = {part.choice.name for part in step.parts}
        for gate in step.output.gated_loads:
            assert gate.request_id in names, f"{gate} of a request that the step does not compute"
            assert gate.transfer_id in loading.values(), f"{gate} on a load that is not under way"

    def _expected_finishes(self, step: Step, result: StepResult) -> list[str]:
        """Commit the step to the books; who is done by it."""
        done = []
        for part, one in zip(step.parts, result.results, strict=True):
            choice, sequence = part.choice, part.choice.sequence
            if choice.name not in self.live:
                continue
            if one.finish_reason is FinishReason.ERROR:
                done.append(choice.name)
                continue
            if choice.name in step.void or choice.name in step.spoilt:
                continue
            choice.num_computed = part.end
            if part.scheduled.samples:
                choice.num_pending -= 1
                sequence.num_committed_tokens += 1
            num_output = sequence.num_committed_tokens - choice.spec.num_prompt_tokens
            is_full = num_output >= choice.spec.max_tokens and choice.num_computed >= choice.spec.num_prompt_tokens
            if one.finish_reason is FinishReason.STOP or is_full:
                done.append(choice.name)
        return done

    def _restart_after(self, flight: Flight) -> None:
        """Whoever has a block that a load did not fill starts again, and all who were computed upon it."""
        if flight.transfer.kind is not TransferKind.LOAD or flight.result.is_done:
            return
        ends = zip(flight.transfer.device_blocks, flight.outcomes, strict=True)
        lost = {block for block, outcome in ends if outcome is not BlockOutcome.DONE}
        number = flight.transfer.transfer_id
        gated = {g.request_id for step in self.steps for g in step.output.gated_loads if g.transfer_id == number}
        for choice in self.live.values():
            has_lost = choice.table is not None and bool(lost & set(choice.table))
            if has_lost or choice.name in self._doomed or choice.name in gated:
                self._restart(choice)
                self.num_restarts += 1

    def _restart(self, choice: Choice) -> None:
        """It has no blocks any more, and what is in flight of it is void."""
        choice.stop()
        self._doomed.discard(choice.name)
        for step in self.steps:
            step.void |= {part.choice.name for part in step.parts if part.choice is choice}

    def _end(self, name: str, outcome: str) -> None:
        assert name not in self.outcomes, f"{name}: {self.outcomes[name]}, then {outcome}"
        self.outcomes[name] = outcome

    def _leave(self, name: str, outcome: str) -> None:
        self._end(name, outcome)
        del self.live[name]
        self._doomed.discard(name)
