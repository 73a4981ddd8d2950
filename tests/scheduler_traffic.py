"""Seeded traffic for a small scheduler: bursts, shared prompts, groups, aborts, errors, waiting."""

from __future__ import annotations

import dataclasses
import hashlib
import random

from scheduler.config import SchedulerConfig
from scheduler.output import VerdictKind
from scheduler.slo import SLO
from tests.device_model import ALPHABET
from tests.scheduler_model import SchedulerModel, small_classes


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


def traffic_config(policy: str = "priority", caching: bool = True) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=24,
        max_num_seqs=6,
        block_size=4,
        max_queued_requests=24,
        enable_prefix_caching=caching,
        scheduler_policy="fcfs" if policy == "fcfs" else "priority",
        max_preemptions=2,
    )


def run_traffic(
    seed: int, num_turns: int, num_in_flight: int, config: SchedulerConfig, num_blocks: int = 24
) -> TrafficRun:
    """Offer random work for `num_turns` turns, with up to `num_in_flight` steps not updated, then drain.

    Every turn is checked by the model.
    """
    rng = random.Random(seed)
    model = SchedulerModel(config, small_classes(queue_cap_tokens=75), num_blocks, num_blocks * config.block_size + 1)
    system_prompts = [[rng.randint(1, ALPHABET) for _ in range(length)] for length in (6, 17, 29)]
    digest = hashlib.sha256()
    num_head_preemptions = 0
    kinds: set[VerdictKind] = set()
    for _ in range(num_turns):
        if rng.random() < 0.35:
            kinds.add(_offer(rng, model, system_prompts))
        if model.live and rng.random() < 0.06:
            model.abort(rng.sample(sorted(model.live), 1))
        if model.live and rng.random() < 0.02:
            model.failing.add(rng.choice(sorted(model.live)))
        while len(model.steps) >= num_in_flight:
            model.update()
        output = model.schedule()
        digest.update(repr(output).encode())
        started = {a.request_id for a in output.admissions}
        num_head_preemptions += bool(output.preempted and started)
        if rng.random() < 0.5:
            for step in model.steps:
                model.execute(step)
        model.check()
        model.now_s += rng.choice((0.0, 0.1, 0.5))
    model.drain()
    model.retry()
    return TrafficRun(model, digest.hexdigest(), num_turns, num_head_preemptions, frozenset(kinds))


def _offer(rng: random.Random, model: SchedulerModel, system_prompts: list[list[int]]) -> VerdictKind:
    prompt = rng.choice(system_prompts) + [rng.randint(1, ALPHABET) for _ in range(rng.randint(0, 12))]
    name = rng.choice(("high", "middle", "middle", "low", "low", "low"))
    slo = SLO(name, name, rng.choice((None, None, 0.2)), None, rng.choice((None, None, None, 6.0)), rng.random() < 0.5)
    verdict = model.add(
        [prompt, prompt[:5]] if rng.random() < 0.1 else [prompt],
        rng.choice((1, 1, 1, 2, 4)),
        rng.choice((0, 1, 2, 8, 20, 40)),
        slo,
        rng.choice(("", "", "", "salt")),
        rng.random() < 0.9,
    )
    return verdict.kind
