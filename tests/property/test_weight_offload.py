"""The whole engine while layers go to the host and come back: the tokens of the engine that has them all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from offload.errors import OffloadError
from offload.plan import OffloadPlan
from offload.transfer import Direction
from tests.in_process_engine import InProcessEngine
from tests.offload_rig import MIN_STREAMED, NUM_LAYERS, NUM_SLOTS, OPTIONS, opened


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
        assert rig.predicted_beside_copies == {False: False, True: True}
        assert engine.stats.offload.quiet_compute_s == engine.stats.offload.num_steps * rig.predicted_s
        assert engine.stats.offload.compute_s > 0.0
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


def test_steps_that_compute_longer_than_recorded_are_planned_for_anew(
    deep_model_path: Path, native_library: NativeLibrary
) -> None:
    """As with a slow layer, a lowered clock, or a record of another machine."""
    with opened(deep_model_path, native_library) as rig:
        rig.num_watched_steps, rig.predicted_s = 8, 1e-7
        engine = rig.engine()
        run_load(engine, 2)
        engine.run()
        assert engine.stats is not None
        assert engine.stats.offload is not None
        assert 1 <= engine.stats.offload.num_replans == len(rig.compute_factors)
        assert min(rig.compute_factors) > 2.0, "no step takes a tenth of a microsecond"
        assert set(rig.replanned_bytes_per_s) == {1e9}, "the link is as it was"


@pytest.mark.parametrize("link_bytes_per_s", [None, 2e6])
def test_a_class_that_is_late_brings_layers_back_while_others_run(
    deep_model_path: Path, native_library: NativeLibrary, link_bytes_per_s: float | None
) -> None:
    """Also over a link that streamed layers keep busy: an urgent copy back goes first."""
    with opened(deep_model_path, native_library, interactive_limit=2) as rig:
        engine = rig.engine()
        run_load(engine, 6, "batch")
        for _ in range(3):
            engine.turn()
        assert rig.weights.num_streamed > 2
        for name in list(engine.generated)[2:]:
            engine.abort(name[0])
        if link_bytes_per_s is not None:
            rig.link.set_cap(Direction.H2D, link_bytes_per_s)
        engine.submit("late", [[5, 6]], slo="interactive", max_tokens=60)
        seen = []
        while engine.generated["late", 0].finish_reason is None:
            engine.turn()
            rig.offload.check()
            seen.append(rig.weights.num_streamed)
        assert seen[-1] == 2, f"still at {seen[-1]} after {len(seen)} steps"
        engine.run()


def test_a_class_that_closed_is_tried_again_after_a_while_without_steps(
    deep_model_path: Path, native_library: NativeLibrary
) -> None:
    """Only steps show that a link has recovered, and a closed class alone makes none."""
    with opened(deep_model_path, native_library) as rig:
        first = rig.plan
        rig.replan = lambda bytes_per_s, factor: closed(first)
        engine = rig.engine()
        rig.link.bytes_per_s = 0.3e9
        run_load(engine, 1, "batch")
        engine.run()
        assert rig.offload.plan is not first
        engine.submit("early", [[1, 2]], slo="interactive")
        engine.turn()
        assert "early" in engine.refused
        rig.link.bytes_per_s = 1e9
        for _ in range(40):
            wait_s = engine.core.wait_s()
            if wait_s is None:
                break
            engine.clock.advance(wait_s)
            engine.turn()
        assert rig.offload.plan is first
        engine.submit("later", [[1, 2]], slo="interactive", max_tokens=3)
        engine.run()
        assert len(engine.generated["later", 0].token_ids) == 3


def closed(plan: OffloadPlan) -> OffloadPlan:
    """With `interactive` closed."""
    classes = tuple(
        dataclasses.replace(c, is_open=c.name != "interactive", max_streamed_layers=None) for c in plan.classes
    )
    return dataclasses.replace(plan, classes=classes)


def test_a_class_opens_only_with_something_to_spare(deep_model_path: Path, native_library: NativeLibrary) -> None:
    """So that one at the edge does not open and close with every measurement."""
    with opened(deep_model_path, native_library) as rig:
        first = rig.plan
        rig.replan = lambda bytes_per_s, factor: first if bytes_per_s >= 0.8e9 else closed(first)
        engine = rig.engine()
        opened_at = []
        for bytes_per_s in (0.5e9, 0.81e9, 0.5e9, 0.85e9, 0.95e9):
            rig.link.bytes_per_s = bytes_per_s
            run_load(engine, 1, "batch", f"at {bytes_per_s} {len(opened_at)} ")
            engine.run()
            opened_at.append({c.name: c.is_open for c in rig.offload.plan.classes}["interactive"])
        assert opened_at == [False, False, False, False, True]
