"""What holds under every policy: equals in any order, shares of step time, and no request for ever in the way."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Sequence
from typing import get_args

import pytest

from scheduler.class_shares import SHARE_WINDOW
from scheduler.config import PolicyName, SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.output import SchedulerOutput, VerdictKind
from scheduler.request import RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLOClass, SLOClasses
from scheduler.step_features import StepFeatures
from tests.latency_builders import make_coefficients
from tests.scheduler_builders import make_group, make_spec, result_of

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
CLASS_NAMES = ("realtime", "interactive", "standard", "batch")
ENDLESS_CAPS = tuple(dataclasses.replace(c, queue_cap_tokens=10**9) for c in DEFAULT_CLASSES)


class Clocked:
    """A scheduler whose steps take exactly as long as it predicts."""

    def __init__(
        self,
        policy: PolicyName,
        classes: Sequence[SLOClass] = ENDLESS_CAPS,
        *,
        num_in_flight: int = 1,
        num_blocks: int = 60,
        **options: int,
    ) -> None:
        values = {"max_num_batched_tokens": 32, "max_num_seqs": 6, "block_size": 4, "max_queued_requests": 10**6}
        config = SchedulerConfig(**(values | options), scheduler_policy=policy, admission="caps")  # type: ignore[arg-type]
        self._truth, model = (LatencyModel(make_coefficients()) for _ in range(2))
        self.scheduler = Scheduler(config, SLOClasses(tuple(classes)), num_blocks, 4 * num_blocks, model)
        self.now_s = 0.0
        self.class_of: dict[str, str] = {}
        """Of those that are live."""
        self.seconds_of = dict.fromkeys(CLASS_NAMES, 0.0)
        """Step time so far, split by tokens."""
        self._num_in_flight = num_in_flight
        self._steps: deque[tuple[SchedulerOutput, float]] = deque()

    def add(self, *group: RequestSpec) -> None:
        verdict = self.scheduler.add(group, self.now_s)
        assert verdict.kind is not VerdictKind.REFUSE
        self.class_of.update({spec.request_id: verdict.granted for spec in group})

    def abort(self, names: Sequence[str]) -> None:
        for one in self.scheduler.abort(names, self.now_s):
            del self.class_of[one.request_id]

    def step(self) -> SchedulerOutput:
        """Schedule one; with as many in flight as there may be, the oldest is done then."""
        output = self.scheduler.schedule(self.now_s, NO_LINK)
        for expiry in output.expired:
            self.class_of = {n: c for n, c in self.class_of.items() if n.split("/")[0] != expiry.group_id}
        took_s = self._truth.mean_s(StepFeatures.of(output.scheduled), NO_LINK) if output.scheduled else 0.0
        for part in output.scheduled:
            self.seconds_of[self.class_of[part.request_id]] += took_s * part.num_tokens / output.num_tokens
        start_s = max(self.now_s, self._steps[-1][1]) if self._steps else self.now_s
        self._steps.append((output, start_s + took_s))
        while len(self._steps) >= self._num_in_flight:
            done, end_s = self._steps.popleft()
            self.now_s = max(self.now_s, end_s)
            for one in self.scheduler.update(done, result_of(done), self.now_s):
                del self.class_of[one.request_id]
        self.scheduler.check()
        return output


def burst(rng: random.Random, index: int, now_s: float) -> list[tuple[RequestSpec, ...]]:
    """Groups that arrive at one moment; many of them are equal but for their names."""
    groups = []
    for number in range(rng.randint(0, 4)):
        name = rng.choice(CLASS_NAMES)
        options = {"slo_class": name, "arrival_s": now_s, "tenant": rng.choice("xyz")}
        length, most = rng.choice((8, 8, 30, 50)), rng.choice((1, 4, 12))
        groups.append(make_group(f"g{index}.{number}", rng.choice((1, 1, 2)), length, most, **options))
    return groups


@pytest.mark.parametrize("num_in_flight", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_in_which_requests_are_added_changes_no_step(policy: PolicyName, num_in_flight: int) -> None:
    """Invariant 21. Of the groups between two steps, and of the classes in the table."""
    num_preemptions = 0
    for seed in range(3):
        rng = random.Random(seed)
        plain = Clocked(policy, num_in_flight=num_in_flight, num_blocks=30)
        shuffled = Clocked(policy, ENDLESS_CAPS[::-1], num_in_flight=num_in_flight, num_blocks=30)
        for index in range(150):
            if rng.random() < 0.3:
                groups = burst(rng, index, plain.now_s)
                for group in groups:
                    plain.add(*group)
                for group in rng.sample(groups, len(groups)):
                    shuffled.add(*group)
            gone = [name for name in plain.class_of if rng.random() < 0.01]
            plain.abort(gone)
            shuffled.abort(gone[::-1])
            assert plain.step() == shuffled.step()
            if not plain.class_of:
                plain.now_s = shuffled.now_s = plain.now_s + 0.1
        assert plain.scheduler.stats() == shuffled.scheduler.stats()
        num_preemptions += plain.scheduler.stats().num_preemptions
    assert num_preemptions > 5


MAX_WAIT_S = 20.0
WINDOW_S = SHARE_WINDOW * MAX_WAIT_S
BATCH_SHARE = 0.1


@dataclasses.dataclass
class Drawdown:
    """By how much something fell short of a rate, in the worst window that ends now."""

    peak: float = 0.0
    worst: float = 0.0

    def observe(self, ahead: float) -> None:
        self.peak = max(self.peak, ahead)
        self.worst = max(self.worst, self.peak - ahead)


def flood(policy: PolicyName, max_tokens: int) -> tuple[Drawdown, float, int]:
    """Half a minute in which the higher classes ask for more than there is, and batch always waits.

    Returns:
        By how much batch's step time fell short of its share; the longest step; how many of batch were served.
    """
    classes = [dataclasses.replace(c, max_wait_s=MAX_WAIT_S) for c in ENDLESS_CAPS]
    clocked, shortfall, longest_s = Clocked(policy, classes, num_blocks=400), Drawdown(), 0.0
    rng, count = random.Random(3), 0
    batch: set[str] = set()
    while clocked.now_s < 1.5 * MAX_WAIT_S:
        live = list(clocked.class_of.values())
        for name, missing in (("batch", 8 - live.count("batch")), ("", 12 - len(live) + live.count("batch"))):
            for _ in range(missing):
                count += 1
                slo_class = name or rng.choice(CLASS_NAMES[:3])
                length = rng.choice((8, 60))
                clocked.add(make_spec(f"r{count}", length, max_tokens, slo_class=slo_class, arrival_s=clocked.now_s))
        before_s = clocked.now_s
        output = clocked.step()
        batch.update(a.request_id for a in output.admissions if clocked.class_of.get(a.request_id) == "batch")
        longest_s = max(longest_s, clocked.now_s - before_s)
        shortfall.observe(clocked.seconds_of["batch"] - BATCH_SHARE * clocked.now_s)
    return shortfall, longest_s, len(batch)


@pytest.mark.parametrize("max_tokens", [1, 40])
def test_a_class_gets_its_share_whatever_the_higher_ones_ask_for(max_tokens: int) -> None:
    """Invariant 15, with the bound of `ClassShares`: of prompts alone, and beside streams whose tokens are due soon."""
    shortfall, longest_s, num_served = flood("deadline", max_tokens)
    assert shortfall.worst <= BATCH_SHARE * (WINDOW_S + longest_s) + (len(CLASS_NAMES) - 1) * longest_s
    assert num_served > 5


@pytest.mark.parametrize("policy", ["priority", "edf"])
def test_without_shares_the_lowest_class_starves_under_such_a_load(policy: PolicyName) -> None:
    assert flood(policy, 1)[2] == 0
