"""A real engine process with a fake runner: faults, restarts, cancellation, shutdown."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from engine.client import EngineState
from engine.config import EngineConfig
from engine.errors import EngineDied, EngineStartError, EngineUnavailable, GroupRefusedError, SlowConsumer
from engine.messages import AddGroup, ChoiceDelta, StepOutputs
from engine.replay import replay
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.backoff import Backoff
from server.ipc_directory import sweep_dead_directories
from server.supervisor import Supervisor
from tests.engine_harness import add_group
from tests.fakes import CRASH_TOKEN_ID, fake_output

DEADLINE_S = 20.0
PROMPT = tuple(range(20, 53))
FAKE_ENGINE = (sys.executable, "-P", "-m", "tests.fake_engine")


def _supervisor(
    *arguments: str,
    command: tuple[str, ...] = FAKE_ENGINE,
    stall_timeout_s: float = 10.0,
    max_pending_tokens: int = 8192,
    event_log_path: str | None = None,
    max_num_seqs: int = 64,
    kv_cache_memory_bytes: int = 1024**2,
) -> Supervisor:
    return Supervisor(
        EngineConfig("no model", event_log_path=event_log_path, threads=1, kv_cache_memory_bytes=kv_cache_memory_bytes),
        SchedulerConfig(max_num_seqs=max_num_seqs),
        SLOClasses(),
        stall_timeout_s=stall_timeout_s,
        max_pending_tokens=max_pending_tokens,
        command=(*command, *arguments),
        backoff=Backoff(first_s=0.01),
    )


@asynccontextmanager
async def _running(supervisor: Supervisor) -> AsyncIterator[Supervisor]:
    await asyncio.wait_for(supervisor.start(), DEADLINE_S)
    try:
        yield supervisor
    finally:
        await asyncio.wait_for(supervisor.stop(), DEADLINE_S)


async def _until(condition: Callable[[], bool], what: str) -> float:
    """Wait for a condition; how long it took in seconds."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < DEADLINE_S, f"waited {DEADLINE_S} s for: {what}"
        await asyncio.sleep(0.005)
    return time.monotonic() - started_s


def _group(group_id: str, *prompts: tuple[int, ...], **options: object) -> AddGroup:
    return add_group(group_id, *(prompts or (PROMPT,)), arrival_s=time.monotonic(), **options)  # type: ignore[arg-type]


async def _generate(supervisor: Supervisor, group: AddGroup) -> list[ChoiceDelta]:
    async with supervisor.engine.add(group) as stream:
        await stream.admission()
        return [delta async for deltas in stream for delta in deltas]


async def _assert_works(supervisor: Supervisor, group_id: str = "works") -> None:
    deltas = await _generate(supervisor, _group(group_id, max_tokens=5))
    assert tuple(token for delta in deltas for token in delta.token_ids) == fake_output(PROMPT, 5)
    assert deltas[-1].finish_reason == "length"


def test_groups_stream_side_by_side() -> None:
    async def run() -> None:
        seen: list[StepOutputs] = []
        async with _running(_supervisor()) as supervisor:
            supervisor.on_step.append(seen.append)
            groups = [_group(f"g{i}", PROMPT[i:], n=2, max_tokens=20) for i in range(10)]
            for group, deltas in zip(
                groups, await asyncio.gather(*[_generate(supervisor, group) for group in groups]), strict=True
            ):
                for choice in (0, 1):
                    tokens = [token for delta in deltas if delta.choice == choice for token in delta.token_ids]
                    assert tuple(tokens) == fake_output(group.prompts[0], 20, choice)
            assert supervisor.engine.num_open_groups == 0
        assert sum(len(delta.token_ids) for step in seen for delta in step.deltas) == 400
        assert seen[-1].stats.generation_tokens == 400 and seen[-1].stats.num_running == 0

    asyncio.run(run())


