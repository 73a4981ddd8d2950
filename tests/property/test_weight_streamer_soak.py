"""A streamer through a hundred thousand steps with every fault: each layer its own bytes, and nothing piles up."""

from __future__ import annotations

import gc
import math
import random

import psutil
import pytest

from offload.link import TransferHandle
from offload.transfer import Transfer
from offload.weight_streamer import WeightLoadError
from tests.fake_link import FakeLink
from tests.streamed_units import BYTES_PER_S, StreamedUnits

NUM_LAYERS = 12
NUM_STEPS = 100_000
"""Of about six acquired layers each."""
PATIENCE_S = 1.0
MAX_GROWTH_BYTES = 16 * 2**20


class CountingLink(FakeLink):
    """Counts what was submitted and what has ended, and forgets it."""

    def __init__(self) -> None:
        super().__init__(BYTES_PER_S)
        self.num_submitted = self.num_ended = 0

    def submit(self, transfer: Transfer, on_done: object = None) -> TransferHandle:
        self.num_submitted += 1
        return super().submit(transfer)

    def forget(self) -> None:
        self.num_ended += len(self.completed)
        self.completed.clear()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_slots", [1, 3])
def test_a_long_life_of_faults_and_changes(num_slots: int) -> None:
    source = random.Random(num_slots)
    link = CountingLink()
    units = StreamedUnits(link, [source.randint(1, 3000) for _ in range(NUM_LAYERS)], num_slots, PATIENCE_S)
    streamer, process = units.streamer, psutil.Process()
    num_lost = num_acquired = 0
    early_bytes = early_fds = 0
    for step in range(NUM_STEPS):
        if source.random() < 0.1:
            streamer.set_streamed(source.sample(range(NUM_LAYERS), source.randint(0, NUM_LAYERS)))
        if source.random() < 0.02:
            link.slow_down(source.choice([0.1, 1.0, 30.0]))
        for slot in streamer._slots:
            if slot.is_loading and source.random() < 0.01:
                link.fail(slot.handle, OSError("a fault"))  # type: ignore[arg-type]
        streamer.begin_step(math.inf)
        layers = [unit.layer for unit in streamer.units]
        try:
            for layer in layers[: source.randint(0, NUM_LAYERS) if source.random() < 0.1 else NUM_LAYERS]:
                units.read(layer)
                link.advance(source.choice([0.0, 1e-4, 1e-2]))
                units.read_held(layer)
                streamer.release(layer)
                num_acquired += 1
        except WeightLoadError:
            num_lost += 1
        streamer.end_step()
        link.forget()
        if step % 1000 == 0:
            units.check()
            link.check()
            assert link.num_submitted - link.num_ended <= num_slots
        if step == NUM_STEPS // 10:
            gc.collect()
            early_bytes, early_fds = process.memory_info().rss, process.num_fds()
    link.advance_to_idle()
    link.forget()
    units.check()
    gc.collect()
    assert link.num_submitted == link.num_ended, "every copy ends exactly once"
    assert num_acquired > 3 * NUM_STEPS
    assert 0 < num_lost < NUM_STEPS // 10
    assert not link._errors and not link._held
    assert process.num_fds() <= early_fds
    assert process.memory_info().rss - early_bytes < MAX_GROWTH_BYTES
