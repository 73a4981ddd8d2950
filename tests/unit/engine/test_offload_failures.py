"""What goes wrong while weights are streamed ends what it must and nothing else; what is right stays right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.layers.slab import Slab
from engine.process import warm_up
from engine.process_config import ProcessConfig
from engine.runner_factory import BuiltRunner
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from offload.errors import OffloadError
from offload.link import LinkError
from offload.plan import OffloadPlan
from scheduler.config import SchedulerConfig
from scheduler.slo import DEFAULT_CLASSES
from tests.fake_link import FakeLink
from tests.fakes import HandClock, InjectedFault
from tests.in_process_engine import InProcessEngine
from tests.offload_rig import MAX_STREAMED, NUM_LAYERS, OPTIONS, Rig, opened
from tests.paged_decoding import PagedDecoding
from tests.streamed_model import StreamedModel, Streaming
from tests.tiny_model import make_tiny_llama

PROMPT = [7, 3, 9, 1, 4, 4, 2, 8, 5]
SLOW_BYTES_PER_S = 1e6
"""A layer takes longer than the tests compute: copies are under way all the time."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("six_layers"), num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def whole(model_path: Path, native_library: NativeLibrary) -> LoadedModel:
    """On the device, all of it."""
    return load_model(str(model_path), "float32", lambda _: None, library=native_library)


@pytest.fixture
def rig(model_path: Path, native_library: NativeLibrary) -> Iterator[Rig]:
    """Over a fake link, where at least five of six layers are streamed through two slots."""
    with opened(model_path, native_library, min_streamed=5, link=FakeLink(SLOW_BYTES_PER_S)) as rig:
        yield rig


def under_way(rig: Rig) -> list[int]:
    """Layers that are being copied."""
    assert rig.weights is not None
    return [slot.unit.layer for slot in rig.weights._streamer._slots if slot.is_loading and slot.unit is not None]


def break_computation(rig: Rig, patch: pytest.MonkeyPatch, layer: int) -> None:
    assert rig.weights is not None
    acquire = rig.weights.acquire

    def broken(each: int) -> Slab:
        slab = acquire(each)
        if each == layer:
            assert under_way(rig), "the test wants copies under way"
            raise InjectedFault(f"layer {layer}")
        return slab

    patch.setattr(rig.weights, "acquire", broken)


def break_copies(rig: Rig, patch: pytest.MonkeyPatch, layer: int) -> None:
    """That of the layer that the next step needs first, whichever it is."""
    assert rig.weights is not None
    first = min(under_way(rig))
    (handle,) = [s.handle for s in rig.weights._streamer._slots if s.unit is not None and s.unit.layer == first]
    rig.link.fail(handle, OSError("a fault"))


@pytest.mark.parametrize(
    ("fault", "layer"), [(break_computation, 1), (break_computation, 3), (break_computation, 5), (break_copies, 0)]
)
def test_a_step_that_fails_with_copies_under_way_leaves_nothing_behind(
    rig: Rig,
    whole: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Rig, pytest.MonkeyPatch, int], None],
    layer: int,
) -> None:
    engine = rig.engine()
    for index in range(2):
        engine.submit(f"lost{index}", [PROMPT[index:]], max_tokens=20)
    for _ in range(3):
        engine.turn()
    with monkeypatch.context() as patch:
        fault(rig, patch, layer)
        engine.turn()
    rig.offload.check()
    assert {engine.generated[f"lost{index}", 0].finish_reason for index in range(2)} == {"error"}
    (got,) = engine.generate([PROMPT], max_tokens=12)
    (expected,) = InProcessEngine(whole, num_blocks=200, **OPTIONS).generate([PROMPT], max_tokens=12)
    assert got == expected
    assert engine.stats is not None
    assert engine.stats.num_blocks_used == 0
    rig.link.advance_to_idle()
    rig.offload.check()
    rig.link.check()
    assert rig.link.snapshot().h2d.queued_bytes.get("weights", 0) == 0


