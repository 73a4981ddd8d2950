"""Seeded traffic for a small scheduler: bursts, shared prompts, groups, tenants, aborts, errors, waits, a moving link.

A world says whether steps are predicted, how long they take, whether promises are made, and whether anything moves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random

from scheduler.config import PolicyName, SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, ClassFloor, LinkDirection, LinkSnapshot
from scheduler.output import RefusalReason, SchedulerOutput, Verdict, VerdictKind
from scheduler.slo import SLO
from scheduler.step_features import StepFeatures
from tests.device_model import ALPHABET
from tests.latency_builders import make_coefficients
from tests.scheduler_model import SchedulerModel, small_classes

NUM_LAYERS = 12


@dataclasses.dataclass(frozen=True)
class World:
    """What a scheduler lives in."""

    is_predicted: bool = True
    """It has a latency model, which is right but for the noise."""
    has_clock: bool = True
    """Steps take their time; else time passes at random between the calls."""
    noise: float = 0.0
    """Sigma of the logarithm of what a step takes over what it should."""
    has_guarantees: bool = False
    """Two of three classes are refused or degraded where they would be late."""
    moves: bool = False
    """Streamed layers, the border of the blocks, and which classes are open."""
    num_tenants: int = 1
    has_faults: bool = True
    """Clients leave and steps fail."""
    offers_per_turn: float = 0.35


@dataclasses.dataclass(frozen=True)
class TrafficRun:
    """What a run did."""

    model: SchedulerModel
    digest: str
    """Of every step's output, in order."""
    num_steps: int
    num_head_preemptions: int
    """Steps in which a waiting request started in the place of others."""
    kinds: frozenset[VerdictKind]
    refusals: frozenset[RefusalReason]
    reasons: frozenset[str]
    """Why something was not scheduled at some step."""


def traffic_config(policy: PolicyName = "priority", caching: bool = True) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=24,
        max_num_seqs=6,
        block_size=4,
        max_queued_requests=24,
        enable_prefix_caching=caching,
        scheduler_policy=policy,
        max_preemptions=2,
    )


def draw_config(rng: random.Random, policy: PolicyName | None = None) -> SchedulerConfig:
    """Of any shape."""
    max_num_seqs = rng.randint(1, 8)
    return SchedulerConfig(
        max_num_batched_tokens=max_num_seqs + rng.choice((0, 1, 5, 20, 60)),
        max_num_seqs=max_num_seqs,
        block_size=rng.choice((1, 2, 4, 8)),
        max_queued_requests=rng.choice((2, 8, 24)),
        enable_prefix_caching=rng.random() < 0.7,
        scheduler_policy=rng.choice(("fcfs", "priority", "edf", "deadline")) if policy is None else policy,
        admission=rng.choice(("caps", "promise")),
        max_preemptions=rng.randint(1, 3),
        max_victims_per_step=rng.choice((1, 2, 16)),
        max_step_s=rng.choice((0.03, 0.2)),
        long_prompt_tokens=rng.choice((20, 8192)),
    )


def draw_world(rng: random.Random) -> World:
    """Of any kind."""
    return World(
        is_predicted=rng.random() < 0.7,
        has_clock=rng.random() < 0.6,
        noise=rng.choice((0.0, 0.1, 0.5)),
        has_guarantees=rng.random() < 0.5,
        moves=rng.random() < 0.4,
        num_tenants=rng.choice((1, 1, 3)),
        has_faults=rng.random() < 0.8,
        offers_per_turn=rng.choice((0.1, 0.35, 0.7)),
    )


