"""The whole engine while layers go to the host and come back: the tokens of the engine that has them all."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.device_weights import DeviceWeights, StreamingNumbers
from engine.kv_cache import KVCache, bytes_per_block
from engine.model_config import ModelConfig
from engine.models.weights_placement import WeightSizes
from engine.weight_offload import WeightOffload
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from offload.arena import Arena, aligned
from offload.errors import OffloadError
from offload.host_link import HostLink
from offload.link import LinkStatus
from offload.link_config import LinkConfig
from offload.plan import ClassPlan, OffloadPlan
from offload.residency import ResidencyOrder
from tests.in_process_engine import InProcessEngine

BLOCK_SIZE = 4
NUM_LAYERS = 6
NUM_SLOTS = 2
MIN_STREAMED, MAX_STREAMED = 1, 6
OPTIONS = {"block_size": BLOCK_SIZE, "max_num_batched_tokens": 24, "max_num_seqs": 6, "max_model_len": 96}


class GaugedLink(HostLink):
    """Says of its bandwidth what a test wants."""

    bytes_per_s = 1e9

    def snapshot(self) -> LinkStatus:
        status = super().snapshot()
        h2d = dataclasses.replace(status.h2d, p50_bytes_per_s=self.bytes_per_s, p5_bytes_per_s=self.bytes_per_s)
        return dataclasses.replace(status, h2d=h2d)


class Rig:
    """A tiny model whose memory leaves room for about two short requests while few layers are streamed."""

    def __init__(self, path: Path, library: NativeLibrary | None, interactive_limit: int = 3) -> None:
        self._interactive_limit = interactive_limit
        self.link = GaugedLink(LinkConfig(1e9, 1e9))
        self.plan: OffloadPlan | None = None
        self.weights: DeviceWeights | None = None
        self.arena: Arena | None = None
        self.replanned_bytes_per_s: list[float] = []
        self.model = load_model(str(path), "float32", lambda _: None, library=library, place=self._place)

    def _place(self, config: ModelConfig, sizes: WeightSizes) -> DeviceWeights:
        unit = sizes.layer_bytes[0]
        block_bytes = bytes_per_block(config, torch.float32, BLOCK_SIZE)
        resident = (NUM_LAYERS - MIN_STREAMED) * aligned(unit)
        capacity = aligned(sizes.fixed_bytes) + resident + NUM_SLOTS * aligned(unit) + 26 * block_bytes
        numbers = StreamingNumbers(
            ResidencyOrder.spread(NUM_LAYERS), sizes.layer_bytes, MIN_STREAMED, MIN_STREAMED, MAX_STREAMED, NUM_SLOTS
        )
        self.arena = Arena(capacity)
        self.weights = DeviceWeights(sizes, self.arena, self.link, numbers, block_bytes)
        blocks = tuple(self.weights.kv_blocks_at(k) for k in range(MIN_STREAMED, MAX_STREAMED + 1))
        self.plan = make_plan(numbers, blocks, block_bytes, self._interactive_limit)
        return self.weights

    def engine(self) -> InProcessEngine:
        assert self.weights is not None
        return InProcessEngine(
            self.model, num_blocks=self.weights.max_kv_blocks, kv_memory=self.weights.kv_memory,
            make_offload=self.manager, **OPTIONS,
        )  # fmt: skip

    def manager(self, kv_cache: KVCache) -> WeightOffload:
        assert self.weights is not None
        assert self.arena is not None
        assert self.plan is not None
        self.offload = WeightOffload(self.weights, self.arena, self.link, self.plan, self._replan, kv_cache.set_border)
        return self.offload

    def _replan(self, bytes_per_s: float) -> OffloadPlan:
        self.replanned_bytes_per_s.append(bytes_per_s)
        assert self.plan is not None
        return self.plan


def make_plan(
    numbers: StreamingNumbers, blocks: tuple[int, ...], block_bytes: int, interactive_limit: int
) -> OffloadPlan:
    classes = tuple(
        ClassPlan(name, limit is not None, False, limit, 0.1, 0.01, 0.1, 0.01, "")
        for name, limit in (("realtime", None), ("interactive", interactive_limit), ("standard", 6), ("batch", 6))
    )
    values = {f.name: 0 for f in dataclasses.fields(OffloadPlan)}
    return OffloadPlan(**values | {
        "strategy": "interval", "streamed_layers": numbers.num_streamed, "streamed_unit": "layer",
        "unit_bytes": numbers.unit_bytes, "layer_order": numbers.order.layers, "min_streamed_layers": MIN_STREAMED,
        "max_streamed_layers": MAX_STREAMED, "num_slots": numbers.num_slots, "predicted_step_s": 0.01,
        "classes": classes, "ledger": {}, "block_bytes": block_bytes, "kv_blocks_by_k": blocks,
    })  # type: ignore[arg-type]  # fmt: skip


@contextlib.contextmanager
def opened(path: Path, library: NativeLibrary | None, **options: int) -> Iterator[Rig]:
    rig = Rig(path, library, **options)
    try:
        yield rig
    finally:
        rig.link.close()


@pytest.fixture(scope="module")
def deep_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_model import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("six_layers"), num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def whole(deep_model_path: Path, native_library: NativeLibrary) -> LoadedModel:
    return load_model(str(deep_model_path), "float32", lambda _: None, library=native_library)


prompts = st.lists(st.integers(1, 60), min_size=1, max_size=40)
arrivals = st.lists(
    st.tuples(prompts, st.sampled_from(["interactive", "standard", "batch"]), st.integers(1, 24), st.integers(0, 12)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offered=arrivals, pauses_s=st.lists(st.sampled_from([0.0, 0.0, 1.1, 3.0]), min_size=4, max_size=20))
def test_tokens_are_those_of_the_whole_model(
    deep_model_path: Path, native_library: NativeLibrary, whole: LoadedModel, offered, pauses_s
) -> None:
    """Native kernels: whatever is streamed, preempted, batched and moved, every token is the same."""
    with opened(deep_model_path, native_library) as rig:
        engine = rig.engine()
        waiting = sorted(enumerate(offered), key=lambda item: item[1][3])
        turn = 0
        while waiting or engine.core.num_live_choices:
            while waiting and waiting[0][1][3] <= turn:
                index, (prompt, slo, max_tokens, _) = waiting.pop(0)
                engine.submit(f"g{index}", [prompt], slo=slo, max_tokens=max_tokens)
            engine.turn()
            rig.offload.check()
            engine.clock.advance(pauses_s[turn % len(pauses_s)])
            turn += 1
            assert turn < 3000, "no progress"
        reference = InProcessEngine(whole, num_blocks=200, **OPTIONS)
        expected = {
            f"g{index}": reference.generate([prompt], max_tokens=max_tokens)[0]
            for index, (prompt, _, max_tokens, _) in enumerate(offered)
        }
        assert {name: engine.generated[name, 0].token_ids for name in expected} == expected


def run_load(engine: InProcessEngine, num_requests: int, slo: str = "standard", name: str = "") -> None:
    for index in range(num_requests):
        engine.submit(f"{name or slo}{index}", [[1 + index, 2, 3] * 10], slo=slo, max_tokens=40)


def test_need_streams_more_layers_and_idleness_brings_them_back(
    deep_model_path: Path, native_library: NativeLibrary
) -> None:
    with opened(deep_model_path, native_library) as rig:
        engine = rig.engine()
        run_load(engine, 6)
        engine.turn()
        assert engine.core.wait_s() == 0.0
        engine.turn()
        assert engine.stats is not None
        assert engine.stats.offload is not None
        raised = engine.stats.offload.num_streamed_layers
        assert raised > MIN_STREAMED, "six requests need more KV than there is at the least k"
        assert engine.stats.num_blocks == rig.weights.kv_blocks_at(raised)
        engine.run()
        for _ in range(400):
            if engine.stats.offload.num_streamed_layers == MIN_STREAMED:
                break
            assert engine.core.wait_s() is not None, "an idle engine that could come down looks again"
            engine.clock.advance(0.3)
            engine.turn()
            rig.link.drain()
            rig.offload.check()
        assert engine.stats.offload.num_streamed_layers == MIN_STREAMED
        assert engine.stats.offload.num_lowered == engine.stats.offload.num_raised >= raised - MIN_STREAMED
        assert engine.core.wait_s() is None, "nothing is left to do"


def test_a_class_holds_down_what_is_streamed(deep_model_path: Path, native_library: NativeLibrary) -> None:
    """While interactive requests run, memory is not bought with their deadlines: the others wait."""
    with opened(deep_model_path, native_library, interactive_limit=2) as rig:
        engine = rig.engine()
        run_load(engine, 2, "interactive")
        run_load(engine, 4, "standard")
        seen = []
        while engine.core.num_live_choices or not seen:
            outputs = engine.turn()
            seen.append((outputs.stats.offload.num_streamed_layers, engine.generated["interactive1", 0].finish_reason))
        assert max(k for k, finished in seen if finished is None) <= 2
        assert all(g.finish_reason == "length" for g in engine.generated.values())


def test_a_step_that_moves_other_bytes_than_planned_is_noticed(
    deep_model_path: Path, native_library: NativeLibrary
) -> None:
    with opened(deep_model_path, native_library) as rig:
        engine = rig.engine()
        run_load(engine, 6)
        for _ in range(3):
            engine.turn()
        assert rig.weights.num_streamed > NUM_SLOTS
        rig.offload.verify()
        wrong = dataclasses.replace(rig.plan, unit_bytes=tuple(n + 256 for n in rig.plan.unit_bytes))
        rig.offload._plan = wrong
        with pytest.raises(OffloadError, match=r"moved [\d,]+ bytes, the plan has"):
            rig.offload.verify()


def test_a_link_that_changes_is_planned_for_anew_and_small_changes_are_not(
    deep_model_path: Path, native_library: NativeLibrary
) -> None:
    with opened(deep_model_path, native_library) as rig:
        engine = rig.engine()
        for bytes_per_s, num_replans in ((1e9, 0), (0.95e9, 0), (0.5e9, 1), (0.52e9, 1), (1e9, 2)):
            rig.link.bytes_per_s = bytes_per_s
            run_load(engine, 1, "batch", f"at {bytes_per_s} ")
            engine.run()
            assert len(rig.replanned_bytes_per_s) == num_replans
            assert engine.stats is not None
            assert engine.stats.offload is not None
            assert engine.stats.offload.num_replans == num_replans
        assert rig.replanned_bytes_per_s == [0.5e9, 1e9]
