"""Slots, loads and steps over a link in virtual time whose unfinished copies are poison."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.errors import OffloadError
from offload.link import LinkError, TransferHandle
from offload.step_transfers import StepTransfers
from offload.streamed_unit import StreamedUnit
from offload.transfer import Transfer, TransferClass
from offload.weight_streamer import WeightLoadError, WeightStreamer
from tests.fake_link import FakeLink
from tests.streamed_units import StreamedUnits

SIZE = 1000
COPY_S = 1e-3
"""Of one unit of SIZE bytes at 1 MB/s."""


class RecordingLink(FakeLink):
    """Remembers what was asked for."""

    def __init__(self, h2d_bytes_per_s: float = 1e6) -> None:
        super().__init__(h2d_bytes_per_s)
        self.handles: list[TransferHandle] = []

    def submit(self, transfer: Transfer, on_done: object = None) -> TransferHandle:
        handle = super().submit(transfer)
        self.handles.append(handle)
        return handle


def step(units: StreamedUnits, link: FakeLink, layer_s: float = 0.0, deadline_s: float = math.inf) -> StepTransfers:
    """Every layer takes `layer_s`; streamed ones are read."""
    streamer = units.streamer
    streamer.begin_step(deadline_s)
    streamed = {unit.layer for unit in streamer.units}
    for layer in range(len(units.units)):
        if layer in streamed:
            units.read(layer)
        link.advance(layer_s)
        if layer in streamed:
            streamer.release(layer)
            units.check()
    return streamer.end_step()


@given(
    num_layers=st.integers(1, 9),
    num_slots=st.integers(1, 5),
    speeds=st.lists(st.sampled_from([1e3, 1e5, 1e6, 1e9]), min_size=1, max_size=4),
    layer_s=st.sampled_from([0.0, 1e-4, 1e-3, 1e-2]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_layer_is_read_as_it_is_for_any_set_slots_sizes_and_speeds(
    num_layers: int, num_slots: int, speeds: list[float], layer_s: float, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3000), min_size=num_layers, max_size=num_layers))
    link = RecordingLink(1e6)
    units = StreamedUnits(link, sizes, num_slots)
    sets = data.draw(st.lists(st.sets(st.integers(0, num_layers - 1)), min_size=1, max_size=4))
    for streamed in sets:
        units.streamer.set_streamed(streamed)
        for index, speed in enumerate(speeds):
            link.slow_down(1e6 / speed)
            moved = step(units, link, layer_s)
            assert moved.num_bytes <= sum(sizes[layer] for layer in streamed)
            assert moved.num_loads <= len(streamed)
            if index:
                assert moved.num_bytes == units.streamer.step_bytes
    link.check()


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4])
@pytest.mark.parametrize("num_streamed", [1, 2, 3, 5, 6])
def test_a_step_copies_every_unit_once_where_there_are_more_than_slots(num_slots: int, num_streamed: int) -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 6, num_slots)
    units.streamer.set_streamed(range(6 - num_streamed, 6))
    first = step(units, link)
    assert (first.num_loads, first.num_bytes) == (num_streamed, num_streamed * SIZE)
    before = len(link.handles)
    for _ in range(3):
        moved = step(units, link)
        expected = num_streamed if num_streamed > num_slots else 0
        assert (moved.num_loads, moved.num_bytes) == (expected, expected * SIZE)
    assert len(link.handles) - before == 3 * expected


def test_the_next_load_starts_when_a_slot_is_released_and_the_circle_goes_on_over_the_end_of_the_step() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 4, num_slots=2)
    streamer = units.streamer
    streamer.set_streamed([1, 2, 3])
    layer_of = {units.masters[layer].data_ptr(): layer for layer in range(4)}

    def loads() -> list[int]:
        return [layer_of[handle.transfer.source.data_ptr()] for handle in link.handles]

    assert loads() == [1, 2]
    streamer.begin_step(math.inf)
    units.read(1)
    assert loads() == [1, 2]
    streamer.release(1)
    assert loads() == [1, 2, 3]
    units.read(2)
    streamer.release(2)
    assert loads() == [1, 2, 3, 1]
    units.read(3)
    streamer.release(3)
    assert loads() == [1, 2, 3, 1, 2]
    streamer.end_step()
    link.advance_to_idle()
    assert step(units, link).exposed_s == 0 or loads()[5:] == [3, 1, 2]
    assert loads()[5:] == [3, 1, 2]


def test_a_load_is_wanted_when_computation_gets_to_its_layer() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 4, num_slots=1)
    streamer = units.streamer
    streamer.set_streamed([1, 3])
    streamer.begin_step(deadline_s=8.0)
    units.read(1)
    streamer.release(1)
    units.read(3)
    streamer.release(3)
    streamer.end_step()
    begin_s = 0.0
    deadlines_s = [handle.transfer.deadline_s for handle in link.handles]
    assert deadlines_s[1:] == [begin_s + 8.0 * 3 / 4, begin_s + 8.0 * (1 + 1 / 4)]
    assert {handle.transfer.transfer_class for handle in link.handles} == {TransferClass.WEIGHTS}


def test_copy_time_is_hidden_under_computation_or_exposed() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 4, num_slots=1)
    units.streamer.set_streamed([1, 3])
    step(units, link, layer_s=0.0)
    link.advance_to_idle()
    hidden = step(units, link, layer_s=COPY_S)  # one layer in between hides one copy
    assert hidden.exposed_s == pytest.approx(0.0, abs=1e-9) and hidden.hidden_s == pytest.approx(2 * COPY_S)
    link.advance_to_idle()
    half = step(units, link, layer_s=COPY_S / 2)
    assert half.exposed_s == pytest.approx(COPY_S / 2) and half.hidden_s == pytest.approx(1.5 * COPY_S)
    exposed = [step(units, link, layer_s=0.0) for _ in range(2)][-1]
    assert exposed.exposed_s == pytest.approx(2 * COPY_S) and exposed.hidden_s == pytest.approx(0.0, abs=1e-9)


def test_what_is_on_the_way_and_still_wanted_is_not_copied_again_when_the_set_changes() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 6, num_slots=2)
    units.streamer.set_streamed([1, 3, 5])
    assert len(link.handles) == 2
    units.streamer.set_streamed([1, 3, 4, 5])
    assert len(link.handles) == 2
    step(units, link)
    count = len(link.handles)
    units.streamer.set_streamed([1, 2, 3, 5])  # 3 is on its way into a slot that 2 needs: drained, then used
    assert len(link.handles) == count
    moved = step(units, link)
    assert moved.num_loads == 4
    units.streamer.set_streamed([])
    assert step(units, link) == StepTransfers()


def test_a_failed_copy_fails_the_step_and_the_next_one_loads_it_again() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 4, num_slots=2)
    streamer = units.streamer
    streamer.set_streamed([0, 1, 2, 3])
    step(units, link)
    streamer.begin_step(math.inf)
    units.read(0)
    streamer.release(0)
    units.read(1)
    streamer.release(1)
    link.fail(link.handles[-2], OSError("the bus is gone"))
    with pytest.raises(WeightLoadError, match=r"of layer 2 \(1,000 bytes\) were not copied .*the bus is gone"):
        streamer.acquire(2)
    streamer.check()
    streamer.end_step()
    assert step(units, link).num_loads == 4
    units.check()


def test_a_copy_that_is_late_beyond_patience_fails_the_step_and_is_used_by_the_next() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 2, num_slots=1, patience_s=0.5)
    streamer = units.streamer
    streamer.set_streamed([0, 1])
    link.slow_down(1e4)
    streamer.begin_step(math.inf)
    units.read(0)  # was under way before the link slowed down
    streamer.release(0)
    with pytest.raises(WeightLoadError, match=r"layer 1 .* are not on the device after 0.5 s"):
        streamer.acquire(1)
    moved = streamer.end_step()
    assert moved.exposed_s == pytest.approx(0.5 + COPY_S)
    link.slow_down(1)
    link.advance_to_idle()
    assert step(units, link).num_loads == 2


def test_a_dead_link_raises_and_never_hangs() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 3, num_slots=1)
    streamer = units.streamer
    streamer.set_streamed([0, 1, 2])
    streamer.begin_step(math.inf)
    link.die(RuntimeError("no more"))
    with pytest.raises(WeightLoadError, match=r"layer 0 .*no more"):
        streamer.acquire(0)
    streamer.end_step()
    with pytest.raises(LinkError, match="died"):
        streamer.begin_step(math.inf)
    streamer.check()


def test_a_step_that_was_broken_off_is_begun_anew() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 5, num_slots=2)
    units.streamer.set_streamed([1, 2, 4])
    step(units, link)
    for broken_after in (1, 2):
        units.streamer.begin_step(math.inf)
        for layer in (1, 2)[:broken_after]:
            units.read(layer)
            if layer != broken_after:
                units.streamer.release(layer)
        step(units, link)  # a held slot is given up, what is loaded too far ahead is replaced


def test_what_no_step_may_do_is_refused() -> None:
    link = RecordingLink()
    units = StreamedUnits(link, [SIZE] * 4, num_slots=2)
    streamer = units.streamer
    streamer.set_streamed([1, 2])
    with pytest.raises(OffloadError, match="layer 1 is used outside of a step"):
        streamer.acquire(1)
    streamer.begin_step(math.inf)
    with pytest.raises(OffloadError, match="layer 2 is used, layer 1 of those streamed comes next"):
        streamer.acquire(2)
    with pytest.raises(OffloadError, match="layer 1 is released and was not acquired"):
        streamer.release(1)
    with pytest.raises(OffloadError, match="between steps only"):
        streamer.set_streamed([1])
    streamer.end_step()
    with pytest.raises(ValueError, match=r"layers \[7\] cannot be streamed"):
        streamer.set_streamed([7])
    with pytest.raises(ValueError, match=r"slots of \[9\] bytes for units of up to 10"):
        WeightStreamer(link, [StreamedUnit(0, 10)], {0: torch.zeros(10)}, [torch.zeros(9)], 1)
    with pytest.raises(ValueError, match="layer 0 has no copy of 10 bytes on the host"):
        WeightStreamer(link, [StreamedUnit(0, 10)], {0: torch.zeros(9)}, [torch.zeros(10)], 1)