class Traffic:
    """Offers random work to a scheduler and takes one step after the other; every turn is checked by the model."""

    def __init__(
        self,
        seed: int,
        num_in_flight: int,
        config: SchedulerConfig,
        world: World,
        num_blocks: int = 24,
        coefficients: LatencyCoefficients | None = None,
    ) -> None:
        """
        Args:
            num_in_flight: steps that are not updated when the next one is scheduled, and that one.
            coefficients: what steps take, and what the scheduler takes them for.
        """
        self._rng = random.Random(seed)
        self._num_in_flight = num_in_flight
        self._world = world
        coefficients = make_coefficients() if coefficients is None else coefficients
        self._truth = LatencyModel(coefficients)
        classes = small_classes(queue_cap_tokens=75, has_guarantees=world.has_guarantees)
        self.model = SchedulerModel(
            config,
            classes,
            num_blocks,
            num_blocks * config.block_size + 1,
            coefficients if world.is_predicted else None,
        )
        if world.has_clock:
            self.model.duration_of = self._duration_of
            self.model.is_exact = not world.noise
        self._system_prompts = [[self._rng.randint(1, ALPHABET) for _ in range(length)] for length in (6, 17, 29)]
        self._digest = hashlib.sha256()
        self._kinds: set[VerdictKind] = set()
        self._refusals: set[RefusalReason] = set()
        self._reasons: set[str] = set()
        self._num_turns = 0
        self._num_head_preemptions = 0

    def run(self, num_turns: int) -> None:
        for _ in range(num_turns):
            self.turn()

    def turn(self) -> None:
        """Whatever happens between two steps, and a step."""
        rng, model = self._rng, self.model
        if rng.random() < self._world.offers_per_turn:
            verdict = self._offer()
            self._kinds.add(verdict.kind)
            self._refusals |= {verdict.reason} if verdict.reason is not None else set()
        if self._world.has_faults:
            if model.live and rng.random() < 0.06:
                model.abort(rng.sample(sorted(model.live), 1))
            if model.live and rng.random() < 0.05:
                model.failing.add(rng.choice(sorted(model.live)))
        if self._world.moves and rng.random() < 0.05:
            model.move(self._draw_link())
        while len(model.steps) >= self._num_in_flight:
            model.update()
        output = model.schedule()
        self._digest.update(repr(output).encode())
        self._reasons.update(output.reasons)
        started = {a.request_id for a in output.admissions}
        self._num_head_preemptions += bool(output.preempted and started)
        if rng.random() < 0.5:
            for step in model.steps:
                model.execute(step)
        model.check()
        self._num_turns += 1
        if not self._world.has_clock:
            model.now_s += rng.choice((0.0, 0.1, 0.5))
        elif not output.scheduled:
            model.now_s += 0.05

    def end(self) -> TrafficRun:
        """Nothing else comes: what is there is finished, and who was to come back does so."""
        self.model.drain()
        self.model.retry()
        return TrafficRun(
            self.model,
            self._digest.hexdigest(),
            self._num_turns,
            self._num_head_preemptions,
            frozenset(self._kinds),
            frozenset(self._refusals),
            frozenset(self._reasons),
        )

    def _duration_of(self, output: SchedulerOutput) -> float:
        if not output.scheduled:
            return 0.0
        exact_s = self._truth.mean_s(StepFeatures.of(output.scheduled), self.model.link)
        return exact_s * self._rng.lognormvariate(0.0, self._world.noise) if self._world.noise else exact_s

    def _offer(self) -> Verdict:
        rng = self._rng
        prompt = rng.choice(self._system_prompts) + [rng.randint(1, ALPHABET) for _ in range(rng.randint(0, 12))]
        name = rng.choice(("high", "middle", "middle", "low", "low", "low"))
        ttft_s, tpot_s = rng.choice((None, None, 0.2)), rng.choice((None, None, None, 0.06, 0.3))
        slo = SLO(name, name, ttft_s, tpot_s, rng.choice((None, None, None, 6.0)), rng.random() < 0.5)
        return self.model.add(
            [prompt, prompt[:5]] if rng.random() < 0.1 else [prompt],
            rng.choice((1, 1, 1, 2, 4)),
            rng.choice((0, 1, 2, 8, 20, 40)),
            slo,
            rng.choice(("", "", "", "salt")),
            rng.random() < 0.9,
            f"tenant{rng.randrange(self._world.num_tenants)}",
        )

    def _draw_link(self) -> LinkSnapshot:
        """Another number of streamed layers, and with it another border; classes close and open."""
        rng = self._rng
        if rng.random() < 0.3:
            return NO_LINK
        num_streamed = rng.randint(0, NUM_LAYERS)
        floors = tuple(
            ClassFloor(
                c.name,
                c.when_infeasible == "queue" or rng.random() < 0.7,
                rng.random() < 0.2,
                rng.choice((0.1, 1.0)),
                rng.choice((0.02, 0.09)),
            )
            for c in self.model.classes
        )
        return LinkSnapshot(
            h2d=LinkDirection(1e9, 0.8e9),
            num_resident_layers=NUM_LAYERS - num_streamed,
            num_streamed_layers=num_streamed,
            num_blocks=rng.choice((None, rng.randint(1, self.model.num_blocks))),
            classes=floors if rng.random() < 0.7 else (),
        )


CHAOS = World(is_predicted=True, has_clock=False)
"""Time has nothing to do with steps."""


def run_traffic(
    seed: int,
    num_turns: int,
    num_in_flight: int,
    config: SchedulerConfig,
    num_blocks: int = 24,
    world: World = CHAOS,
) -> TrafficRun:
    """So many turns, then to the end."""
    traffic = Traffic(seed, num_in_flight, config, world, num_blocks)
    traffic.run(num_turns)
    return traffic.end()
