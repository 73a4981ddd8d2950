"""A weight streamer under any order of steps, changes, faults and speeds: whoever reads a layer gets its own bytes."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offload.link import TransferHandle
from offload.transfer import Transfer
from offload.weight_streamer import WeightLoadError
from tests.fake_link import FakeLink
from tests.streamed_units import BYTES_PER_S, StreamedUnits

NUM_LAYERS = 6
PATIENCE_S = 1.0


class Link(FakeLink):
    """Remembers what is open."""

    def __init__(self) -> None:
        super().__init__(BYTES_PER_S)
        self.handles: list[TransferHandle] = []

    @property
    def open(self) -> list[TransferHandle]:
        return [handle for handle in self.handles if not handle.is_done]

    def submit(self, transfer: Transfer, on_done: object = None) -> TransferHandle:
        for handle in self.open:
            assert handle.transfer.target.data_ptr() != transfer.target.data_ptr(), "two copies into one slot"
        handle = super().submit(transfer)
        self.handles.append(handle)
        return handle


class WeightStreamerMachine(RuleBasedStateMachine):
    """Layers 0..5 of unequal size over a fake link. Whatever `acquire` gives is compared with the layer's own bytes."""

    @initialize(
        num_slots=st.integers(1, 4), sizes=st.lists(st.integers(1, 3000), min_size=NUM_LAYERS, max_size=NUM_LAYERS)
    )
    def make(self, num_slots: int, sizes: list[int]) -> None:
        self.link = Link()
        self.units = StreamedUnits(self.link, sizes, num_slots, PATIENCE_S)
        self.streamer = self.units.streamer
        self.is_in_step = False
        self.todo: list[int] = []
        """Streamed layers that the step has still to compute."""
        self.held: int | None = None
        self.has_fault = False
        """A failed or endless copy may be what the step meets."""

    @precondition(lambda self: not self.is_in_step)
    @rule(layers=st.sets(st.integers(0, NUM_LAYERS - 1)))
    def set_streamed(self, layers: set[int]) -> None:
        self.streamer.set_streamed(layers)
        assert [unit.layer for unit in self.streamer.units] == sorted(layers)

    @rule(deadline_s=st.one_of(st.just(math.inf), st.floats(0, 1)))
    def begin_step(self, deadline_s: float) -> None:
        """Also where the one before was broken off."""
        self.streamer.begin_step(self.link.now_s() + deadline_s)
        self.is_in_step, self.held = True, None
        self.todo = [unit.layer for unit in self.streamer.units]

    @precondition(lambda self: self.is_in_step and self.todo and self.held is None)
    @rule()
    def acquire(self) -> None:
        try:
            self.units.read(self.todo[0])
        except WeightLoadError:
            assert self.has_fault, "nothing was wrong with the link"
            self.streamer.end_step()
            self.is_in_step = False
            return
        self.held = self.todo[0]

    @precondition(lambda self: self.held is not None and self.is_in_step)
    @rule()
    def release(self) -> None:
        assert self.held is not None
        self.units.read_held(self.held)
        self.streamer.release(self.held)
        self.todo.pop(0)
        self.held = None

    @precondition(lambda self: self.is_in_step)
    @rule()
    def end_step(self) -> None:
        """Over, or broken off in the middle."""
        moved = self.streamer.end_step()
        assert moved.num_loads <= len(self.streamer.units)
        assert moved.num_bytes <= sum(unit.num_bytes for unit in self.streamer.units)
        assert moved.hidden_s >= 0 and moved.exposed_s >= 0
        self.is_in_step, self.held = False, None

    @rule(seconds=st.sampled_from([1e-4, 1e-3, 1e-2]))
    def advance(self, seconds: float) -> None:
        self.link.advance(seconds)

    @rule(factor=st.sampled_from([0.1, 1.0, 30.0]))
    def change_speed(self, factor: float) -> None:
        self.link.slow_down(factor)

    @precondition(lambda self: self.link.open)
    @rule(data=st.data())
    def fail_a_copy(self, data: st.DataObject) -> None:
        self.link.fail(data.draw(st.sampled_from(self.link.open)), OSError("a fault"))
        self.has_fault = True

    @rule()
    def drain(self) -> None:
        self.streamer.drain()
        assert not self.link.open

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "units"):
            self.units.check()
            self.link.check()
            assert len(self.link.open) <= len(self.units.slots)

    def teardown(self) -> None:
        """Once the faults have struck, a step computes everything."""
        if not hasattr(self, "units"):
            return
        self.link.slow_down(1.0)
        self.link.advance_to_idle()
        self.streamer.begin_step(math.inf)
        for unit in self.streamer.units:
            self.units.read(unit.layer)
            self.streamer.release(unit.layer)
        self.streamer.end_step()


TestWeightStreamerMachine = WeightStreamerMachine.TestCase
TestWeightStreamerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
