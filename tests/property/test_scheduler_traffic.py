"""Long seeded runs of the scheduler against its books, and equal decisions in different processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.config import SchedulerConfig
from scheduler.output import VerdictKind
from tests.scheduler_traffic import TrafficRun, run_traffic, traffic_config

ROOT = Path(__file__).resolve().parents[2]


def offered(run: TrafficRun) -> dict[str, int]:
    """How many choices had which outcome."""
    counts: dict[str, int] = {}
    for outcome in run.model.outcomes.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


@pytest.mark.parametrize("num_in_flight", [1, 2])
@pytest.mark.parametrize(("policy", "caching"), [("priority", True), ("priority", False), ("fcfs", True)])
def test_traffic_keeps_every_promise(policy: str, caching: bool, num_in_flight: int) -> None:
    run = run_traffic(7, 500, num_in_flight, traffic_config(policy, caching))
    stats = run.model.scheduler.stats()
    assert set(offered(run)) >= {"stop", "length", "abort", "error", "refused"}
    assert stats.num_preemptions > 10 and stats.recomputed_tokens > 0 and run.model.num_copies > 10
    assert (stats.prefix_cache_hits > 0) == caching
    assert (run.num_head_preemptions > 0) == (policy == "priority")
    assert stats.discarded_tokens > 0
    assert {VerdictKind.ADMIT, VerdictKind.QUEUE, VerdictKind.REFUSE} <= run.kinds


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_schedulers_of_every_shape_keep_every_promise(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        rng = random.Random(seed)
        max_num_seqs = rng.randint(1, 8)
        config = SchedulerConfig(
            max_num_batched_tokens=max_num_seqs + rng.choice((0, 1, 5, 20, 60)),
            max_num_seqs=max_num_seqs,
            block_size=rng.choice((1, 2, 4, 8)),
            max_queued_requests=rng.choice((2, 8, 24)),
            enable_prefix_caching=rng.random() < 0.7,
            scheduler_policy=rng.choice(("priority", "priority", "fcfs")),
            max_preemptions=rng.randint(1, 3),
            max_victims_per_step=rng.choice((1, 2, 16)),
        )
        run_traffic(seed, 200, rng.choice((1, 2)), config, num_blocks=rng.randint(4, 40))


def test_a_small_pool_serves_everything_that_fits() -> None:
    for num_in_flight in (1, 2):
        run = run_traffic(3, 250, num_in_flight, traffic_config(), num_blocks=5)
        assert offered(run)["length"] > 5


def test_the_tokens_of_a_prompt_are_counted_once() -> None:
    """Without aborts and errors: computed, cached and shared prompt tokens add up to what started."""
    run = run_traffic(11, 300, 1, traffic_config())
    stats = run.model.scheduler.stats()
    assert stats.prompt_tokens_cached == stats.prefix_cache_hits <= stats.prefix_cache_queries
    started = run.model.num_started_prompt_tokens
    total = stats.prompt_tokens_computed + stats.prompt_tokens_cached + stats.prompt_tokens_shared
    assert 0.8 * started < total <= started


def test_the_same_calls_give_the_same_steps_in_any_process() -> None:
    code = (
        "from tests.scheduler_traffic import run_traffic, traffic_config as c;print(run_traffic(5, 120, 2, c()).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