def test_killing_the_engine_ends_20_streams_within_a_second_and_it_comes_back() -> None:
    async def run() -> None:
        async with _running(_supervisor("--step-s", "0.005")) as supervisor:
            ended_s: list[float] = []
            streaming = [asyncio.Event() for _ in range(20)]

            async def stream(index: int) -> None:
                async with supervisor.engine.add(_group(f"g{index}", max_tokens=2000)) as deltas:
                    with pytest.raises(EngineDied, match="SIGKILL"):
                        async for _ in deltas:
                            streaming[index].set()
                ended_s.append(time.monotonic())

            tasks = [asyncio.create_task(stream(index)) for index in range(20)]
            await asyncio.wait_for(asyncio.gather(*[event.wait() for event in streaming]), DEADLINE_S)
            states: list[EngineState] = []
            assert supervisor.pid is not None
            os.kill(supervisor.pid, signal.SIGKILL)
            killed_s = time.monotonic()
            await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
            states.append(supervisor.engine.state)
            assert max(ended_s) - killed_s < 1.0
            assert states == [EngineState.DEAD]
            with pytest.raises(EngineUnavailable, match="dead"):
                supervisor.engine.add(_group("meanwhile"))
            await _until(lambda: supervisor.engine.state is EngineState.READY, "the engine to come back")
            await _assert_works(supervisor)
            assert supervisor.engine.num_open_groups == 0
            assert supervisor._directory is not None
            assert {path.name for path in supervisor._directory.path.iterdir()} == {"1.in", "1.out", "owner.lock"}

    asyncio.run(run())


def test_a_stopped_engine_stalls_and_is_replaced() -> None:
    async def run() -> None:
        async with _running(_supervisor("--step-s", "0.005", stall_timeout_s=0.5)) as supervisor:
            first_pid = supervisor.pid
            assert first_pid is not None
            async with supervisor.engine.add(_group("g", max_tokens=5000)) as stream:
                await anext(stream)
                os.kill(first_pid, signal.SIGSTOP)
                await _until(lambda: supervisor.engine.is_stalled, "the stall to be noticed")
                with pytest.raises(EngineUnavailable, match="stalled"):
                    supervisor.engine.add(_group("meanwhile"))
                with pytest.raises(EngineDied, match="--stall-timeout-s"):
                    async for _ in stream:
                        pass
            await _until(lambda: supervisor.engine.state is EngineState.READY, "the next process")
            assert supervisor.pid != first_pid
            await _assert_works(supervisor)

    asyncio.run(run())


def test_an_engine_that_goes_on_is_no_longer_stalled() -> None:
    async def run() -> None:
        async with _running(_supervisor("--step-s", "0.005", stall_timeout_s=1.0)) as supervisor:
            pid = supervisor.pid
            assert pid is not None
            async with supervisor.engine.add(_group("g", max_tokens=5000)) as stream:
                await anext(stream)
                os.kill(pid, signal.SIGSTOP)
                await _until(lambda: supervisor.engine.is_stalled, "the stall to be noticed")
                os.kill(pid, signal.SIGCONT)
                await _until(lambda: supervisor.engine.state is EngineState.READY, "the engine to be heard again")
                await anext(stream)
            assert supervisor.pid == pid

    asyncio.run(run())


def test_an_idle_engine_neither_stalls_nor_computes() -> None:
    async def run() -> None:
        async with _running(_supervisor(stall_timeout_s=0.2)) as supervisor:
            await _assert_works(supervisor)
            process = psutil.Process(supervisor.pid)
            seen: list[StepOutputs] = []
            supervisor.on_step.append(seen.append)
            before = process.cpu_times()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.6)
            after = process.cpu_times()
            assert (after.user + after.system) - (before.user + before.system) <= 0.02
            assert seen == [] and supervisor.engine.state is EngineState.READY

    asyncio.run(run())


def test_signals_to_the_group_leave_the_engine_to_its_parent() -> None:
    async def run() -> None:
        async with _running(_supervisor()) as supervisor:
            pid = supervisor.pid
            assert pid is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
            await _assert_works(supervisor)
            assert supervisor.pid == pid
        assert not _is_running(pid)

    asyncio.run(run())


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_PARENT = """
import asyncio, sys
from tests.integration.test_engine_process import _supervisor

async def run():
    supervisor = _supervisor()
    await supervisor.start()
    print(supervisor.pid, supervisor._directory.path, flush=True)
    await asyncio.Event().wait()

asyncio.run(run())
"""


def test_the_engine_dies_with_a_killed_parent() -> None:
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert _is_running(int(pid))
        parent.kill()
        parent.wait(DEADLINE_S)
        asyncio.run(_until(lambda: not _is_running(int(pid)), "the engine to die"))
    finally:
        parent.kill()
        parent.communicate()
    sweep_dead_directories()
    assert not Path(directory).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--load-failure", "no such model; run headrace pull"), "no such model; run headrace pull"),
        (("--exit-status", "7"), "ended with status 7\na last word on standard error"),
    ],
)
def test_a_first_start_that_fails_says_why_and_is_not_repeated(arguments: tuple[str, ...], message: str) -> None:
    async def run() -> None:
        supervisor = _supervisor(*arguments)
        with pytest.raises(EngineStartError) as caught:
            await asyncio.wait_for(supervisor.start(), DEADLINE_S)
        assert str(caught.value).endswith(message)
        assert supervisor.pid is None

    asyncio.run(run())


