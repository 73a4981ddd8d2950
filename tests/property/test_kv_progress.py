"""Every admitted request ends within a bounded number of steps, whatever copies do and whoever waits for them.

The bound is `TierRig.most_steps`; `TierRig.step` also fails where steps go by without work, copy or time.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, TierConfig, TransferKind
from scheduler.link import LinkDirection, LinkSnapshot
from tests.latency_builders import make_coefficients
from tests.scheduler_model import small_classes
from tests.tier_rig import TierRig
from tests.tier_weather import Weather

CLASS_NAMES = ("high", "middle", "low")
BLOCK_SIZE = 2
NUM_OUTPUT_TOKENS = 4
SLOW = LinkSnapshot(h2d=LinkDirection(2e3, 1e3), d2h=LinkDirection(2e3, 1e3), disk_read_bytes_per_s=1e3)
"""A block of 100 bytes takes 50 ms, more than a step."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A pool, its tiers, what is asked of them, and how copies fare: for good."""

    num_blocks: int
    num_slots: int
    num_disk_blocks: int
    prompts: tuple[tuple[int, int, str], ...]
    """Of each request: which prompt, tokens of it in blocks, class."""
    longest_s: float = 0.0
    failing: tuple[TransferKind, ...] = ()
    share: float = 1.0
    outcome: BlockOutcome | None = None
    """Of what fails; None: anything."""
    max_num_seqs: int = 4
    policy: str = "deadline"
    is_predicted: bool = False
    seed: int = 0


def make_rig(case: Case, num_blocks: int | None = None) -> TierRig:
    config = SchedulerConfig(
        max_num_batched_tokens=16,
        max_num_seqs=case.max_num_seqs,
        block_size=BLOCK_SIZE,
        scheduler_policy=case.policy,
        max_preemptions=2,
    )
    return TierRig(
        config,
        small_classes(queue_cap_tokens=10_000, max_wait_s=1e6),
        case.num_blocks if num_blocks is None else num_blocks,
        TierConfig(case.num_slots, case.num_disk_blocks, 100),
        weather=Weather(random.Random(case.seed)),
        coefficients=make_coefficients() if case.is_predicted else None,
    )


def prompt_of(which: int, num_blocks: int) -> list[int]:
    """Different from its first block on."""
    return [1 + which] * (num_blocks * BLOCK_SIZE + 1)


def warm(rig: TierRig, case: Case) -> None:
    """Each prompt was served before, so that cheaper tiers hold what they have room for, the device nothing."""
    rig.add([9] * (BLOCK_SIZE + 1), 1)  # gets block 0, which stays
    rig.drain(rig.most_steps())
    for which, num_blocks, _ in case.prompts:
        rig.add(prompt_of(which, num_blocks), 1)
        rig.drain(rig.most_steps())
        rig.settle()
    rig.link = LinkSnapshot(num_blocks=1)  # the border comes down: what is cached on the device is forgotten
    rig.step()
    rig.link = LinkSnapshot()
    rig.step()


def run(case: Case) -> tuple[TierRig, int]:
    """All at once, after they were all served before; the steps that it took.

    Beside the bound from the outside there is one from what happened: a step computes a token, or begins or ends a
    copy, or finds that there is nothing to begin after that.
    """
    rig = make_rig(case)
    warm(rig, case)
    rig.weather.longest_s = case.longest_s
    rig.weather.failing = dict.fromkeys(case.failing, case.share)
    if case.outcome is not None:
        rig.weather.failures = dict.fromkeys(TransferKind, (case.outcome,))
    if case.longest_s:
        rig.link = SLOW
    for which, num_blocks, name in case.prompts:
        rig.add(prompt_of(which, num_blocks), NUM_OUTPUT_TOKENS, name)
    num_tokens = sum(choice.spec.num_kv_tokens for choice in rig.live.values())
    before, num_copies = rig.scheduler.stats(), sum(rig.num_moved.values())
    num_steps = rig.drain(rig.most_steps())
    after = rig.scheduler.stats()
    num_discarded = after.recomputed_tokens - before.recomputed_tokens + after.num_preemptions - before.num_preemptions
    num_copies = sum(rig.num_moved.values()) - num_copies + len(rig.content.flights)
    assert num_steps <= num_tokens + num_discarded + rig.num_restarts + 3 * num_copies + 1
    return rig, num_steps


