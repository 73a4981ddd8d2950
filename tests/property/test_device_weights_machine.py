"""Weights and KV in one arena under any order of changes, steps and faults: neither ever touches the other's bytes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offload.weight_streamer import WeightLoadError
from tests.tiny_device_weights import BLOCK_BYTES, LAYER_BYTES, NUM_LAYERS, SIZES, make_device_weights

KV_BYTE = 0x77
"""What every KV block in force is filled with."""


class DeviceWeightsMachine(RuleBasedStateMachine):
    """The caller keeps its promise: before fewer layers are asked for, no block beyond that border is used."""

    @initialize(
        min_streamed=st.integers(0, 2),
        extra=st.integers(0, 2),
        num_slots=st.integers(1, 3),
        num_parts=st.integers(1, 5),
    )
    def make(self, min_streamed: int, extra: int, num_slots: int, num_parts: int) -> None:
        unit = sum(SIZES.layer_part_bytes[0][-num_parts:])
        self.weights, self.arena, self.link = make_device_weights(
            min_streamed + extra, min_streamed, NUM_LAYERS, num_slots, unit_bytes=unit
        )
        self.min_streamed = min_streamed
        self.num_used_blocks = 0
        """The first blocks, which hold KV."""
        self.has_fault = False
        self.use_blocks()

    def use_blocks(self) -> None:
        """All that are in force."""
        region = self.arena.region
        region[self.num_used_blocks * BLOCK_BYTES : self.weights.num_kv_blocks * BLOCK_BYTES] = KV_BYTE
        self.num_used_blocks = self.weights.num_kv_blocks

    @rule(data=st.data())
    def set_streamed(self, data: st.DataObject) -> None:
        k = data.draw(st.integers(self.min_streamed, NUM_LAYERS))
        self.num_used_blocks = min(self.num_used_blocks, self.weights.kv_blocks_at(k))
        num_failed = self.weights.num_failed_promotions
        self.weights.set_streamed(k)
        if not self.weights.is_moving:
            assert self.weights.num_streamed == k or self.weights.num_failed_promotions > num_failed
            assert self.weights.num_kv_blocks == self.weights.kv_blocks_at(self.weights.num_streamed)

    @rule()
    def fill_kv(self) -> None:
        """Only where nothing is on its way to come down: the fence holds until then."""
        if not self.weights.is_moving:
            self.use_blocks()

    @rule(compute_s=st.sampled_from([0.0, 0.01, 1.0]), num_layers=st.integers(0, NUM_LAYERS))
    def step(self, compute_s: float, num_layers: int) -> None:
        """Read the first layers; fewer than all: the step is broken off."""
        weights = self.weights
        weights.begin_step()
        try:
            for layer in range(num_layers):
                slab = weights.acquire(layer)
                self.link.advance(compute_s)
                assert bool((slab.head == layer + 1).all()) and bool((slab.tail == layer + 1).all())
                weights.release(layer)
        except WeightLoadError:
            assert self.has_fault
        weights.end_step()

    @rule(seconds=st.sampled_from([1e-3, 0.1, 10.0]))
    def advance(self, seconds: float) -> None:
        self.link.advance(seconds)

    @precondition(lambda self: self.weights._promotion is not None and not self.weights._promotion.is_done)
    @rule()
    def fail_the_copy_back(self) -> None:
        assert self.weights._promotion is not None
        self.link.fail(self.weights._promotion, OSError("a fault"))

    @precondition(lambda self: self.link._flights)
    @rule()
    def fail_what_is_under_way(self) -> None:
        (flight,) = self.link._flights.values()
        self.link.fail(flight.taken.queued.handle, OSError("a fault"))
        self.has_fault = True

    @invariant()
    def nobody_has_anothers_bytes(self) -> None:
        if not hasattr(self, "weights"):
            return
        self.weights.check()
        self.link.check()
        assert self.num_used_blocks <= self.weights.num_kv_blocks
        assert bool((self.arena.region[: self.num_used_blocks * BLOCK_BYTES] == KV_BYTE).all())
        for layer, slab in enumerate(self.weights.slabs):
            assert bool((slab.tail == layer + 1).all()) and slab.num_bytes == LAYER_BYTES

    def teardown(self) -> None:
        """Once the faults have struck, every number of layers is reached, and read."""
        if not hasattr(self, "weights"):
            return
        self.num_used_blocks = 0
        for _ in range(NUM_LAYERS + 2):
            self.link.advance_to_idle()
            self.weights.set_streamed(self.min_streamed)
            self.link.advance_to_idle()
            self.has_fault = True
            self.step(0.0, NUM_LAYERS)
        assert self.weights.num_streamed == self.min_streamed and not self.weights.is_moving


TestDeviceWeightsMachine = DeviceWeightsMachine.TestCase
TestDeviceWeightsMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
