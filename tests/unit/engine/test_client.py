"""AsyncEngine and GroupStream against a connection that records what is sent."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from engine.client import AsyncEngine, EngineState, GroupStream
from engine.connection import EngineConnection
from engine.errors import (
    DuplicateGroup,
    EngineDied,
    EngineUnavailable,
    GroupAborted,
    GroupRefusedError,
    SlowConsumer,
)
from engine.messages import (
    AbortChoices,
    AddGroup,
    ChoiceDelta,
    GroupAdmitted,
    GroupRefused,
    Progress,
    Ready,
    StepOutputs,
    StepStats,
    ToEngine,
    TokenLogprob,
)
from tests.engine_harness import add_group
from tests.fakes import HandClock

PROMPT = (20, 21, 22)
READY = Ready(
    max_model_len=256,
    model_max_len=256,
    vocab_size=1000,
    eos_token_ids=(2,),
    block_size=4,
    num_blocks=64,
    dtype="int32",
    device="fake",
    weights_bytes=0,
    kv_cache_bytes=0,
    threads=1,
    load_s=0.0,
)
STATS = StepStats(
    step_id=0,
    step_s=0.01,
    overhead_s=0.001,
    predicted_s=None,
    num_running=1,
    num_waiting=0,
    num_waiting_by_class={},
    num_blocks_used=1,
    num_blocks=64,
    num_cached_blocks=0,
    prompt_tokens_computed=0,
    prompt_tokens_cached=0,
    recomputed_tokens=0,
    generation_tokens=0,
    wasted_tokens=0,
    num_preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
)


class RecordingConnection:
    """Takes messages while `is_connected`."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.is_connected = True

    def send(self, message: ToEngine) -> bool:
        if self.is_connected:
            self.sent.append(message)
        return self.is_connected

    @property
    def aborts(self) -> list[AbortChoices]:
        return [message for message in self.sent if isinstance(message, AbortChoices)]


def _engine(max_pending_tokens: int = 100) -> tuple[AsyncEngine, RecordingConnection, HandClock]:
    clock = HandClock()
    engine = AsyncEngine(clock, max_pending_tokens=max_pending_tokens)
    connection = RecordingConnection()
    engine.connect(cast(EngineConnection, connection))
    engine.dispatch(READY)
    return engine, connection, clock


def _step(*deltas: ChoiceDelta, admit: str | None = None, cached: int = 0) -> StepOutputs:
    admitted = () if admit is None else (_admitted(admit, cached),)
    return StepOutputs(admitted=admitted, deltas=deltas, stats=STATS)


def _admitted(group_id: str, cached: int = 0) -> GroupAdmitted:
    return GroupAdmitted(
        group_id=group_id, granted="standard", num_cached_tokens=cached, ttft_target_s=1.0, tpot_target_s=0.1
    )


def _delta(choice: int, *token_ids: int, finish: str | None = None, group_id: str = "g") -> ChoiceDelta:
    return ChoiceDelta(group_id=group_id, choice=choice, token_ids=token_ids, finish_reason=finish)


async def _collect(stream: GroupStream) -> list[tuple[ChoiceDelta, ...]]:
    return [deltas async for deltas in stream]


def test_deltas_that_nobody_read_are_merged_by_choice() -> None:
    async def run() -> None:
        engine, _, _ = _engine()
        async with engine.add(add_group("g", PROMPT, n=2)) as stream:
            logprob = TokenLogprob(5, -0.1, (), ())
            engine.dispatch(_step(_delta(0, 5), _delta(1, 6), admit="g"))
            engine.dispatch(
                _step(ChoiceDelta(group_id="g", choice=0, token_ids=(7,), logprobs=(logprob,), stop_token_id=None))
            )
            engine.dispatch(_step(ChoiceDelta(group_id="g", choice=0, prompt_logprobs=(logprob,))))
            assert stream.num_pending_tokens == 3
            first, second = await anext(stream)
            assert first.token_ids == (5, 7) and second.token_ids == (6,)
            assert first.logprobs == first.prompt_logprobs == (logprob,)
            assert stream.num_pending_tokens == 0
            engine.dispatch(_step(_delta(0, 8, finish="length"), _delta(1, finish="stop")))
            assert await _collect(stream) == [(_delta(0, 8, finish="length"), _delta(1, finish="stop"))]

    asyncio.run(run())


