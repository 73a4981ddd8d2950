"""The whole engine while layers go to the host and come back: the tokens of the engine that has them all."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from offload.errors import OffloadError
from offload.plan import OffloadPlan
from offload.residency_controller import SPARE_TO_RAISE
from offload.transfer import Direction
from scheduler.output import MemoryDemand, SchedulerOutput
from tests.in_process_engine import InProcessEngine
from tests.offload_rig import (
    MAX_STREAMED,
    MIN_STREAMED,
    NUM_LAYERS,
    NUM_SLOTS,
    OPTIONS,
    S_PER_STREAMED_LAYER,
    Rig,
    opened,
)


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


def test_a_promise_of_its_own_holds_down_what_is_streamed(deep_model_path: Path, native_library: NativeLibrary) -> None:
    """A client's target that the plan keeps with 3 layers and not with 4, while more are wanted; then nobody's."""
    with opened(deep_model_path, native_library) as rig:
        engine = rig.engine()
        tpot_s = 3.5 * S_PER_STREAMED_LAYER / (1.0 - SPARE_TO_RAISE)
        engine.submit("tight", [[7, 8, 9]], tpot_s=tpot_s, max_tokens=40)
        engine.turn()
        run_load(engine, 5)
        seen = []
        while engine.core.num_live_choices:
            engine.turn()
            rig.offload.check()
            seen.append((rig.weights.num_streamed, engine.generated["tight", 0].finish_reason))
        assert max(k for k, finished in seen if finished is None) == 3
        run_load(engine, 6, name="later")
        engine.turn()
        engine.turn()
        assert rig.weights.num_streamed > 3
        engine.run()


def tell(rig: Rig, demand: MemoryDemand, now_s: float) -> int:
    """One turn of the loop that computes nothing; what is streamed after it."""
    rig.offload.begin(SchedulerOutput(0, now_s, (), demand=demand), now_s)
    rig.offload.end()
    rig.offload.check()
    return rig.weights.num_streamed


def settle(rig: Rig, demand: MemoryDemand, now_s: float, num_turns: int = 60) -> list[int]:
    """The same demand for some turns, every copy done in between; each k that was reached."""
    seen = []
    for turn in range(num_turns):
        seen.append(tell(rig, demand, now_s + turn * 1e-3))
        rig.link.drain()
    return seen


def test_layers_come_back_at_once_and_stay_where_requests_were_late(
    deep_model_path: Path, native_library: NativeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "engine.weight_offload")
    with opened(deep_model_path, native_library) as rig:
        rig.engine()
        wanted = MemoryDemand(10_000, 0, ("standard",), 0.1, 0.03)
        assert settle(rig, wanted, 0.0)[-1] == MAX_STREAMED
        late = dataclasses.replace(wanted, decode_s=0.2, is_late=True)
        seen = settle(rig, late, 1.0)
        assert seen == sorted(seen, reverse=True) and seen[-1] == NUM_SLOTS, "below that nothing is copied"
        assert set(settle(rig, wanted, 1.1)) == {NUM_SLOTS}, "where they were late it stays away"
        assert settle(rig, wanted, 30.0)[-1] == MAX_STREAMED, "for a while"
        reasons = [record.getMessage().split("(")[1].split(")")[0] for record in caplog.records]
        assert reasons == ["memory", *["late"] * (MAX_STREAMED - NUM_SLOTS), "memory"]


def test_blocks_in_use_beyond_the_border_are_waited_for_however_late(
    deep_model_path: Path, native_library: NativeLibrary
) -> None:
    with opened(deep_model_path, native_library) as rig:
        rig.engine()
        settle(rig, MemoryDemand(10_000, 0, ("standard",), 0.1, 0.03), 0.0)
        late = MemoryDemand(10_000, 3, ("standard",), 0.1, 0.2, True)
        assert set(settle(rig, late, 1.0)) == {MAX_STREAMED}
        border = rig.offload.snapshot().num_blocks
        assert border == rig.weights.kv_blocks_at(MAX_STREAMED - 1), "nothing beyond it is handed out"
        assert settle(rig, dataclasses.replace(late, num_blocks_beyond=0), 1.1)[-1] == NUM_SLOTS


demands = st.tuples(
    st.integers(0, 200),
    st.sampled_from([0, 0, 0, 5]),
    st.sampled_from([None, 0.025, 0.04, 0.055, 0.2]),
    st.sampled_from([None, 0.01, 0.03, 0.05, 0.3]),
    st.booleans(),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.3, 1.1, 12.0]),
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(demands, min_size=1, max_size=15))
def test_k_follows_any_demand_within_what_was_promised(
    deep_model_path: Path, native_library: NativeLibrary, script
) -> None:
    """Up only for need and as far as the promise bears it; down one layer at a time; never up while one is late."""
    with opened(deep_model_path, native_library) as rig:
        rig.engine()
        now_s, k = 0.0, rig.weights.num_streamed
        for wanted, beyond, tpot_s, decode_s, is_slow, num_turns, pause_s in script:
            is_late = is_slow and tpot_s is not None and decode_s is not None and decode_s > tpot_s
            demand = MemoryDemand(wanted, beyond, ("standard",), tpot_s, decode_s, is_late)
            for _ in range(num_turns):
                before, k = k, tell(rig, demand, now_s)
                rig.link.drain()
                now_s += 0.01
                assert MIN_STREAMED <= k <= MAX_STREAMED and k >= before - 1
                if k > before:
                    assert not (is_late and before > NUM_SLOTS)
                    assert rig.weights.kv_blocks_at(k - 1) < wanted * 1.05 + 1, "one layer less would have done"
                    if tpot_s is not None:
                        assert S_PER_STREAMED_LAYER * k <= (1.0 - SPARE_TO_RAISE) * tpot_s
                        assert decode_s is None or decode_s <= (1.0 - SPARE_TO_RAISE) * tpot_s
            now_s += pause_s


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
