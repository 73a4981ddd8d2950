"""An engine and its offload without either: drives a Scheduler with tiers on a virtual clock, over `TierContent`.

It takes the contract at its word. A copy begins when its step does, holds both ends until its result is in a
`StepResult`, ends whenever the weather says, in any order, exactly once. A step that computes upon a load must name it
in `gated_loads`, the load is over when the step is, and if it failed, the request is void in that step. A request
without a step in a world where nothing is under way would wait for ever, and is a failure.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, TierConfig, TransferKind
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.output import (
    FinishedRequest,
    RequestResult,
    SchedulerOutput,
    StepResult,
    Verdict,
    VerdictKind,
)
from scheduler.request import MAX_FAILED_LOADS, BlockHash, FinishReason, RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import SLO, SLOClasses
from tests.device_model import POISON, STOP_TOKEN
from tests.tier_books import TierBooks
from tests.tier_content import Content, Flight, TierContent, Truth
from tests.tier_steps import Part, Step
from tests.tier_weather import Weather

T = TypeVar("T")
STEP_S = 0.02
MAX_IDLE_STEPS = 3
COPIES_PER_BLOCK = 10
"""See `TierRig.most_steps`."""


class TierRig(TierBooks):
    """One engine's life; another rig with the same truth and disk is the engine after a restart."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: SLOClasses,
        num_blocks: int,
        tiers: TierConfig,
        *,
        weather: Weather | None = None,
        truth: Truth | None = None,
        disk: dict[BlockHash, Content | None] | None = None,
        coefficients: LatencyCoefficients | None = None,
        has_twin: bool = False,
    ) -> None:
        """
        Args:
            disk: files that are there; `tiers` need not know of them, the rig tells the scheduler.
            has_twin: a second scheduler is told the same and must answer the same.
        """
        truth = Truth(config.block_size) if truth is None else truth
        self.disk: dict[BlockHash, Content | None] = {} if disk is None else disk
        super().__init__(config, truth, TierContent(num_blocks, tiers.num_host_slots, truth, self.disk))
        self.classes, self.num_blocks, self.tiers = classes, num_blocks, tiers
        self.weather = Weather(random.Random(0)) if weather is None else weather
        tiers = dataclasses.replace(tiers, disk_hashes=tuple(self.disk))
        max_model_len = num_blocks * config.block_size + 1
        self._schedulers = tuple(
            Scheduler(
                config,
                classes,
                num_blocks,
                max_model_len,
                None if coefficients is None else LatencyModel(coefficients),
                tiers,
            )
            for _ in range(1 + has_twin)
        )
        self.scheduler = self._schedulers[0]
        self.now_s = 0.0
        self.link: LinkSnapshot = NO_LINK
        self.failing: set[str] = set()
        """Requests whose next result is an error."""
        self.num_moved: Counter[tuple[TransferKind, BlockOutcome]] = Counter()
        """Blocks, by how their copies ended."""
        self._coefficients = coefficients
        self.num_steps = 0
        self._ended: dict[int, tuple[BlockOutcome, ...]] = {}  # results that were handed over
        self._num_groups = 0
        self._num_begun = 0
        self._num_idle = 0

    def _both(self, call: Callable[[Scheduler], T]) -> T:
        first, *others = (call(s) for s in self._schedulers)
        assert all(other == first for other in others), f"two schedulers with the same history disagree:\n{first}"
        return first

    # What the engine is told.

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        slo_class: str | None = None,
        *,
        n: int = 1,
        salt: str = "",
        reads: bool = True,
        retention: int = 1,
    ) -> Verdict:
        """Offer n choices of a prompt."""
        chain = self.truth.chain(prompt, salt)
        return self.add_chain(chain, max_tokens, slo_class, n=n, reads=reads, retention=retention)

    def add_chain(
        self,
        chain: list[int],
        max_tokens: int,
        slo_class: str | None = None,
        *,
        n: int = 1,
        reads: bool = True,
        retention: int = 1,
    ) -> Verdict:
        """Offer n choices of a prompt, as the ids of its prefixes."""
        group_id = f"g{self._num_groups}"
        self._num_groups += 1
        name = slo_class or self.classes.default.name
        slo = SLO(name, name)
        specs, hashes = [], self.truth.hashes(chain)
        for index in range(n):
            leader_id = f"{group_id}/0" if index else None
            specs.append(
                RequestSpec(
                    f"{group_id}/{index}", group_id, len(chain), max_tokens, hashes, slo, self.now_s, leader_id,
                    reads_prefix_cache=reads, retention=retention,
                )
            )  # fmt: skip
        verdict = self._both(lambda s: s.add(tuple(specs), self.now_s))
        for spec in specs:
            if verdict.kind is VerdictKind.REFUSE:
                self._end(spec.request_id, "refused")
                continue
            self._enter(spec, chain)
        return verdict

    def abort(self, names: list[str]) -> None:
        expected = [i for i in dict.fromkeys(names) if i in self.live]
        finished = self._both(lambda s: s.abort(names, self.now_s))
        assert [f.request_id for f in finished] == expected
        for name in expected:
            self._leave(name, "abort")

    # A step.

    def schedule(self) -> SchedulerOutput:
        """Plan a step; it is in flight from here."""
        output = self._both(lambda s: s.schedule(self.now_s, self.link))
        self.num_steps += 1
        self._take_left(output)
        parts = tuple(self._take_in(scheduled) for scheduled in output.scheduled)
        start_s = max(self.now_s, self.steps[-1].end_s) if self.steps else self.now_s
        step = Step(output, parts, start_s + (STEP_S if parts else 0.0))
        self.steps.append(step)
        self._check_gates(step)
        if len(self.steps) == 1 and self.live and self.link.num_blocks is None:
            is_moving = output.scheduled or output.transfers or output.preempted or self.content.flights
            assert is_moving, f"nothing is under way and {len(self.live)} requests wait: {output.reasons}"
        return output

    def execute(self, step: Step) -> None:
        """Begin its copies, compute it, and wait for the loads it is gated on."""
        if step.has_run:
            return
        step.has_run = True
        for transfer in step.output.transfers:
            assert transfer.transfer_id not in self._ended, f"number {transfer.transfer_id} comes again"
            duration_s, outcomes = self.weather.fate(transfer)
            self.content.begin(transfer, self.now_s + duration_s, outcomes)
            self._num_begun += 1
        self.content.copy(step.output.block_copies)
        for gate in step.output.gated_loads:
            if self._outcomes_of(gate.transfer_id) is not BlockOutcome.DONE:
                step.spoilt.add(gate.request_id)
                if gate.transfer_id in self.content.flights:
                    self._doomed.add(gate.request_id)
        step.spoilt |= {part.choice.name for part in step.parts} & self._doomed
        self._compute(step)

    def _outcomes_of(self, transfer_id: int) -> BlockOutcome:
        """The end of a load that a step waits for: DONE, or how a block of it failed."""
        flight = self.content.flights.get(transfer_id)
        if flight is not None:
            self.content.finish(flight)
        outcomes = self._ended[transfer_id] if flight is None else flight.outcomes
        return next((one for one in outcomes if one is not BlockOutcome.DONE), BlockOutcome.DONE)

    def _compute(self, step: Step) -> None:
        """Write the step's positions, then read all of every request's, as attention does; then sample."""
        size, leases, writer = self.config.block_size, self.content.leases(), dict[int, str]()
        for part in step.parts:
            name, chain = part.choice.name, part.choice.sequence.chain
            is_void = name in step.spoilt or name in step.void or name not in self.live
            for position in range(part.scheduled.num_computed_tokens, part.end):
                block, offset = part.table[position // size], position % size
                assert not leases[block], f"{name} writes block {block}, which a copy holds"
                assert writer.setdefault(block, name) == name, f"{name} and {writer[block]} write block {block}"
                self.content.write(block, offset, POISON if is_void else chain[position])
        for part in step.parts:
            name, chain = part.choice.name, part.choice.sequence.chain
            if name in step.spoilt or name in step.void or name not in self.live:
                continue
            for start in range(0, part.end, size):
                block = part.table[start // size]
                held = self.content.holds(block, chain[start : min(start + size, part.end)])
                assert held, f"{name} reads the KV of other tokens at {start}.. (block {block})"
            if part.scheduled.samples:
                step.tokens[name] = part.choice.sequence.sample()

    def update(self) -> tuple[FinishedRequest, ...]:
        """Hand over what came of the oldest step, and the copies that have ended."""
        self.execute(self.steps[0])
        step = self.steps.popleft()
        self.now_s = max(self.now_s, step.end_s)
        self.content.advance(self.now_s)
        ended = self._hand_over(step)
        results = tuple(self._result(step, part) for part in step.parts)
        result = StepResult(step.output.step_id, results, tuple(flight.result for flight in ended))
        finished = self._both(lambda s: s.update(step.output, result, self.now_s))
        expected = self._expected_finishes(step, result)
        assert [f.request_id for f in finished] == expected, f"{finished}, expected {expected}"
        for flight in ended:
            self._restart_after(flight)
        for one in finished:
            if one.finish_reason is not FinishReason.ERROR:
                sequence = self.live[one.request_id].sequence
                self.known_chains.append(sequence.chain[: sequence.num_committed_tokens])
            self._leave(one.request_id, one.finish_reason.value)
        self.failing.clear()
        self._poison_free()
        return finished

    def _hand_over(self, step: Step) -> list[Flight]:
        """Copies that have ended, in any order; those that another step is gated on come with that one."""
        later = {g.transfer_id for other in self.steps for g in other.output.gated_loads}
        later -= {g.transfer_id for g in step.output.gated_loads}
        ended = [t for t, flight in self.content.flights.items() if flight.has_ended and t not in later]
        self.weather.rng.shuffle(ended)
        flights = [self.content.take(transfer_id) for transfer_id in ended]
        for flight in flights:
            self._ended[flight.transfer.transfer_id] = flight.outcomes
            self.num_moved.update((flight.transfer.kind, outcome) for outcome in flight.outcomes)
        return flights

    def _result(self, step: Step, part: Part) -> RequestResult:
        name, sequence = part.choice.name, part.choice.sequence
        if name in self.failing:
            return RequestResult(name, 0, FinishReason.ERROR, ())
        if name in step.spoilt:
            is_gated = any(g.request_id == name for g in step.output.gated_loads)
            return RequestResult(name, 0 if is_gated else int(part.scheduled.samples), None, ())
        self.truth.hashes(sequence.chain)
        hashes = sequence.hash_full_blocks(part.end, self.config.block_size)
        is_stop = step.tokens.get(name) == STOP_TOKEN
        return RequestResult(name, int(part.scheduled.samples), FinishReason.STOP if is_stop else None, hashes)

    def _poison_free(self) -> None:
        """What nobody may use holds nothing."""
        pool = self.scheduler._kv.pool
        free = [b for b in range(self.num_blocks) if not pool.num_references(b) and pool._hash_of[b] is None]
        assert not set(free) & set(self.content.leases()), "a block is free and a copy holds it"
        self.content.forget(free)

    # Events between two steps.

    def land(self) -> None:
        """All copies are over; their results are not handed over yet."""
        self.content.advance(math.inf)

    def calm(self) -> None:
        """Nothing else goes wrong, and every block may be handed out."""
        self.weather.failing.clear()
        self.weather.longest_s = 0.0
        self.failing.clear()
        self.link = NO_LINK

    def restarted(self) -> TierRig:
        """The engine was killed; another one starts on the same disk. Files that were being written are not there."""
        after = TierRig(
            self.config,
            self.classes,
            self.num_blocks,
            self.tiers,
            weather=self.weather,
            truth=self.truth,
            disk=self.disk,
            coefficients=self._coefficients,
            has_twin=len(self._schedulers) > 1,
        )
        after.content.disk_room = self.content.disk_room
        after.known_chains = self.known_chains
        return after

    # Many steps.

    def step(self) -> SchedulerOutput:
        """One whole step, with nothing left in flight; where nothing is computed, time passes to the next event."""
        while self.steps:
            self.update()
        before = self._progress()
        output = self.schedule()
        self.update()
        self.check()
        if not output.scheduled and self.live and not self.scheduler.has_background_work():
            events_s = [flight.end_s for flight in self.content.flights.values()]
            wakeup_s = self.scheduler.next_wakeup_s()
            events_s += [] if wakeup_s is None else [wakeup_s]
            self.now_s = max(self.now_s, min(events_s, default=self.now_s))
        is_idle = bool(self.live) and self._progress() == before and self.link.num_blocks is None
        self._num_idle = self._num_idle + 1 if is_idle else 0
        assert self._num_idle < MAX_IDLE_STEPS, f"steps without work or end: {output.reasons}"
        return output

    def _progress(self) -> tuple[object, ...]:
        """Changes with everything that brings an end nearer."""
        return self.now_s, self._num_begun, sum(self.num_moved.values()), self.num_restarts, len(self.outcomes)

    def most_steps(self) -> int:
        """A bound on the steps until all live requests have ended, whatever copies do.

        A request starts at most once, once more after each of `max_preemptions` preemptions and once more after each of
        `MAX_FAILED_LOADS` failed loads; in each of these lives it computes each of its tokens at most once. A step that
        computes nothing begins a copy, ends one, or is the one that finds nothing to begin after that. In a life each
        block is at most loaded and read, stored when it is full and when the request yields, written after each of
        these, and every file is deleted: `COPIES_PER_BLOCK`. What was under way, and what lies on the host to be
        written, comes on top.
        """
        num_lives = 1 + self.config.max_preemptions + MAX_FAILED_LOADS
        size, num_steps = self.config.block_size, 0
        for choice in self.live.values():
            num_tokens = choice.spec.num_kv_tokens
            num_steps += num_lives * (num_tokens + 3 * COPIES_PER_BLOCK * -(-num_tokens // size))
        return num_steps + 3 * (len(self.content.flights) + 2 * self.tiers.num_host_slots + len(self.disk))

    def drain(self, max_steps: int) -> int:
        """Run until every request has ended; returns the steps it took."""
        first = self.num_steps
        while self.live or self.steps:
            assert self.num_steps - first < max_steps, f"{sorted(self.live)} are left: no end"
            self.step()
        return self.num_steps - first

    def settle(self, max_steps: int = 1000) -> None:
        """Nobody is left: copies end, blocks are written behind, and then nothing is held any more."""
        assert not self.live
        for _ in range(max_steps):
            if not (self.scheduler.has_background_work() or self.content.flights or self.steps):
                break
            self.step()
            self.now_s = max([self.now_s, *(flight.end_s for flight in self.content.flights.values())])
        assert not self.content.flights and not self.scheduler.has_background_work(), "background work without end"
        stats = self.scheduler.stats()
        assert stats.num_blocks_used == 0, f"{stats.num_blocks_used} blocks are used by nobody"

    def check(self) -> None:
        """Between any two calls."""
        self.scheduler.check()
        assert self.scheduler.has_work() == bool(self.live)
        stats = self._both(lambda s: s.stats())
        assert stats.num_running + stats.num_waiting == len(self.live)
        self._check_owners()
        tiers = stats.tiers
        if tiers is None:
            assert not self.tiers.has_host
            return
        busy = {slot for flight in self.content.flights.values() for slot in flight.transfer.host_slots}
        assert len(busy) <= tiers.num_host_used <= self.tiers.num_host_slots, "a slot is used and not counted"
        counted = {(k, o): n for k, by in tiers.num_transfers.items() for o, n in by.items() if n}
        assert counted == {(k.value, o.value): n for (k, o), n in self.num_moved.items()}

    def _check_owners(self) -> None:
        """No block is free that a request or a copy holds."""
        pool, owners = self.scheduler._kv.pool, self.content.leases()
        owners.update(
            b for step in self.steps if not step.has_run for t in step.output.transfers for b in t.device_blocks
        )
        owners.update(b for choice in self.live.values() if choice.table is not None for b in choice.table)
        for block, num in owners.items():
            assert pool.num_references(block) >= num, f"block {block} has {num} owners, fewer are counted"