def test_a_dead_link_ends_the_engine_and_is_not_waited_for(rig: Rig) -> None:
    """The supervisor starts another process, which opens another link."""
    engine = rig.engine()
    engine.submit("g", [PROMPT], max_tokens=20)
    engine.turn()
    rig.link.die(OSError("the copier fell over"))
    with pytest.raises(LinkError, match="the copier fell over"):
        for _ in range(3):
            engine.turn()


@pytest.mark.parametrize(("first", "second"), [(6, 1), (1, 6), (0, 5), (5, 4), (3, 3)])
def test_k_changed_twice_between_two_steps_with_copies_under_way(
    model_path: Path, native_library: NativeLibrary, whole: LoadedModel, first: int, second: int
) -> None:
    """The last wish counts; what the link still writes is nobody's until it is over."""
    model = StreamedModel(
        model_path, "float32", native_library, Streaming(4, num_slots=2, bytes_per_s=SLOW_BYTES_PER_S)
    )
    reference = PagedDecoding(whole.decoder, num_blocks=24)
    for index in range(6):
        tokens = {0: [PROMPT[index]], 1: PROMPT[index:]}
        assert torch.equal(model.step(tokens)[1], reference.step(tokens)[1])
        if index < 3:
            assert index or any(slot.is_loading for slot in model.weights._streamer._slots)
            model.weights.set_streamed(first)
            model.weights.set_streamed(second)
            model.check()
    for _ in range(NUM_LAYERS):
        model.link.advance_to_idle()
        model.step({0: PROMPT[:1]})
    assert model.weights.num_streamed == second


@pytest.mark.parametrize("max_num_batched_tokens", [13, 24, 64])
@pytest.mark.parametrize("min_streamed", [1, 3, 6])
def test_tokens_do_not_depend_on_k_chunks_or_preemption(
    model_path: Path, native_library: NativeLibrary, whole: LoadedModel, max_num_batched_tokens: int, min_streamed: int
) -> None:
    prompts = [[(5 * index + place * place) % 90 + 3 for place in range(12 + 2 * index)] for index in range(12)]
    expected = InProcessEngine(whole, num_blocks=300, **OPTIONS).generate(prompts, max_tokens=55)
    with opened(model_path, native_library, min_streamed=min_streamed, link=FakeLink(1e8)) as rig:
        engine = rig.engine(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=12)
        assert engine.generate(prompts, max_tokens=55) == expected
        assert engine.stats is not None
        assert engine.stats.offload is not None
        assert engine.stats.num_preemptions > 0
        assert engine.stats.offload.num_raised == MAX_STREAMED - min_streamed
        assert engine.stats.offload.num_loads > 0


def test_a_layer_does_not_come_back_while_a_request_uses_its_place(
    model_path: Path, native_library: NativeLibrary, whole: LoadedModel
) -> None:
    """One request of six outlives the others, with blocks beyond the border that less need would allow."""
    prompts = [[11 + index, *PROMPT, 5] * 4 for index in range(6)]
    with opened(model_path, native_library, link=FakeLink(1e8)) as rig:
        engine = rig.engine()
        for index, prompt in enumerate(prompts):
            engine.submit(f"g{index}", [prompt], max_tokens=45 if index == 5 else 4)
        while any(engine.generated[f"g{index}", 0].finish_reason is None for index in range(5)):
            engine.turn()
        assert rig.weights is not None
        (last,) = engine.core._scheduler._running
        raised, seen = rig.weights.num_streamed, set()
        assert max(last.block_ids) >= rig.weights.kv_blocks_at(raised - 1), "the test wants one beyond it"
        while engine.core.num_live_choices > 0:
            engine.clock.advance(0.5)
            engine.turn()
            rig.link.advance_to_idle()
            rig.offload.check()
            seen.add((rig.weights.num_streamed, rig.offload.snapshot().num_blocks))
        assert (raised, rig.weights.kv_blocks_at(raised - 1)) in seen, "the fence is up: nothing more goes there"
        assert {num_streamed for num_streamed, _ in seen} == {raised}
        expected = InProcessEngine(whole, num_blocks=200, **OPTIONS).generate([prompts[5]], max_tokens=45)
        assert [engine.generated["g5", 0].token_ids] == expected
        for _ in range(30):
            engine.clock.advance(1.1)
            engine.turn()
            rig.link.advance_to_idle()
        assert rig.weights.num_streamed < raised