def test_a_stream_waits_for_what_comes_later() -> None:
    async def run() -> None:
        engine, _, _ = _engine()
        async with engine.add(add_group("g", PROMPT)) as stream:
            reader = asyncio.create_task(_collect(stream))
            admission = asyncio.create_task(stream.admission())
            await asyncio.sleep(0)
            engine.dispatch(_step(_delta(0, 5), admit="g", cached=3))
            assert (await admission).num_cached_tokens == 3
            engine.dispatch(_step(_delta(0, 6, finish="length")))
            assert [d.token_ids for (d,) in await reader] in ([(5,), (6,)], [(5, 6)])

    asyncio.run(run())


def test_cached_tokens_grow_as_further_prompts_start() -> None:
    async def run() -> None:
        engine, _, _ = _engine()
        async with engine.add(add_group("g", PROMPT, PROMPT)) as stream:
            assert stream.num_cached_tokens == 0
            engine.dispatch(_step(admit="g", cached=2))
            engine.dispatch(_step(admit="g", cached=5))
            assert (await stream.admission()).num_cached_tokens == stream.num_cached_tokens == 5

    asyncio.run(run())


def test_leaving_a_stream_aborts_what_is_unfinished_once() -> None:
    async def run() -> None:
        engine, connection, _ = _engine()
        async with engine.add(add_group("g", PROMPT, n=3)) as stream:
            engine.dispatch(_step(_delta(0, 1, 2), _delta(1, 3, finish="length"), admit="g"))
            await anext(stream)
            engine.dispatch(_step(_delta(0, 9)))
        stream.abort()
        assert connection.aborts == [AbortChoices(group_id="g", kept_tokens={0: 2, 2: 0})]
        assert engine.num_open_groups == 0
        engine.dispatch(_step(_delta(0, 4), _delta(2, 5)))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(run())


def test_leaving_a_finished_stream_sends_nothing() -> None:
    async def run() -> None:
        engine, connection, _ = _engine()
        async with engine.add(add_group("g", PROMPT)) as stream:
            engine.dispatch(_step(_delta(0, 1, finish="stop"), admit="g"))
            assert engine.num_open_groups == 0
            assert await _collect(stream) == [(_delta(0, 1, finish="stop"),)]
        assert connection.aborts == []

    asyncio.run(run())


def test_a_cancelled_task_aborts_its_group() -> None:
    async def run() -> None:
        engine, connection, _ = _engine()

        async def request() -> None:
            async with engine.add(add_group("g", PROMPT)) as stream:
                await stream.admission()

        task = asyncio.create_task(request())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert connection.aborts == [AbortChoices(group_id="g", kept_tokens={0: 0})]

    asyncio.run(run())


def test_an_aborted_choice_ends_with_the_engines_answer() -> None:
    async def run() -> None:
        engine, connection, _ = _engine()
        async with engine.add(add_group("g", PROMPT, n=2)) as stream:
            engine.dispatch(_step(_delta(0, 1, 2), admit="g"))
            await anext(stream)
            stream.abort_choice(0)
            stream.abort_choice(0)
            stream.abort_choice(1, kept_tokens=7)
            assert connection.aborts == [
                AbortChoices(group_id="g", choices=(0,), kept_tokens={0: 2}),
                AbortChoices(group_id="g", choices=(1,), kept_tokens={1: 7}),
            ]
            engine.dispatch(_step(_delta(0, finish="abort"), _delta(1, 3, finish="length")))
            assert await _collect(stream) == [(_delta(0, finish="abort"), _delta(1, 3, finish="length"))]
            stream.abort_choice(1)
        assert len(connection.aborts) == 2

    asyncio.run(run())


def test_a_refused_group_raises_the_reason() -> None:
    async def run() -> None:
        engine, connection, _ = _engine()
        refused = GroupRefused(group_id="g", reason="instance_full", message="full", retry_after_s=2.0)
        async with engine.add(add_group("g", PROMPT)) as stream:
            engine.dispatch(StepOutputs(refused=(refused,), stats=STATS))
            with pytest.raises(GroupRefusedError, match="full") as caught:
                await stream.admission()
            assert caught.value.refused is refused
        assert connection.aborts == [] and engine.num_open_groups == 0

    asyncio.run(run())


def test_a_group_aborted_before_it_started_says_so() -> None:
    async def run() -> None:
        engine, _, _ = _engine()
        async with engine.add(add_group("g", PROMPT)) as stream:
            stream.abort_choice(0)
            engine.dispatch(_step(_delta(0, finish="abort")))
            with pytest.raises(GroupAborted, match="before it started"):
                await stream.admission()

    asyncio.run(run())