def cases() -> st.SearchStrategy[Case]:
    def of(num_blocks: int) -> st.SearchStrategy[Case]:
        longest = num_blocks - 3
        prompts = st.tuples(st.integers(0, 2), st.integers(1, max(1, longest)), st.sampled_from(CLASS_NAMES))
        return st.builds(
            Case,
            num_blocks=st.just(num_blocks),
            num_slots=st.integers(1, 2 * num_blocks),
            num_disk_blocks=st.sampled_from([0, 2, 2 * num_blocks]),
            prompts=st.lists(prompts, min_size=1, max_size=6).map(tuple),
            longest_s=st.sampled_from([0.0, 0.1, 5.0]),
            failing=st.lists(st.sampled_from(TransferKind), unique=True, max_size=3).map(tuple),
            share=st.sampled_from([0.3, 1.0]),
            outcome=st.sampled_from([None, BlockOutcome.FAILED]),
            max_num_seqs=st.integers(1, 4),
            policy=st.sampled_from(["fcfs", "priority", "deadline"]),
            is_predicted=st.booleans(),
            seed=st.integers(0, 99),
        )

    return st.integers(4, 12).flatmap(of)


TWO_PARKED_AND_A_HEAD = Case(8, 40, 0, ((0, 5, "low"), (1, 5, "low"), (2, 5, "high")), longest_s=5.0)
"""As in vllm#45388 and #45406: two loads of five blocks in a pool of eight, and a third request in front."""
HEAD_BEHIND_PARKED = Case(8, 40, 0, ((0, 3, "middle"), (1, 3, "middle"), (2, 5, "middle")), longest_s=5.0)
"""As in vllm#57841: parked loads fill the pool, and the head of the queue has no room."""


@given(case=cases())
@example(TWO_PARKED_AND_A_HEAD)
@example(HEAD_BEHIND_PARKED)
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_request_ends_whatever_copies_do(case):
    rig, _ = run(case)
    assert set(rig.outcomes.values()) <= {"stop", "length"}
    rig.calm()
    rig.now_s += 1000.0
    rig.settle()


@pytest.mark.parametrize("case", [TWO_PARKED_AND_A_HEAD, HEAD_BEHIND_PARKED], ids=["two and a head", "head behind"])
@pytest.mark.parametrize("max_num_seqs", [2, 4])
def test_parked_loads_do_not_hold_up_the_head(case, max_num_seqs):
    """With loads that take seconds each, it takes a few times the steps that it takes with none."""
    rig, num_steps = run(dataclasses.replace(case, max_num_seqs=max_num_seqs))
    assert sum(n for (kind, _), n in rig.num_moved.items() if kind is TransferKind.LOAD), "nothing was loaded"
    _, num_alone = run(dataclasses.replace(case, num_slots=0, max_num_seqs=max_num_seqs))
    num_copies = 2 * sum(rig.num_moved.values())
    assert num_steps <= 2 * num_alone + num_copies


FATES = [
    (TransferKind.LOAD, BlockOutcome.FAILED),
    (TransferKind.LOAD, BlockOutcome.CORRUPT),
    (TransferKind.READ, BlockOutcome.FAILED),
    (TransferKind.READ, BlockOutcome.CORRUPT),
    (TransferKind.READ, BlockOutcome.ABSENT),
    (TransferKind.STORE, BlockOutcome.FAILED),
    (TransferKind.WRITE, BlockOutcome.FAILED),
    (TransferKind.WRITE, BlockOutcome.FULL),
    (TransferKind.DELETE, BlockOutcome.FAILED),
]


@pytest.mark.parametrize("num_slots", [1, 3, 40])
@pytest.mark.parametrize(("kind", "outcome"), FATES)
def test_no_livelock_where_no_copy_of_a_kind_ever_arrives(kind, outcome, num_slots):
    """Prompts are on host and disk; whoever waits for them in vain computes them."""
    prompts = tuple((which, 4, CLASS_NAMES[which % 3]) for which in (0, 1, 2, 0, 1, 2))
    rig, num_steps = run(Case(8, num_slots, 40, prompts, failing=(kind,), outcome=outcome))
    assert set(rig.outcomes.values()) <= {"stop", "length"}
    assert num_steps <= 400


@pytest.mark.parametrize("num_disk_blocks", [0, 40])
def test_one_slot_is_enough_to_go_on(num_disk_blocks):
    prompts = tuple((which, 5, "middle") for which in (0, 1, 2, 0, 1, 2))
    rig, _ = run(Case(8, 1, num_disk_blocks, prompts, longest_s=0.5))
    assert set(rig.outcomes.values()) <= {"stop", "length"}


def test_a_request_that_waits_for_a_disk_that_hangs_takes_its_turn_without():
    """It has no block of its own yet, waits for as long as a slow disk would be worth, and starts."""
    case = Case(8, 8, 40, ((0, 5, "middle"),))
    rig = make_rig(case)
    warm(rig, case)
    rig = rig.restarted()
    rig.weather.longest_s = 1e9
    rig.add(prompt_of(0, 5), 2, "middle")
    rig.drain(rig.most_steps())
    assert rig.now_s < 10.0
    reads = [f.transfer for f in rig.content.flights.values() if f.transfer.kind is TransferKind.READ]
    assert reads and rig.admissions["g0/0"].num_disk_cached_tokens == 0
    rig.land()
    rig.settle()
