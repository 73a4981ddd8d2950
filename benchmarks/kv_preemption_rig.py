"""A real model, scheduler and link in one process, with one request that is preempted and brought back on purpose.

The victim decodes in a pool that it fills. An intruder of a higher class takes two blocks more than are free, so the
victim yields; what is stored of it leaves before the intruder starts. Then the intruder ends, and all that the device
still holds of the victim is overwritten, as other requests would do it: what comes back was loaded or computed.

Write-behind is off, or the blocks would have been on the host before; and once a victim was stored it is loaded again,
whatever the prices say at its return.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AbortChoices, AddGroup, SLORequest, StepOutputs
from engine.process import warm_up
from engine.process_config import ProcessConfig
from engine.runner_factory import BuiltRunner, build_model_runner
from engine.sampling_params import SamplingParams
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.preemption_cost import RecomputeCost
from scheduler.request import BlockHash, Request
from scheduler.restore_price import RestorePrices
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from scheduler.tier_directory import Presence
from server.model_source import resolve_model

BLOCK_SIZE = 16
CHUNK_TOKENS = 512
OUTPUT_TOKENS = 64
WARM_TOKENS = 3
"""That a victim makes before it yields."""
ROOM_BLOCKS = OUTPUT_TOKENS // BLOCK_SIZE + 4
"""Beside a prompt."""
PATIENCE_S = 120.0
MEMORY_BYTES = 512 * 2**20
"""Of the device's blocks, and of the host's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Predicted:
    """What the scheduler expected at the moment of the preemption, in seconds until the next token is computed."""

    swap_s: float
    recompute_s: float

    @property
    def prefers_swap(self) -> bool:
        return self.swap_s <= self.recompute_s


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """One preemption and the return from it."""

    store_s: float
    """From the preemption until all that is stored of the victim has left; 0: nothing is."""
    return_s: float
    """From the moment when its blocks are free again until its next token."""
    predicted: Predicted
    num_loaded_blocks: int

    @property
    def total_s(self) -> float:
        return self.store_s + self.return_s


class SpiedPrices:
    """In place of a scheduler's choice at a preemption: notes what it would have been, and takes the one told."""

    def __init__(self, prices: RestorePrices, clock: MonotonicClock) -> None:
        self._prices = prices
        self._clock = clock
        self.swaps = True
        self.num_tokens = 0
        """Of the victim that is about to yield."""
        self.predicted: Predicted | None = None
        self.preempted_s = 0.0
        prices.worth_storing = self._choose  # type: ignore[method-assign]
        prices.worth_loading = lambda blocks: blocks  # type: ignore[method-assign]

    def _choose(self, num_kept_blocks: int, num_blocks: int) -> bool:
        prices, quote = self._prices, self._prices._tiers.quote
        num_stores, num_full = num_blocks - num_kept_blocks, num_blocks * BLOCK_SIZE
        recompute_s = prices.recompute_s(num_kept_blocks * BLOCK_SIZE, num_full)
        tail_s = prices.recompute_s(min(num_full, self.num_tokens - 1), self.num_tokens)
        assert recompute_s is not None and tail_s is not None, "steps are not predicted"
        copies_s = quote.store_s(num_stores) + quote.load_s(num_stores)
        self.predicted = Predicted(copies_s + tail_s, recompute_s + tail_s)
        self.preempted_s = self._clock.now_s()
        return self.swaps