def test_a_command_that_does_not_exist_is_a_start_error() -> None:
    async def run() -> None:
        with pytest.raises(EngineStartError, match="cannot be started"):
            await _supervisor(command=("/nowhere/python",)).start()

    asyncio.run(run())


def test_progress_is_told_while_the_engine_loads() -> None:
    async def run() -> None:
        supervisor = _supervisor()
        phases: set[str] = set()
        supervisor.launch()
        waiting = asyncio.create_task(supervisor.wait_ready())
        with pytest.raises(EngineUnavailable, match="starting"):
            supervisor.engine.add(_group("early"))
        while not waiting.done():
            if supervisor.engine.progress is not None:
                phases.add(supervisor.engine.progress.phase)
            await asyncio.sleep(0)
        await waiting
        assert phases & {"starting", "loading weights", "warming up"}
        await supervisor.stop()

    asyncio.run(run())


@pytest.mark.parametrize("is_ready", [False, True])
def test_stop_ends_the_process_and_removes_the_sockets(is_ready: bool) -> None:
    async def run() -> None:
        supervisor = _supervisor()
        supervisor.launch()
        assert supervisor._directory is not None
        directory = supervisor._directory.path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        if is_ready:
            await asyncio.wait_for(supervisor.wait_ready(), DEADLINE_S)
        else:
            await _until(lambda: supervisor.pid is not None, "the process")
        pid = supervisor.pid
        assert pid is not None
        await asyncio.wait_for(supervisor.stop(), DEADLINE_S)
        await supervisor.stop()
        assert not directory.exists() and not _is_running(pid)

    asyncio.run(run())


@pytest.mark.parametrize("is_failing", [False, True])
def test_the_link_and_host_memory_are_closed_however_service_ends(tmp_path: Path, is_failing: bool) -> None:
    """Pinned memory that a process leaves to the kernel keeps the machine busy for long."""
    closed_file = tmp_path / "closed"

    async def run() -> None:
        async with _running(_supervisor("--closed-file", str(closed_file))) as supervisor:
            assert not closed_file.exists()
            for i in range(3 if is_failing else 0):
                await _generate(supervisor, _group(f"bad{i}", (CRASH_TOKEN_ID,)))
            if is_failing:
                await _until(closed_file.exists, "the end of the first process")

    asyncio.run(run())
    assert closed_file.read_text().splitlines()[0] == "closed"


def test_a_start_that_moves_nothing_says_so(tmp_path: Path) -> None:
    """An option that is accepted and does nothing would be found out by the first user."""

    async def run() -> None:
        with pytest.raises(EngineStartError) as caught:
            supervisor = _supervisor("--moves-nothing", "--closed-file", str(tmp_path / "closed"))
            await asyncio.wait_for(supervisor.start(), DEADLINE_S)
        assert str(caught.value) == "a step with 3 streamed layers moved 0 bytes, the plan has 300"
        assert (tmp_path / "closed").read_text() == "closed\n", "memory of the host is given back"

    asyncio.run(run())


def test_stop_ends_open_streams() -> None:
    async def run() -> None:
        supervisor = _supervisor("--step-s", "0.005")
        async with _running(supervisor), supervisor.engine.add(_group("g", max_tokens=5000)) as stream:
            await anext(stream)
            await supervisor.stop()
            with pytest.raises(EngineDied, match="stopping"):
                async for _ in stream:
                    pass

    asyncio.run(run())


def test_steps_that_fail_again_and_again_end_the_process_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with _running(_supervisor()) as supervisor:
            first_pid = supervisor.pid
            for i in range(3):
                deltas = await _generate(supervisor, _group(f"bad{i}", (CRASH_TOKEN_ID,)))
                assert [delta.finish_reason for delta in deltas] == ["error"]
            await _until(lambda: supervisor.pid not in (None, first_pid), "the next process")
            assert "the engine ended: 3 steps in a row failed" in caplog.text
            await _until(lambda: supervisor.engine.state is EngineState.READY, "the engine to come back")
            await _assert_works(supervisor)

    asyncio.run(run())


