"""Seeded lives of small engines with tiers: conversations that come back, copies that are slow or fail, restarts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, TierConfig, TransferKind
from scheduler.link import ClassFloor, LinkDirection, LinkSnapshot
from scheduler.output import SchedulerOutput
from tests.device_model import ALPHABET
from tests.latency_builders import make_coefficients
from tests.scheduler_model import small_classes
from tests.tier_rig import TierRig
from tests.tier_weather import ANY_FAILURE, FAILURES, Weather

CLASS_NAMES = ("high", "middle", "low")
LINKS = (LinkDirection(), LinkDirection(1e9, 0.8e9), LinkDirection(1e4, 1e4), LinkDirection(100.0, 50.0))
"""Nothing is known; a block of 100 bytes in no time, in a step's time, in many steps' time."""

WORKS = ((TransferKind.STORE, TransferKind.LOAD), (TransferKind.READ, TransferKind.WRITE))
"""What the link and the disk do: either may break."""


def draw_link(rng: random.Random, num_blocks: int) -> LinkSnapshot:
    """Another number of streamed layers, another border, another speed; classes close."""
    h2d, num_streamed = rng.choice(LINKS), rng.randint(0, 10)
    floors = tuple(ClassFloor(name, name == "low" or rng.random() < 0.7, False, 1.0, 0.09) for name in CLASS_NAMES)
    return LinkSnapshot(
        h2d=h2d,
        d2h=rng.choice(LINKS),
        kv_link_share=0.2,
        num_resident_layers=10 - num_streamed,
        num_streamed_layers=num_streamed,
        num_blocks=rng.choice((None, rng.randint(1, num_blocks))),
        classes=floors if rng.random() < 0.2 else (),
        disk_read_bytes_per_s=h2d.p50_bytes_per_s / 2,
    )


def draw_rig(rng: random.Random) -> TierRig:
    """Of any shape."""
    max_num_seqs = rng.choice((1, 2, 3, 4, 8))
    config = SchedulerConfig(
        max_num_batched_tokens=max_num_seqs + rng.randint(0, 12),
        max_num_seqs=max_num_seqs,
        block_size=rng.choice((1, 2, 2, 4)),
        scheduler_policy=rng.choice(("fcfs", "priority", "edf", "deadline")),
        max_preemptions=rng.randint(1, 3),
        max_victims_per_step=rng.choice((1, 2, 16)),
        preemption_mode=rng.choice(("auto", "auto", "swap", "recompute")),
    )
    return TierRig(
        config,
        small_classes(queue_cap_tokens=400, max_wait_s=200.0, has_guarantees=rng.random() < 0.3),
        rng.choice((rng.randint(3, 16), rng.randint(3, 16), rng.randint(16, 40))),
        TierConfig(rng.choice((1, 2, 4, 8, 20, 40)), rng.choice((0, 2, 16, 60, 60)), 100, rng.randint(1, 3)),
        weather=Weather(random.Random(rng.random())),
        coefficients=make_coefficients() if rng.random() < 0.5 else None,
    )


class TierTraffic:
    """Turns of random length and kind; `TierRig` checks each call, and `seen` counts what happened."""

    def __init__(self, seed: int, num_in_flight: int = 2) -> None:
        """
        Args:
            num_in_flight: steps that may be scheduled and not updated.
        """
        self._rng = random.Random(seed)
        self._num_in_flight = num_in_flight
        self.rig = draw_rig(self._rng)
        self.seen: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self._watch()
        turns: dict[Callable[[], None], float] = {
            self._offer: 0.18,
            self._go_on: 0.14,
            self._abort: 0.1,
            self._step: 0.2,
            self._step_with_one_in_flight: 0.15,
            self._wait: 0.03,
            self._change_the_weather: 0.12,
            self._spoil: 0.06,
            self._plan_anew: 0.07,
            self._kill: 0.02,
        }
        self._turns, self._weights = list(turns), list(turns.values())

    @property
    def digest(self) -> str:
        """Of all outputs, in order."""
        return self._digest.hexdigest()

    def run(self, num_turns: int) -> TierTraffic:
        """So many turns, then to the end."""
        for _ in range(num_turns):
            self._rng.choices(self._turns, self._weights)[0]()
            self.rig.check()
        self.rig.calm()
        self.rig.drain(self.rig.most_steps())
        self.rig.settle()
        self._count_rig()
        return self

    def _watch(self) -> None:
        schedule = self.rig.schedule

        def watched() -> SchedulerOutput:
            output = schedule()
            self._digest.update(repr(output).encode())
            self._count(output)
            return output

        self.rig.schedule = watched  # type: ignore[method-assign]

    def _count(self, output: SchedulerOutput) -> None:
        seen = self.seen
        seen.update(f"{t.kind.value} {t.purpose.value}" for t in output.transfers)
        seen.update(output.reasons)
        seen["gate"] += len(output.gated_loads)
        seen["preempted"] += len(output.preempted)
        loads = Counter(gate.transfer_id for gate in output.gated_loads)
        seen["shared load"] += sum(count > 1 for count in loads.values())
        tiers = self.rig.scheduler.stats().tiers
        assert tiers is not None
        seen["host off"] += not tiers.is_host_on
        seen["disk off"] += self.rig.tiers.num_disk_blocks > 0 and not tiers.is_disk_on
        seen["disk read only"] += tiers.is_disk_on and not tiers.is_disk_writable
        limit = self.rig.link.num_blocks
        seen["lease beyond the border"] += limit is not None and any(b >= limit for b in self.rig.content.leases())

    def _count_rig(self) -> None:
        """What the life that ends now has done."""
        self.seen.update({f"{kind.value} {end.value}": n for (kind, end), n in self.rig.num_moved.items()})
        for (kind, end), num in self.rig.num_moved.items():
            self.seen[f"{kind.value} in vain"] += num * (end is not BlockOutcome.DONE)
        tiers = self.rig.scheduler.stats().tiers
        assert tiers is not None
        self.seen.update({f"preempted: {how}": n for how, n in tiers.num_preemptions.items()})
        self.seen.update({f"hit: {tier}": n for tier, n in tiers.hit_tokens.items()})
        self.seen.update({f"evicted: {tier}": n for tier, n in tiers.num_evictions.items()})
        self.seen["load failed"] += tiers.num_failed_loads
        self.seen["recomputed by choice"] += tiers.num_recompute_choices
        self.seen["started again"] += self.rig.num_restarts
        self.seen.update(self.rig.outcomes.values())

    # Turns.

    def _offer(self) -> None:
        """One of few prompts, so that prefixes are shared."""
        rng, rig = self._rng, self.rig
        capacity = rig.num_blocks * rig.config.block_size
        length = rng.randint(max(1, capacity // 3), max(1, capacity * 3 // 4))
        prompt = [1 + i // 3 % ALPHABET if rng.random() < 0.98 else ALPHABET for i in range(length)]
        prompt += [rng.randint(1, 2) for _ in range(rng.randint(0, 2))]
        rig.add(
            prompt,
            rng.randint(0, max(1, capacity - len(prompt))),
            rng.choice(CLASS_NAMES),
            n=rng.choice((1, 1, 1, 2, 3)),
            salt=rng.choice(("", "", "", "salt")),
            reads=rng.random() < 0.8,
            retention=rng.choice((1, 1, 2)),
        )

    def _go_on(self) -> None:
        """The next turns of some conversations."""
        rng, rig = self._rng, self.rig
        for _ in range(rng.randint(1, 3) if rig.known_chains else 0):
            chain = rng.choice(rig.known_chains)
            for tail in rng.choice(([[1]], [[1, 2]], [[1], [2]])):
                rig.add_chain(rig.truth.extend(chain, tail), rng.randint(0, 4), rng.choice(CLASS_NAMES))

    def _abort(self) -> None:
        rng, rig = self._rng, self.rig
        names = rig.names_in_flight()
        if names and rng.random() < 0.5:
            if rng.random() < 0.5:
                rig.land()
            rig.abort([rng.choice(names)])
            self.seen["aborted in flight"] += 1
        elif rig.live and rng.random() < 0.3:
            rig.failing.add(rng.choice(sorted(rig.live)))
        elif rig.live:
            rig.abort([rng.choice(sorted(rig.live))])

    def _step(self) -> None:
        for _ in range(self._rng.randint(1, 8)):
            self.rig.step()

    def _step_with_one_in_flight(self) -> None:
        for _ in range(self._rng.randint(1, 8)):
            while len(self.rig.steps) >= self._num_in_flight:
                self.rig.update()
            self.rig.schedule()
            self.rig.check()
            if self._rng.random() < 0.5:
                for step in self.rig.steps:
                    self.rig.execute(step)

    def _wait(self) -> None:
        self.rig.now_s += self._rng.choice((0.05, 1.0, 31.0))

    def _change_the_weather(self) -> None:
        rng, weather = self._rng, self.rig.weather
        draw = rng.random()
        weather.failures = dict(rng.choice((FAILURES, FAILURES, ANY_FAILURE)))
        if draw < 0.45:
            weather.longest_s = rng.choice((0.0, 0.05, 0.5, 5.0))
        elif draw < 0.8:
            weather.failing = {kind: rng.choice((0.3, 1.0)) for kind in TransferKind if rng.random() < 0.4}
        else:
            weather.failing = dict.fromkeys(rng.choice(WORKS), 1.0)
            weather.failures = dict.fromkeys(TransferKind, (BlockOutcome.FAILED,))

    def _spoil(self) -> None:
        """A byte flips, a file vanishes or breaks, others fill the disk."""
        rng, rig = self._rng, self.rig
        slots = rig.content.slots_at_rest()
        if slots and rng.random() < 0.3:
            rig.content.flip(rng.choice(slots))
        elif rig.disk and rng.random() < 0.5:
            block_hash = rng.choice(sorted(rig.disk))
            if rng.random() < 0.5:
                del rig.disk[block_hash]
            else:
                rig.disk[block_hash] = None
        else:
            rig.content.disk_room = rng.choice((None, 0, 1, 3))

    def _plan_anew(self) -> None:
        self.rig.link = draw_link(self._rng, self.rig.num_blocks)

    def _kill(self) -> None:
        """Everything but the disk is gone."""
        self._count_rig()
        self.rig = self.rig.restarted()
        self._watch()