class PreemptionRig:
    """One link. To be closed."""

    def __init__(self, model: str, threads: int, max_tokens: int, link_gbps: float | None) -> None:
        """
        Args:
            max_tokens: of the longest victim.
            link_gbps: None: there is no host memory, and nothing can be preempted here.

        Raises:
            EngineError, OffloadError, OSError, ValueError: the model or the link cannot be had.
        """
        self.config = SchedulerConfig(
            max_num_batched_tokens=CHUNK_TOKENS, block_size=BLOCK_SIZE, scheduler_policy="priority", admission="caps",
            max_preemptions=1000,
        )  # fmt: skip
        num_tokens = max_tokens + 2 * ROOM_BLOCKS * BLOCK_SIZE
        engine = EngineConfig(
            model_path=str(resolve_model(model).path), threads=threads, kv_cache_memory_bytes=MEMORY_BYTES
        )
        offload = OffloadConfig()
        if link_gbps is not None:
            offload = OffloadConfig(host_memory_bytes=MEMORY_BYTES, link_gbps=link_gbps)
        config = ProcessConfig(
            engine=engine, scheduler=self.config, inbox_endpoint="", outbox_endpoint="", parent_pid=0, offload=offload
        )
        self.clock = MonotonicClock()
        self.built: BuiltRunner = build_model_runner(config, lambda _phase, _fraction: None)
        if self.built.num_blocks * BLOCK_SIZE < num_tokens:
            raise ValueError(f"a context of {max_tokens} tokens does not fit the device's blocks")
        if self.built.latency is None:
            raise ValueError("there is no record of this machine, and steps cannot be predicted")
        self.latency = LatencyModel(self.built.latency)
        self.rung = threading.Semaphore(0)
        self.built.offload.call_on_results(self.rung.release)
        for _ in range(2):
            warm_up(config, self.built, self.clock)

    def s_per_token(self) -> float:
        """Predicted for the first chunk of a prompt."""
        return RecomputeCost.of(self.latency, NO_LINK, CHUNK_TOKENS).restore_s(0, CHUNK_TOKENS) / CHUNK_TOKENS

    @property
    def bytes_per_token(self) -> int:
        return self.built.kv_cache_bytes // (self.built.num_blocks * BLOCK_SIZE)

    def close(self) -> None:
        self.built.offload.close()

    def measure(self, num_tokens: int, num_rounds: int) -> dict[bool, list[Restored]]:
        """By whether it was by swap; both in turn, in a pool for one victim of that many tokens."""
        course = _Course(self, num_tokens)
        found: dict[bool, list[Restored]] = {True: [], False: []}
        for index in range(num_rounds):
            for swaps in (True, False) if index % 2 == 0 else (False, True):
                found[swaps].append(course.restore(swaps))
        course.finish()
        return found


