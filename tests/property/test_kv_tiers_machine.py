"""The whole scheduler with tiers under random requests, copies in any order with any end, aborts, borders and restarts.

`TierRig` checks what comes of every call: contents, leases, gates, owners, counts (see its module).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import TierConfig, TransferKind
from scheduler.link import LinkSnapshot
from tests.device_model import ALPHABET
from tests.latency_builders import make_coefficients
from tests.scheduler_model import small_classes
from tests.tier_rig import TierRig
from tests.tier_traffic import CLASS_NAMES, LINKS, TierTraffic
from tests.tier_weather import ANY_FAILURE, FAILURES, Weather

ROOT = Path(__file__).parents[2]


class KVTiersMachine(RuleBasedStateMachine):
    """Every rule is a call or an event; some take several steps."""

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(3, 12),
        max_num_seqs=st.integers(1, 4),
        spare_tokens=st.integers(0, 12),
        num_host_slots=st.integers(1, 8),
        num_disk_blocks=st.sampled_from([0, 1, 2, 4, 8]),
        num_load_parts=st.integers(1, 3),
        policy=st.sampled_from(["fcfs", "priority", "deadline", "deadline"]),
        is_predicted=st.booleans(),
        max_preemptions=st.integers(1, 3),
        preemption_mode=st.sampled_from(["auto", "swap", "recompute"]),
        seed=st.integers(0, 2**16),
    )
    def make(
        self,
        block_size,
        num_blocks,
        max_num_seqs,
        spare_tokens,
        num_host_slots,
        num_disk_blocks,
        num_load_parts,
        policy,
        is_predicted,
        max_preemptions,
        preemption_mode,
        seed,
    ):
        config = SchedulerConfig(
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            scheduler_policy=policy,
            max_preemptions=max_preemptions,
            preemption_mode=preemption_mode,
        )
        self.rig = TierRig(
            config,
            small_classes(queue_cap_tokens=400, max_wait_s=200.0),
            num_blocks,
            TierConfig(num_host_slots, num_disk_blocks, 100, num_load_parts),
            weather=Weather(random.Random(seed)),
            coefficients=make_coefficients() if is_predicted else None,
            has_twin=seed % 4 == 0,
        )

    # Requests.

    @rule(
        data=st.data(),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        name=st.sampled_from(CLASS_NAMES),
        salt=st.sampled_from(["", "", "", "salt"]),
        reads=st.sampled_from([True, True, True, False]),
        retention=st.sampled_from([1, 1, 2]),
    )
    def add(self, data, n, name, salt, reads, retention):
        """One of few prompts, so that prefixes are shared."""
        capacity = self.rig.num_blocks * self.rig.config.block_size
        length = data.draw(st.integers(1, max(1, capacity * 3 // 4)))
        prompt = [1 + i // 3 % ALPHABET for i in range(length)]
        prompt += data.draw(st.lists(st.integers(1, 2), max_size=2))
        max_tokens = data.draw(st.integers(0, max(1, capacity - len(prompt))))
        self.rig.add(prompt, max_tokens, name, n=n, salt=salt, reads=reads, retention=retention)

    @precondition(lambda self: self.rig.known_chains)
    @rule(data=st.data(), name=st.sampled_from(CLASS_NAMES), max_tokens=st.integers(0, 4))
    def go_on(self, data, name, max_tokens):
        """The next turn of a conversation, whose blocks are wherever they are."""
        index = data.draw(st.integers(0, len(self.rig.known_chains) - 1))
        self.rig.add_chain(self.rig.truth.extend(self.rig.known_chains[index], [1, 2]), max_tokens, name)

    @precondition(lambda self: self.rig.live)
    @rule(data=st.data(), num=st.integers(1, 2))
    def abort(self, data, num):
        names = st.sampled_from([*sorted(self.rig.live), "unknown"])
        self.rig.abort(data.draw(st.lists(names, min_size=num, max_size=num)))
        self.rig.abort(sorted(self.rig.outcomes)[:1])

    @precondition(lambda self: self.rig.names_in_flight())
    @rule(data=st.data(), lands=st.booleans())
    def abort_what_is_copied(self, data, lands):
        """Its load or store is under way, or over and not yet told."""
        if lands:
            self.rig.land()
        self.rig.abort([data.draw(st.sampled_from(self.rig.names_in_flight()))])

    @precondition(lambda self: self.rig.live)
    @rule(data=st.data())
    def fail_a_step(self, data):
        self.rig.failing |= set(data.draw(st.lists(st.sampled_from(sorted(self.rig.live)), max_size=2)))

    # Steps.

    @rule(num=st.integers(1, 8))
    def step(self, num):
        for _ in range(num):
            self.rig.step()

    @rule(num=st.integers(1, 8))
    def step_with_one_in_flight(self, num):
        for _ in range(num):
            while len(self.rig.steps) >= 2:
                self.rig.update()
            self.rig.schedule()
            self.rig.check()

    @precondition(lambda self: len(self.rig.steps) < 2)
    @rule(executes=st.booleans())
    def schedule(self, executes):
        self.rig.schedule()
        if executes:
            for step in self.rig.steps:
                self.rig.execute(step)

    @precondition(lambda self: self.rig.steps)
    @rule()
    def update(self):
        self.rig.update()

    # Everything else.

    @rule(seconds=st.sampled_from([0.05, 1.0, 31.0]))
    def wait(self, seconds):
        self.rig.now_s += seconds

    @rule(longest_s=st.sampled_from([0.0, 0.05, 0.5, 5.0]))
    def copies_take(self, longest_s):
        self.rig.weather.longest_s = longest_s

    @rule(
        kinds=st.sets(st.sampled_from(TransferKind)),
        share=st.sampled_from([0.3, 1.0]),
        failures=st.sampled_from([FAILURES, FAILURES, ANY_FAILURE]),
    )
    def copies_fail(self, kinds, share, failures):
        self.rig.weather.failing = dict.fromkeys(kinds, share)
        self.rig.weather.failures = dict(failures)

    @rule(kind=st.sampled_from(TransferKind), num=st.integers(1, 12))
    def copies_fail_for_some_steps(self, kind, num):
        """Long enough a burst turns the tier off."""
        before, self.rig.weather.failing = self.rig.weather.failing, {kind: 1.0}
        for _ in range(num):
            self.rig.step()
        self.rig.weather.failing = before

    @precondition(lambda self: self.rig.content.slots_at_rest())
    @rule(data=st.data())
    def flip_a_byte_in_a_slot(self, data):
        self.rig.content.flip(data.draw(st.sampled_from(self.rig.content.slots_at_rest())))

    @precondition(lambda self: self.rig.disk)
    @rule(data=st.data(), is_gone=st.booleans())
    def spoil_a_file(self, data, is_gone):
        block_hash = data.draw(st.sampled_from(sorted(self.rig.disk)))
        if is_gone:
            del self.rig.disk[block_hash]
        else:
            self.rig.disk[block_hash] = None

    @rule(room=st.sampled_from([None, 0, 1, 3]))
    def others_fill_the_disk(self, room):
        self.rig.content.disk_room = room

    @rule(
        num_blocks=st.one_of(st.none(), st.integers(1, 12)),
        h2d=st.sampled_from(LINKS),
        d2h=st.sampled_from(LINKS),
        num_streamed=st.integers(0, 10),
    )
    def plan_anew(self, num_blocks, h2d, d2h, num_streamed):
        """Weights come or go: the border moves over blocks that requests and copies hold."""
        border = None if num_blocks is None else min(num_blocks, self.rig.num_blocks)
        self.rig.link = LinkSnapshot(
            h2d=h2d,
            d2h=d2h,
            num_resident_layers=10 - num_streamed,
            num_streamed_layers=num_streamed,
            num_blocks=border,
            disk_read_bytes_per_s=h2d.p50_bytes_per_s / 2,
        )

    @rule()
    def kill(self):
        """Everything but the disk is gone; what is on it is found again."""
        self.rig = self.rig.restarted()

    @invariant()
    def holds(self):
        if hasattr(self, "rig"):
            self.rig.check()

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        rig = self.rig
        rig.calm()
        rig.drain(rig.most_steps())
        rig.settle()
        check_the_disk_is_found(rig)


def check_the_disk_is_found(rig: TierRig) -> None:
    """A new server on the same disk serves the prefixes whose every block is there."""
    after = rig.restarted()
    chain = next((chain for chain in rig.known_chains if after.num_on_disk(chain)), None)
    if chain is None:
        return
    num_blocks = after.num_on_disk(chain)
    size = rig.config.block_size
    num_wanted = min(num_blocks, (len(chain) - 1) // size, rig.tiers.num_host_slots)
    after.add_chain(chain, 1)
    if after.live and num_wanted:
        after.drain(after.most_steps())
        assert after.admissions["g0/0"].num_disk_cached_tokens >= num_wanted * size
    after.check()


TestKVTiersMachine = KVTiersMachine.TestCase
TestKVTiersMachine.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


ALL_OF_IT = frozenset(
    {
        *("store background", "store frees_blocks", "load admitted", "read waiting", "write background"),
        *("gate", "loading", "load failed", "started again", "aborted in flight"),
        *("preempted: swap", "preempted: free", "preempted: recompute"),
        *("hit: device", "hit: host", "hit: disk", "evicted: host", "evicted: disk"),
        *("host off", "disk off", "disk read only", "lease beyond the border"),
        *("store in vain", "load in vain", "read in vain", "write in vain", "delete in vain"),
        *("load corrupt", "write full", "delete done"),
        *("stop", "length", "abort", "error", "refused"),
    }
)
"""What traffic must have seen, or it shows nothing."""


def test_lives_of_many_engines():
    seen: Counter[str] = Counter()
    for seed in range(100, 180):
        seen += TierTraffic(seed, 1 + seed % 2).run(42).seen
    assert set(seen) >= ALL_OF_IT, f"never seen: {ALL_OF_IT - set(seen)}"


@pytest.mark.soak
def test_lives_of_thousands_of_engines():
    for seed in range(1000, 7_000):
        TierTraffic(seed, 1 + seed % 2).run(70)


def test_the_same_calls_give_the_same_steps_in_any_process():
    """Whatever the order in which sets of ids and hashes are walked there."""
    code = "from tests.tier_traffic import TierTraffic as T;print([T(seed).run(45).digest for seed in range(6)])"
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