def served(rig: Rig, engine: InProcessEngine) -> tuple[ProcessConfig, BuiltRunner]:
    """As a process builds it."""
    assert rig.weights is not None
    num_blocks = rig.weights.max_kv_blocks
    config = ProcessConfig(
        EngineConfig("tiny", threads=1),
        SchedulerConfig(
            block_size=OPTIONS["block_size"],
            max_num_seqs=OPTIONS["max_num_seqs"],
            max_num_batched_tokens=OPTIONS["max_num_batched_tokens"],
        ),
        "",
        "",
        parent_pid=1,
        classes=DEFAULT_CLASSES,
        default_class="standard",
    )
    built = BuiltRunner(
        runner=engine.runner, num_blocks=num_blocks, max_model_len=OPTIONS["max_model_len"], model_max_len=1024,
        vocab_size=400, eos_token_ids=(2,), dtype="float32", device="cpu", weights_bytes=1, kv_cache_bytes=1,
        threads=1, offload=rig.offload,
    )  # fmt: skip
    return config, built


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["as planned", "half of each layer"])
def test_a_warm_up_that_moves_other_bytes_than_planned_fails_the_start(rig: Rig, share: float) -> None:
    """Of real steps. `test_a_start_that_moves_nothing_says_so` is the process around it."""
    assert rig.plan is not None
    rig.plan = dataclasses.replace(rig.plan, unit_bytes=tuple(int(n * share) for n in rig.plan.unit_bytes))
    config, built = served(rig, rig.engine())
    for _ in range(2):
        warm_up(config, built, HandClock(tick_s=1e-4))
    if share == 1.0:
        built.offload.verify()
        assert rig.link.snapshot().h2d.totals["weights"].num_bytes > 0
        return
    with pytest.raises(OffloadError, match=r"with 5 streamed layers moved [\d,]+ bytes, the plan has"):
        built.offload.verify()


class DroppingRig(Rig):
    """Below half of the planned bandwidth interactive is closed and standard is best effort."""

    def replan(self, bytes_per_s: float, compute_factor: float) -> OffloadPlan:
        made = super().replan(bytes_per_s, compute_factor)
        if bytes_per_s > 0.5e9:
            return made
        classes = {
            "interactive": {"is_open": False, "max_streamed_layers": None, "floor_tpot_s": 0.07},
            "standard": {"is_best_effort": True, "max_streamed_layers": None},
        }
        return dataclasses.replace(
            made, classes=tuple(dataclasses.replace(each, **classes.get(each.name, {})) for each in made.classes)
        )


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_a_drop_of_the_link_closes_a_class_until_it_recovers(
    model_path: Path, native_library: NativeLibrary, factor: float
) -> None:
    rig = DroppingRig(model_path, native_library)
    try:
        engine = rig.engine()
        engine.generate([PROMPT], slo="interactive")
        rig.link.bytes_per_s = factor * 1e9
        engine.turn()
        engine.submit("late", [PROMPT], slo="interactive")
        outputs = engine.turn()
        assert [refused.reason for refused in outputs.refused] == ["slo_infeasible"]
        assert "70 ms per output token" in engine.refused["late"]
        engine.submit("effort", [PROMPT], slo="standard")
        assert [admitted.is_best_effort for admitted in engine.turn().admitted] == [True]
        engine.run()
        rig.link.bytes_per_s = 1e9
        engine.turn()
        assert len(engine.generate([PROMPT], slo="interactive")[0]) == 16
    finally:
        rig.link.close()
