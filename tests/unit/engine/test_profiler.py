"""The profiler on a tiny model: what it measures, never how long that takes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from engine.link_probe import LinkBuffers, measure_restart
from engine.overhead_probe import measure_overhead
from engine.profile_grid import ProfileLimits, StepShape, grid, held_out_grid
from engine.profile_run import cpu_tools
from engine.profiler import ProfileTools, measure
from engine.step_probe import StepProbe
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from offload.host_memory import allocate_host
from offload.record import PerformanceRecord
from offload.record_check import check_measurements
from offload.step_cost import Quantile
from offload.transfer import Direction
from scheduler.config import SchedulerConfig
from tests.fake_link import FakeLink
from tests.record_builders import make_fingerprint

CONFIG = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4)
LIMITS = ProfileLimits(max_num_sequences=4, max_num_tokens=32, max_context_tokens=64, kv_tokens=128)
SIZES_BYTES = (4096, 65536)


class TickingClock:
    """Every look at it costs a millisecond."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 1e-3
        return self._now_s


@pytest.fixture(scope="module", params=["torch", "native"])
def model(request: pytest.FixtureRequest, tiny_model_path: Path) -> LoadedModel:
    library: NativeLibrary | None = request.getfixturevalue("native_library") if request.param == "native" else None
    return load_model(str(tiny_model_path), "float32", lambda _: None, library=library)


def tools() -> ProfileTools:
    """A real link and small copies; a clock that makes every repetition as long as any other."""
    return dataclasses.replace(
        cpu_tools(), now_s=TickingClock(), link_sizes_bytes=SIZES_BYTES, paces_bytes_per_s=(1e9, None), budget_s=0.5
    )


def test_a_profile_has_all_that_a_record_needs(model: LoadedModel) -> None:
    told: list[float] = []
    measured = measure(model, CONFIG, LIMITS, tools(), told.append)
    assert [point.load for point in measured.layers] == [shape.load for shape in grid(LIMITS)]
    assert [point.load for point in measured.held_out] == [shape.load for shape in held_out_grid(LIMITS)]
    assert all(len(point.samples_s) + point.num_dropped >= 3 for point in (*measured.layers, *measured.held_out))
    assert measured.num_layers == 2
    assert measured.layer_bytes == model.decoder.weights.layers[0].layout.num_bytes
    assert [point.num_rows for point in measured.head] == [1, 2, 4]
    assert [point.num_rows for point in measured.overhead] == [1, 4]
    assert {(point.direction, point.num_bytes) for point in measured.link} == {
        (direction, size) for direction in Direction for size in SIZES_BYTES
    }
    assert [(point.cap_bytes_per_s, point.load.is_decode) for point in measured.interference] == [
        (1e9, True),
        (1e9, False),
        (None, True),
        (None, False),
    ]
    assert told == sorted(told) and told[-1] == 1.0
    record = PerformanceRecord(make_fingerprint(), measured)
    # On this clock a step lasts a millisecond, whatever it computes.
    for shape in grid(LIMITS):
        assert record.quiet_layer_s(shape.load, Quantile.P50) == pytest.approx(0.5e-3)
    assert record.held_out_error.p95 < 1e-6
    assert record.fixed_s() > 0.0


def test_a_real_clock_gives_a_record_that_can_be_true(model: LoadedModel) -> None:
    measured = measure(model, CONFIG, LIMITS, dataclasses.replace(tools(), now_s=cpu_tools().now_s, budget_s=0.2))
    check_measurements(measured)
    assert measured.wall_s > 0.0


def test_a_step_of_any_composition_computes_and_writes_only_its_slots(model: LoadedModel) -> None:
    probe = StepProbe(model.decoder, num_blocks=8, block_size=16)
    before = probe.kv_cache.region.clone()
    probe.step(StepShape(num_sequences=3, tokens_each=2, context_each=20))()
    changed = (probe.kv_cache.region != before).flatten(2).any(-1).any(-1)
    # Blocks of 16 tokens, two a sequence; tokens 18 and 19 are in the second one of each.
    assert changed.tolist() == [False, True, False, True, False, True, False, False]
    probe.head(3)()


def test_sequences_share_blocks_where_there_are_too_few(model: LoadedModel) -> None:
    StepProbe(model.decoder, num_blocks=2, block_size=16).step(StepShape(4, 1, 64))()


def test_the_overhead_is_what_is_spent_outside_the_decoder(model: LoadedModel) -> None:
    point = measure_overhead(model, CONFIG, 3, TickingClock())
    # Looks at the clock: at the start of a turn, twice around layers, twice around the head, at the end.
    assert point.samples_s == pytest.approx([3e-3] * len(point.samples_s))
    assert point.num_rows == 3


def test_the_overhead_is_measured_in_as_many_steps_as_asked_for_however_few_requests_may_wait(
    model: LoadedModel,
) -> None:
    config = dataclasses.replace(CONFIG, max_queued_requests=1)
    assert len(measure_overhead(model, config, 4, TickingClock(), num_steps=2).samples_s) == 2


def test_a_restart_costs_nothing_on_a_link_without_threads() -> None:
    link = FakeLink(1e9)
    buffers = LinkBuffers(1 << 20, allocate_host, allocate_host)
    samples_s = measure_restart(link, buffers, 10_000, lambda: None, 1.0, TickingClock(), lambda _: None)
    assert samples_s == pytest.approx([0.0] * len(samples_s), abs=1e-9)


def test_copies_never_read_what_the_last_one_left_in_a_cache() -> None:
    buffers = LinkBuffers(4096, lambda size: torch.zeros(size, dtype=torch.uint8), allocate_host)
    starts = [buffers.transfer(Direction.H2D, 1024).source.data_ptr() for _ in range(5)]
    assert [start - starts[0] for start in starts] == [0, 1024, 2048, 3072, 0]
    assert buffers.transfer(Direction.D2H, 1024).deadline_s == math.inf


def test_steps_that_another_process_disturbed_are_measured_again(model: LoadedModel) -> None:
    """The clock jumps in the first repetitions: three in a row of the smallest step are lost to it."""

    class JumpyClock(TickingClock):
        num_looks = 0

        def __call__(self) -> float:
            self.num_looks += 1
            if self.num_looks < 40:
                self._now_s += 0.5
            return super().__call__()

    measured = measure(model, CONFIG, LIMITS, dataclasses.replace(tools(), now_s=JumpyClock()))
    check_measurements(measured)
    assert sum(point.num_dropped for point in (*measured.layers, *measured.held_out)) > 0
    assert max(point.p50_s for point in measured.layers) < 1e-3