def test_a_thousand_starts_and_aborts_leave_nothing_on_either_side() -> None:
    async def run() -> None:
        async with _running(_supervisor(max_num_seqs=8)) as supervisor:
            for i in range(1000):
                async with supervisor.engine.add(_group(f"g{i}", n=1 + i % 3, max_tokens=50)) as stream:
                    if i % 10 == 0:
                        await stream.admission()
            assert supervisor.engine.num_open_groups == 0
            await _assert_works(supervisor)
            stats = supervisor.engine.stats
            assert stats is not None
            assert stats.num_running == stats.num_waiting == stats.num_blocks_used == 0

    asyncio.run(run())


def test_a_queued_group_can_be_aborted_and_an_impossible_one_is_refused() -> None:
    async def run() -> None:
        async with _running(_supervisor("--step-s", "0.005", max_num_seqs=1)) as supervisor:
            async with supervisor.engine.add(_group("running", max_tokens=5000)) as stream:
                await stream.admission()
                async with supervisor.engine.add(_group("queued")):
                    await _until(lambda: _waiting(supervisor) == 1, "the group to be queued")
                await _until(lambda: _waiting(supervisor) == 0, "the group to be gone")
                with pytest.raises(GroupRefusedError) as caught:
                    await _generate(supervisor, _group("impossible", max_tokens=100_000))
                assert caught.value.refused.reason == "never_fits"
            await _assert_works(supervisor)

    asyncio.run(run())


def _waiting(supervisor: Supervisor) -> int:
    return -1 if supervisor.engine.stats is None else supervisor.engine.stats.num_waiting


def test_a_slow_consumer_is_cut_off_and_its_blocks_come_back() -> None:
    async def run() -> None:
        async with _running(_supervisor(max_pending_tokens=100)) as supervisor:
            async with supervisor.engine.add(_group("slow", max_tokens=20_000)) as stream:
                await stream.admission()
                await _until(lambda: supervisor.engine.num_open_groups == 0, "the stream to be cut off")
                with pytest.raises(SlowConsumer, match="the cap is 100"):
                    async for _ in stream:
                        pass
            await _assert_works(supervisor)
            assert supervisor.engine.stats is not None and supervisor.engine.stats.num_blocks_used == 0
            assert supervisor.engine.stats.wasted_tokens > 0

    asyncio.run(run())


def test_the_log_of_a_killed_and_restarted_engine_replays(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "events.log"
        async with _running(_supervisor("--step-s", "0.002", event_log_path=str(path))) as supervisor:
            await _assert_works(supervisor)
            async with supervisor.engine.add(_group("g", max_tokens=5000)) as stream:
                await anext(stream)
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGKILL)
                with pytest.raises(EngineDied):
                    async for _ in stream:
                        pass
            await _until(lambda: supervisor.engine.state is EngineState.READY, "the engine to come back")
            await _assert_works(supervisor)
        report = replay(path)
        assert report.num_processes == 2 and report.num_steps > 10

    asyncio.run(run())


def test_a_lost_event_log_ends_the_recording_and_not_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        path = tmp_path / "logs" / "events.log"
        path.parent.mkdir()
        async with _running(_supervisor(event_log_path=str(path))) as supervisor:
            await _assert_works(supervisor)
            shutil.rmtree(path.parent)
            assert supervisor.pid is not None
            os.kill(supervisor.pid, signal.SIGKILL)
            await _until(lambda: supervisor.engine.state is EngineState.DEAD, "the death to be noticed")
            await _until(lambda: supervisor.engine.state is EngineState.READY, "the engine to come back")
            await _assert_works(supervisor, "again")
        lost = [record for record in caplog.records if "goes on without recording" in record.getMessage()]
        assert [record.levelname for record in lost] == ["ERROR"]
        assert f"--event-log {path}: No such file or directory" in lost[0].getMessage()
        assert not path.parent.exists()

    asyncio.run(run())


def test_an_event_log_that_cannot_be_written_fails_the_first_start(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(EngineStartError) as caught:
            await asyncio.wait_for(_supervisor(event_log_path=str(tmp_path)).start(), DEADLINE_S)
        assert str(caught.value).startswith(f"--event-log {tmp_path}: Is a directory; name a file")

    asyncio.run(run())


def test_a_kv_cache_larger_than_the_memory_fails_before_anything_is_loaded() -> None:
    async def run() -> None:
        supervisor = _supervisor("--load-failure", "the model was loaded", kv_cache_memory_bytes=2**60)
        with pytest.raises(EngineStartError) as caught:
            await asyncio.wait_for(supervisor.start(), DEADLINE_S)
        assert str(caught.value).startswith("--kv-cache-memory is 1,099,511,627,776 MiB, ")
        assert "of memory are available" in str(caught.value) and "\n" not in str(caught.value)

    asyncio.run(run())
