"""Tenants of a class, through the whole scheduler: a flood of one delays the others by little."""

from __future__ import annotations

import pytest

from scheduler.scheduler import Scheduler
from tests.scheduler_builders import make_scheduler, make_spec, step, tokens_of

FAIR = ("priority", "edf", "deadline")


def flooded(policy: str, num_requests: int) -> Scheduler:
    """Two seats, and one tenant that came first with all it has: prompts of 8 tokens, 4 tokens of output each."""
    scheduler = make_scheduler(64, scheduler_policy=policy, max_num_seqs=2)
    for i in range(num_requests):
        scheduler.add((make_spec(f"flood{i:02d}", 8, 4, tenant="flood", arrival_s=i / 100),), 1.0)
    return scheduler


def starts(scheduler: Scheduler, num_steps: int) -> list[str]:
    """Requests in the order in which they start."""
    started: dict[str, None] = {}
    for _ in range(num_steps):
        started.update(dict.fromkeys(tokens_of(step(scheduler)[0])))
    return list(started)


@pytest.mark.parametrize("policy", FAIR)
def test_who_comes_after_a_flood_gets_the_next_seat(policy: str) -> None:
    scheduler = flooded(policy, 10)
    step(scheduler)
    scheduler.add((make_spec("late", 8, 4, tenant="other", arrival_s=5.0),), 5.0)
    assert starts(scheduler, 5)[:3] == ["flood00", "flood01", "late"]


def test_fcfs_knows_no_tenants() -> None:
    scheduler = flooded("fcfs", 10)
    step(scheduler)
    scheduler.add((make_spec("late", 8, 4, tenant="other", arrival_s=5.0),), 5.0)
    assert starts(scheduler, 40)[-1] == "late"


@pytest.mark.parametrize("policy", FAIR)
def test_tenants_are_equal_inside_a_class_only(policy: str) -> None:
    """A higher class, and with `edf` an earlier deadline, goes first whatever its tenant had."""
    scheduler = flooded(policy, 5)
    step(scheduler)
    scheduler.add((make_spec("late", 8, 4, tenant="other", arrival_s=5.0),), 5.0)
    scheduler.add((make_spec("urgent", 8, 4, tenant="flood", slo_class="realtime", arrival_s=2.0),), 5.0)
    order = starts(scheduler, 30)
    assert order.index("urgent") < order.index("late") < order.index("flood03")


@pytest.mark.parametrize("policy", FAIR)
def test_tenants_with_work_get_equal_service(policy: str) -> None:
    """One sends long prompts for little output, the other the reverse: prompt + 2 x output is what counts."""
    scheduler = make_scheduler(200, scheduler_policy=policy, max_num_seqs=2, max_queued_requests=200)
    shapes = {"long": (20, 2), "short": (3, 8)}
    for i in range(40):
        for tenant, (num_prompt_tokens, max_tokens) in shapes.items():
            spec = make_spec(f"{tenant}{i}", num_prompt_tokens, max_tokens, tenant=tenant, arrival_s=i / 100)
            scheduler.add((spec,), 1.0)
    served = dict.fromkeys(shapes, 0)
    num_left = dict.fromkeys(shapes, 40)
    while min(num_left.values()) > 4:
        for request in step(scheduler)[1]:
            tenant = request.request_id.rstrip("0123456789")
            num_prompt_tokens, max_tokens = shapes[tenant]
            served[tenant] += num_prompt_tokens + 2 * max_tokens
            num_left[tenant] -= 1
    # The counters differ by one prompt and what runs, and what runs is not in `served` yet.
    assert abs(served["long"] - served["short"]) <= 20 + 2 * (20 + 2 * 8)
    assert min(served.values()) > 300