def test_a_stream_that_is_not_read_is_closed_at_the_cap() -> None:
    async def run() -> None:
        engine, connection, _ = _engine(max_pending_tokens=10)
        async with engine.add(add_group("g", PROMPT, n=2, max_tokens=50)) as stream:
            engine.dispatch(_step(_delta(0, *range(5)), _delta(1, *range(5)), admit="g"))
            assert stream.num_pending_tokens == 10 and not connection.aborts
            engine.dispatch(_step(_delta(0, 6), _delta(1, 6)))
            assert stream.num_pending_tokens == 0 and len(connection.aborts) == 1
            with pytest.raises(SlowConsumer, match="11 tokens were not read, the cap is 10"):
                await anext(stream)
        assert len(connection.aborts) == 1 and engine.num_open_groups == 0

    asyncio.run(run())


def test_death_ends_open_streams_after_what_had_arrived() -> None:
    async def run() -> None:
        engine, _, _ = _engine()
        async with (
            engine.add(add_group("g", PROMPT)) as started,
            engine.add(add_group("waiting", PROMPT)) as waiting,
            engine.add(add_group("done", PROMPT)) as done,
        ):
            engine.dispatch(_step(_delta(0, 1), _delta(0, 2, finish="stop", group_id="done"), admit="g"))
            engine.disconnect(EngineDied("killed"))
            assert engine.state is EngineState.DEAD and engine.num_open_groups == 0
            assert (await anext(started))[0].token_ids == (1,)
            for stream in (started, waiting):
                with pytest.raises(EngineDied, match="killed"):
                    await anext(stream)
            with pytest.raises(EngineDied):
                await waiting.admission()
            assert [d.token_ids for (d,) in await _collect(done)] == [(2,)]
            with pytest.raises(EngineUnavailable, match="dead"):
                engine.add(add_group("new", PROMPT))

    asyncio.run(run())


def test_only_a_ready_engine_takes_groups() -> None:
    engine = AsyncEngine(HandClock())
    connection = RecordingConnection()
    engine.connect(cast(EngineConnection, connection))
    engine.dispatch(Progress(phase="loading weights", fraction=0.5))
    assert engine.progress is not None and engine.progress.fraction == 0.5
    with pytest.raises(EngineUnavailable, match="starting"):
        engine.add(add_group("g", PROMPT))
    engine.dispatch(READY)
    connection.is_connected = False
    with pytest.raises(EngineUnavailable, match="just ended"):
        engine.add(add_group("g", PROMPT))
    assert engine.num_open_groups == 0 and connection.sent == []


def test_group_ids_must_differ() -> None:
    engine, connection, _ = _engine()
    engine.add(add_group("g", PROMPT))
    with pytest.raises(DuplicateGroup):
        engine.add(add_group("g", PROMPT))
    assert sum(isinstance(message, AddGroup) for message in connection.sent) == 1


def test_silence_counts_only_while_there_is_work() -> None:
    engine, _, clock = _engine()
    clock.advance(60.0)
    assert engine.silent_s == 0.0
    engine.add(add_group("g", PROMPT))
    assert engine.silent_s == 0.0, "the hour of idleness before is not silence"
    clock.advance(3.0)
    engine.add(add_group("h", PROMPT))
    assert engine.silent_s == pytest.approx(3.0), "new requests do not hide a stall"
    engine.dispatch(_step(admit="g"))
    assert engine.silent_s == 0.0


def test_a_stalled_engine_takes_nothing_until_it_is_heard_again() -> None:
    engine, _, _ = _engine()
    engine.mark_stalled()
    assert engine.state is EngineState.STALLED
    with pytest.raises(EngineUnavailable, match="stalled"):
        engine.add(add_group("g", PROMPT))
    engine.dispatch(_step())
    assert engine.state is EngineState.READY


def test_steps_are_shown_to_the_hooks() -> None:
    engine, _, _ = _engine()
    seen: list[StepOutputs] = []
    engine.on_step.append(seen.append)
    step = _step(admit="unknown")
    engine.dispatch(step)
    assert seen == [step] and engine.stats is STATS


def test_a_thousand_streams_leave_nothing() -> None:
    async def run() -> None:
        engine, connection, _ = _engine()
        for i in range(1000):
            async with engine.add(add_group(f"g{i}", PROMPT)):
                pass
        assert engine.num_open_groups == 0 and len(connection.aborts) == 1000

    asyncio.run(run())