class _Course:
    """Victims of one length, one after the other; they have the same prompt, which is computed once."""

    def __init__(self, rig: PreemptionRig, num_tokens: int) -> None:
        self._rig = rig
        self._num_prompt_tokens = num_tokens - WARM_TOKENS
        self._prompt = tuple(1000 + (place * 7919 + num_tokens) % 40000 for place in range(self._num_prompt_tokens))
        num_blocks = -(-num_tokens // BLOCK_SIZE) + ROOM_BLOCKS
        built = rig.built
        self._scheduler = Scheduler(
            rig.config, SLOClasses(), num_blocks, min(built.max_model_len, num_blocks * BLOCK_SIZE), rig.latency,
            built.tiers,
        )  # fmt: skip
        self._core = EngineCore(
            self._scheduler, built.runner, rig.clock, block_size=BLOCK_SIZE, eos_token_ids=frozenset(),
            offload=built.offload,
        )  # fmt: skip
        self._spy = SpiedPrices(self._scheduler._prices, rig.clock)
        self._kv = self._scheduler._kv
        self._kv.tiers.became_full = lambda block_hash, priority, position: None  # type: ignore[method-assign]  # noqa: ARG005
        self._num_groups = 0
        self._num_made: dict[str, int] = {}
        self._stored_s: float | None = None
        """When all that was stored of the victim had left."""

    def restore(self, swaps: bool) -> Restored:
        """Preempt a victim and bring it back."""
        clock, spy, use = self._rig.clock, self._spy, self._kv.tiers.use
        victim = self._add(self._prompt, "batch")
        self._run_until(victim, WARM_TOKENS)
        request = self._request(victim)
        spy.swaps, spy.predicted, spy.num_tokens, self._stored_s = swaps, None, request.num_tokens, None
        intruder = self._add(self._intruder_prompt(self._kv.pool.num_free_blocks), "standard", 16)
        self._run_until(intruder, 1)
        while self._stored_s is None and self._num_made[intruder] < 16:
            self._turn()
        if spy.predicted is None or self._stored_s is None or request.num_preemptions != 1:
            raise RuntimeError(f"the victim was preempted {request.num_preemptions} times")
        store_s = self._stored_s - spy.preempted_s if swaps else 0.0
        self._overwrite_free_blocks()
        num_loaded, num_made = use.num_loaded_blocks, self._num_made[victim]
        started_s = clock.now_s()
        self._turn([AbortChoices(group_id=intruder)])
        self._run_until(victim, num_made + 1)
        restored = Restored(store_s, clock.now_s() - started_s, spy.predicted, use.num_loaded_blocks - num_loaded)
        hashes = tuple(request.block_hashes)
        self._turn([AbortChoices(group_id=victim)])
        self.finish()
        self._forget_on_host(hashes)
        return restored

    def finish(self) -> None:
        """Until nothing is under way."""
        while self._core.num_live_choices or self._kv.tiers.leased_block_ids():
            self._turn()

    def _intruder_prompt(self, num_free_blocks: int) -> Sequence[int]:
        self._num_groups += 1
        num_tokens = (num_free_blocks + 1) * BLOCK_SIZE + 1  # more than the victim's last block gives
        return [1000 + (place * 104729 + self._num_groups * 31) % 40000 for place in range(num_tokens)]

    def _add(self, prompt: Sequence[int], slo_class: str, num_output_tokens: int = OUTPUT_TOKENS) -> str:
        self._num_groups += 1
        name = f"{slo_class} {self._num_groups}"
        self._num_made[name] = 0
        slo = SLORequest(requested=slo_class, granted=slo_class, ttft_s=PATIENCE_S)
        sampling = SamplingParams(max_tokens=num_output_tokens, temperature=0.0, ignore_eos=True)
        group = AddGroup(
            group_id=name, prompts=(tuple(prompt),), n=1, sampling=sampling, slo=slo, arrival_s=self._rig.clock.now_s()
        )
        outputs = self._turn([group])
        if outputs.refused:
            raise RuntimeError(f"refused: {outputs.refused[0].message}")
        return name

    def _overwrite_free_blocks(self) -> None:
        pool = self._kv.pool
        pool.release(pool.allocate(pool.num_free_blocks))

    def _forget_on_host(self, hashes: Sequence[BlockHash]) -> None:
        """As if they had been damaged there."""
        directory = self._kv.tiers.directory
        for block_hash in hashes:
            if directory.presence(block_hash) is Presence.HOST:
                directory.begin_load(block_hash)
                directory.end_load(block_hash, BlockOutcome.CORRUPT)

    def _request(self, name: str) -> Request:
        return next(r for r in self._scheduler._requests.values() if r.spec.group_id == name)

    def _run_until(self, name: str, num_tokens: int) -> None:
        give_up_s = self._rig.clock.now_s() + PATIENCE_S
        while self._num_made[name] < num_tokens:
            self._turn()
            if self._rig.clock.now_s() > give_up_s:
                raise RuntimeError(f"{name} has made {self._num_made[name]} tokens in {PATIENCE_S:g} s")

    def _turn(self, messages: Sequence[AddGroup | AbortChoices] = ()) -> StepOutputs:
        core, wait_s = self._core, self._core.wait_s()
        if not messages and wait_s != 0.0:
            self._rig.rung.acquire(timeout=1.0 if wait_s is None else min(wait_s, 1.0))
        outputs = core.turn(messages)
        core.raise_if_failing()
        for delta in outputs.deltas:
            self._num_made[delta.group_id] += len(delta.token_ids)
        if self._stored_s is None and self._spy.predicted is not None and not self._kv.tiers.leased_block_ids():
            self._stored_s = self._rig.clock.now_s()
        return outputs
