"""From what the scheduler asks for to copies, to the gate of a step, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from engine.kv_tier_manager import KVTierManager
from offload.load_parts import first_layers
from scheduler.kv_transfer import BlockOutcome, GatedLoad, KVTransfer, Purpose, TransferKind, TransferResult
from scheduler.output import SchedulerOutput
from tests.fake_link import FakeLink
from tests.kv_tiers import BLOCK_BYTES, NUM_LAYERS, InlineLanes, Tiers, key, make_tiers

DONE, FAILED, CORRUPT = BlockOutcome.DONE, BlockOutcome.FAILED, BlockOutcome.CORRUPT
NUM_PARTS = 3
LAYER_BYTES = BLOCK_BYTES // NUM_LAYERS
BYTES_PER_S = 1000.0
"""A block in 0.3 s: nothing arrives before somebody lets time pass."""


class Rig:
    """A manager over real moves on a link of virtual time."""

    def __init__(self) -> None:
        self.link = FakeLink(BYTES_PER_S)
        self.tiers: Tiers = make_tiers(self.link, num_load_parts=NUM_PARTS, lanes=InlineLanes())
        self.manager = KVTierManager(self.tiers.offload, first_layers(NUM_LAYERS, NUM_PARTS), self.link.now_s)
        self._num_steps = 0

    def begin(
        self, *transfers: KVTransfer, gated: Sequence[tuple[str, int]] = (), now_s: float = 0.0
    ) -> SchedulerOutput:
        output = SchedulerOutput(
            self._num_steps, now_s, (), transfers=transfers, gated_loads=tuple(GatedLoad(*each) for each in gated)
        )
        self._num_steps += 1
        self.manager.begin(output, now_s)
        self.manager.check()
        return output

    def store(self, number: int, device: int, slot: int) -> None:
        """Block `number` is on the host."""
        self.begin(transfer(1000 + number, TransferKind.STORE, (number,), (device,), (slot,)))
        self.link.drain()
        assert self.manager.collect() == (TransferResult(1000 + number, (DONE,)),)

    def collect(self) -> tuple[TransferResult, ...]:
        results = self.manager.collect()
        self.manager.check()
        assert not self.manager.has_results()
        return results

    def layers(self, block: int, first: int, end: int) -> torch.Tensor:
        return self.tiers.device[block, first * LAYER_BYTES : end * LAYER_BYTES]


def transfer(
    transfer_id: int,
    kind: TransferKind,
    numbers: tuple[int, ...],
    device: tuple[int, ...] = (),
    slots: tuple[int, ...] = (),
    deadline_s: float = math.inf,
) -> KVTransfer:
    hashes = tuple(map(key, numbers))
    positions = numbers if kind in (TransferKind.WRITE, TransferKind.TOUCH) else ()
    return KVTransfer(transfer_id, kind, Purpose.ADMITTED, hashes, device, slots, deadline_s, positions)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_is_stored_is_loaded_again_and_each_ends_once(rig: Rig) -> None:
    before = rig.tiers.device[3].clone()
    rig.store(1, device=3, slot=5)
    rig.begin(transfer(1, TransferKind.LOAD, (1,), (0,), (5,)))
    assert rig.collect() == ()
    rig.link.drain()
    assert rig.manager.has_results()
    assert rig.collect() == (TransferResult(1, (DONE,)),)
    assert rig.collect() == ()
    assert torch.equal(rig.tiers.device[0], before)


def test_each_part_is_there_once_its_first_layer_is_passed_and_not_before(rig: Rig) -> None:
    """Blocks in parts of 2, 2 and 1 layers."""
    before = rig.tiers.device[3].clone()
    rig.store(1, device=3, slot=5)
    output = rig.begin(transfer(1, TransferKind.LOAD, (1,), (0,), (5,)), gated=[("a", 1)])
    assert rig.manager.gated_layers == (0, 2, 4)
    for first, end in ((0, 2), (2, 4), (4, 5)):
        expected = before[first * LAYER_BYTES : end * LAYER_BYTES]
        assert not torch.equal(rig.layers(0, first, end), expected)
        rig.manager.pass_layer(first)
        assert torch.equal(rig.layers(0, first, end), expected)
    rig.manager.end()
    assert rig.manager.gated_layers == ()
    assert rig.collect() == (TransferResult(1, (DONE,)),)
    assert rig.manager.failed_requests(output) == frozenset()


def test_a_step_that_fails_before_its_layers_ends_with_its_loads(rig: Rig) -> None:
    rig.store(1, device=3, slot=5)
    rig.begin(transfer(1, TransferKind.LOAD, (1,), (0,), (5,)), gated=[("a", 1)])
    rig.manager.end()
    assert rig.collect() == (TransferResult(1, (DONE,)),)


def test_loads_that_have_ended_hold_nothing_back(rig: Rig) -> None:
    """One of an earlier step, which nobody was told of yet."""
    rig.store(1, device=3, slot=5)
    rig.begin(transfer(1, TransferKind.LOAD, (1,), (0,), (5,)))
    rig.link.drain()
    output = rig.begin(gated=[("a", 1)])
    assert rig.manager.gated_layers == ()
    assert rig.manager.has_results()
    rig.manager.end()
    assert rig.collect() == (TransferResult(1, (DONE,)),)
    assert rig.manager.failed_requests(output) == frozenset()


def test_whoever_was_computed_upon_a_corrupt_block_is_void_and_nobody_else(rig: Rig) -> None:
    rig.store(1, device=3, slot=5)
    rig.store(2, device=4, slot=6)
    rig.tiers.pool.blocks[6, 17] ^= 1
    loads = (
        transfer(1, TransferKind.LOAD, (1,), (0,), (5,)),
        transfer(2, TransferKind.LOAD, (1, 2), (1, 2), (5, 6)),
    )
    output = rig.begin(*loads, gated=[("good", 1), ("bad", 2), ("bad too", 2)])
    rig.manager.end()
    assert set(rig.collect()) == {TransferResult(1, (DONE,)), TransferResult(2, (DONE, CORRUPT))}
    assert rig.manager.failed_requests(output) == {"bad", "bad too"}


def test_a_dead_link_fails_loads_and_the_step_goes_on(rig: Rig) -> None:
    rig.store(1, device=3, slot=5)
    output = rig.begin(transfer(1, TransferKind.LOAD, (1,), (0,), (5,)), gated=[("a", 1)])
    rig.link.die(RuntimeError("the bus fell off"))
    for layer in rig.manager.gated_layers:
        rig.manager.pass_layer(layer)
    rig.manager.end()
    assert rig.collect() == (TransferResult(1, (FAILED,)),)
    assert rig.manager.failed_requests(output) == {"a"}


def test_deadlines_are_of_the_links_clock(rig: Rig) -> None:
    """Two clocks that do not agree: the urgent one goes first although its number would be the later over there."""
    rig.store(1, device=3, slot=5)
    rig.store(2, device=4, slot=6)
    assert rig.link.now_s() > 0.5
    first = transfer(1, TransferKind.LOAD, (1,), (0,), (5,), deadline_s=5000.0 + 9.0)
    second = transfer(2, TransferKind.LOAD, (2,), (1,), (6,), deadline_s=5000.0 + 1.0)
    started_s = rig.link.now_s()
    handles = rig.link.completed[:]
    rig.begin(first, second, now_s=5000.0)
    rig.link.drain()
    deadlines = [handle.transfer.deadline_s for handle in rig.link.completed if handle not in handles]
    assert sorted(set(deadlines)) == pytest.approx([started_s + 1.0, started_s + 9.0])
    assert [result.transfer_id for result in rig.collect()] == [2, 1]


def test_bytes_are_counted_by_kind_and_anew_when_something_has_ended(rig: Rig) -> None:
    rig.store(1, device=3, slot=5)
    counted = rig.manager.kv_bytes()
    assert counted.num_bytes["store"] == BLOCK_BYTES and counted.num_bytes["load"] == 0
    assert rig.manager.kv_bytes() is counted
    rig.begin(transfer(1, TransferKind.LOAD, (1,), (0,), (5,)))
    rig.link.drain()
    rig.collect()
    assert rig.manager.kv_bytes().num_bytes["load"] == BLOCK_BYTES
    assert rig.manager.disk_read_bytes_per_s == 0.0


def test_without_a_disk_what_is_asked_of_it_fails(rig: Rig) -> None:
    rig.store(1, device=3, slot=5)
    rig.begin(
        transfer(1, TransferKind.WRITE, (1,), (), (5,)),
        transfer(2, TransferKind.READ, (2,), (), (6,)),
        transfer(3, TransferKind.DELETE, (3, 4)),
        transfer(4, TransferKind.TOUCH, (3, 4)),
    )
    assert set(rig.collect()) == {
        TransferResult(1, (FAILED,)),
        TransferResult(2, (FAILED,)),
        TransferResult(3, (FAILED, FAILED)),
        TransferResult(4, (FAILED, FAILED)),
    }
