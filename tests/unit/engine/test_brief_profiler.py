"""The brief profile of a tiny model: what it measures, and how little it takes of a model that is not tiny."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
from torch import Tensor

from engine.brief_profiler import BUDGET_S, ServingParts, TooSlowError, measure_brief
from engine.kv_cache import KVCache
from engine.latency_fit import features_of, fit_latency
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.models.decoder import Decoder
from engine.profile_grid import ProfileLimits, brief_grid, brief_held_out_grid
from engine.trials import FEWEST_REPEATS
from engine.weights import LoadedModel, load_model
from kernels.attention.base import AttentionMetadata
from kernels.native_library import NativeLibrary
from offload.measurements import LayerPoint, Measurements
from offload.record import PerformanceRecord
from offload.record_check import check_measurements
from offload.step_load import StepLoad
from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from tests.record_builders import make_fingerprint

CONFIG = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4)
NUM_BLOCKS = 8
PROMISED_S = 15.0


class HandClock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class PacedDecoder:
    """Computes, and lets a clock move as if a large model did: as long as its weights are read, or its tokens take."""

    def __init__(self, decoder: Decoder, clock: HandClock, read_s: float, token_s: float) -> None:
        self._decoder = decoder
        self._clock = clock
        self._read_s, self._token_s = read_s, token_s
        self.config, self.dtype, self.weights = decoder.config, decoder.dtype, decoder.weights
        self.disturbed_steps: set[int] = set()
        """Those that take three times as long."""
        self.num_steps = 0

    def step_s(self, num_tokens: int) -> float:
        return max(self._read_s, self._token_s * num_tokens)

    def forward(
        self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE
    ) -> Tensor:
        factor = 3.0 if self.num_steps in self.disturbed_steps else 1.0
        self.num_steps += 1
        self._clock.now_s += factor * self.step_s(len(token_ids))
        return self._decoder.forward(token_ids, kv_cache, metadata, gate)

    def logits(self, hidden: Tensor) -> Tensor:
        self._clock.now_s += self._read_s / 20
        return self._decoder.logits(hidden)


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> LoadedModel:
    return load_model(str(tiny_model_path), "float32", lambda _: None)


def _parts(model: LoadedModel, config: SchedulerConfig = CONFIG, num_blocks: int = NUM_BLOCKS) -> ServingParts:
    kv_cache = KVCache(model.config, model.dtype, num_blocks, config.block_size)
    return ServingParts(model, kv_cache, None, config, max_model_len=num_blocks * config.block_size)


def _paced(
    model: LoadedModel, read_s: float, token_s: float, config: SchedulerConfig = CONFIG, num_blocks: int = NUM_BLOCKS
) -> tuple[ServingParts, PacedDecoder, HandClock]:
    clock = HandClock()
    decoder = PacedDecoder(cast(Decoder, model.decoder), clock, read_s, token_s)
    parts = _parts(dataclasses.replace(model, decoder=cast(Any, decoder)), config, num_blocks)
    return parts, decoder, clock


def _predicted_s(measured: Measurements, num_tokens: int) -> float:
    """A prefill of so many tokens."""
    model = LatencyModel(fit_latency(PerformanceRecord(make_fingerprint(), measured)))
    return model.mean_s(features_of(LayerPoint(num_tokens, 1, num_tokens, (1.0,))), NO_LINK)


@pytest.mark.parametrize("is_native", [False, True])
def test_a_sketch_is_measured_and_marked_as_brief(
    tiny_model_path: Path, request: pytest.FixtureRequest, is_native: bool
) -> None:
    library: NativeLibrary | None = request.getfixturevalue("native_library") if is_native else None
    parts = _parts(load_model(str(tiny_model_path), "float32", lambda _: None, library=library))
    told: list[float] = []
    measured = measure_brief(parts, told.append)
    check_measurements(measured)
    limits = ProfileLimits(4, 32, 128, 128)
    assert [point.load for point in measured.layers] == [shape.load for shape in brief_grid(limits)]
    assert [point.load for point in measured.held_out] == [shape.load for shape in brief_held_out_grid(limits)]
    assert all(len(point.samples_s) + point.num_dropped >= FEWEST_REPEATS for point in measured.layers)
    assert {point.num_rows for point in measured.head} >= {1, 2, 4}
    assert measured.is_brief and not measured.link and not measured.interference
    assert (measured.max_num_sequences, measured.max_num_tokens) == (4, 32)
    assert told == sorted(told) and told[-1] == 1.0
    assert 0.0 < _predicted_s(measured, 1) <= _predicted_s(measured, 32)


def test_a_large_cache_is_touched_in_its_first_blocks_only(model: LoadedModel) -> None:
    parts = _parts(model, num_blocks=200)
    measure_brief(parts)
    is_written = parts.kv_cache.region.flatten(1).any(-1)
    assert is_written[:128].all() and not is_written[128:].any()


@pytest.mark.parametrize(
    ("read_s", "token_s"), [(0.002, 0.0004), (0.01, 0.003), (0.05, 0.01), (0.3, 0.06), (0.8, 0.15)]
)
def test_no_model_takes_longer_than_promised_and_large_chunks_are_foretold(
    model: LoadedModel, read_s: float, token_s: float
) -> None:
    """From 135 million to 8 billion parameters on a few processors; what time does not hold is extrapolated."""
    parts, decoder, clock = _paced(model, read_s, token_s, SchedulerConfig(), num_blocks=64)
    measured = measure_brief(parts, now_s=clock)
    check_measurements(measured)
    assert clock.now_s <= PROMISED_S
    assert _predicted_s(measured, 1) == pytest.approx(decoder.step_s(1) + read_s / 20, rel=0.03)
    assert _predicted_s(measured, 512) == pytest.approx(decoder.step_s(512), rel=0.15)


def test_of_a_small_model_all_is_repeated_within_the_budget(model: LoadedModel) -> None:
    parts, _, clock = _paced(model, 0.002, 0.0004, SchedulerConfig(), num_blocks=64)
    measured = measure_brief(parts, now_s=clock)
    assert clock.now_s <= BUDGET_S
    assert max(point.num_tokens for point in measured.layers) == 512
    assert min(len(point.samples_s) for point in measured.layers) == FEWEST_REPEATS


def test_points_go_before_the_time_does_and_the_least_needed_first(model: LoadedModel) -> None:
    parts, _, clock = _paced(model, 0.3, 0.06, SchedulerConfig(), num_blocks=64)
    measured = measure_brief(parts, now_s=clock)
    loads = [point.load for point in measured.layers]
    assert StepLoad.decode(1, 64) in loads and StepLoad(16, 1, 16) in loads and StepLoad.decode(8, 64) in loads
    assert StepLoad(512, 1, 512) not in loads and StepLoad(256, 1, 256) not in loads
    assert all(len(point.samples_s) == 1 for point in measured.layers)


def test_a_model_of_which_nothing_can_be_measured_in_time_is_given_up_at_once(model: LoadedModel) -> None:
    parts, decoder, clock = _paced(model, 3.0, 0.5)
    with pytest.raises(TooSlowError, match=r"a step of one token takes 3\.\d s; at most 2 s are waited for"):
        measure_brief(parts, now_s=clock)
    assert decoder.num_steps == 1
    parts, _, clock = _paced(model, 1.9, 0.4, SchedulerConfig(), num_blocks=64)
    with pytest.raises(TooSlowError, match="a chunk of 16 tokens is not to be measured within 12 s"):
        measure_brief(parts, now_s=clock)
    assert clock.now_s <= PROMISED_S


def test_what_another_process_disturbed_does_not_count(model: LoadedModel) -> None:
    parts, decoder, clock = _paced(model, 0.002, 0.0004)
    quiet = measure_brief(parts, now_s=clock)
    parts, decoder, clock = _paced(model, 0.002, 0.0004)
    decoder.disturbed_steps = set(range(25, 40))
    disturbed = measure_brief(parts, now_s=clock)
    assert sum(point.num_dropped for point in disturbed.layers) > 0
    assert [point.p50_s for point in disturbed.layers] == pytest.approx([point.p50_s for point in quiet.layers])


def test_steps_that_contradict_larger_ones_are_repeated(model: LoadedModel) -> None:
    """All repetitions of the first steps are lost, as where a process starts beside."""
    parts, decoder, clock = _paced(model, 0.3, 0.06, SchedulerConfig(), num_blocks=64)
    num_before = _num_steps_before_the_points(model)
    decoder.disturbed_steps = {num_before}
    measured = measure_brief(parts, now_s=clock)
    decode = measured.layers[0]
    assert decode.load == StepLoad.decode(1, 64) and decode.num_dropped == 1
    assert decode.p50_s * measured.num_layers == pytest.approx(0.3)


def _num_steps_before_the_points(model: LoadedModel) -> int:
    """Steps of one token and those of the overhead, found by the loads that the decoder saw."""
    parts, decoder, clock = _paced(model, 0.3, 0.06, SchedulerConfig(), num_blocks=64)
    seen: list[int] = []
    forward = decoder.forward

    def noted(token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE) -> Tensor:
        seen.append(max(metadata.context_lens))
        return forward(token_ids, kv_cache, metadata, gate)

    decoder.forward = noted  # type: ignore[method-assign]
    measure_brief(parts, now_s=clock)
    return seen.index(64)
