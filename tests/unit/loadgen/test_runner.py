"""The two loops: one keeps its schedule whatever the server does, the other its number of open requests."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig
from loadgen.runner import Runner, RunResult
from loadgen.trace import RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest, Workload
from tests.virtual_bench import QuietObserver


@dataclasses.dataclass
class ScriptedSender:
    """Answers at once, or holds every request until `release` is set; notes how many were open together."""

    answer_s: float = 0.0
    hold: bool = False
    hold_until: int | None = None
    """Release all once this many are open."""
    num_open: int = 0
    max_open: int = 0
    release: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    opened: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def send(self, planned: PlannedRequest, intended_s: float) -> RequestTrace:
        loop = asyncio.get_running_loop()
        trace = RequestTrace(planned, intended_s, loop.time())
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        self.opened.set()
        if self.num_open == self.hold_until:
            self.release.set()
        try:
            if self.hold:
                await self.release.wait()
            else:
                await asyncio.sleep(self.answer_s)
            trace.finish(TraceEnd.COMPLETED, loop.time())
        except asyncio.CancelledError:
            trace.finish(TraceEnd.CANCELLED, loop.time())
        self.num_open -= 1
        return trace


def _requests(config: BenchConfig) -> Any:
    return Workload(config, parse_class_mix(config)).requests()


def _run(config: BenchConfig, sender: ScriptedSender) -> RunResult:
    async def run() -> RunResult:
        return await asyncio.wait_for(Runner(config, sender, QuietObserver()).run(_requests(config)), 30.0)

    return asyncio.run(run())


def test_an_open_loop_sends_on_schedule_while_nothing_is_answered() -> None:
    config = BenchConfig("http://x", rate=2000.0, requests=50, arrivals="constant")
    sender = ScriptedSender(hold=True, hold_until=50)
    result = _run(config, sender)
    assert sender.max_open == 50, "no answer was needed to send the next"
    assert [trace.planned.index for trace in result.traces] == list(range(50))
    for trace in result.traces:
        assert trace.planned.offset_s is not None
        assert trace.intended_s == result.started_s + trace.planned.offset_s
        assert trace.sent_s >= trace.intended_s - 0.002, "never ahead of its time, but for the clock's grain"
    assert result.arrival_window_s == pytest.approx(49 / 2000.0)


def test_a_closed_loop_holds_its_number_of_open_requests() -> None:
    sender = ScriptedSender()
    result = _run(BenchConfig("http://x", concurrency=4, requests=40), sender)
    assert sender.max_open == 4
    assert [trace.planned.index for trace in result.traces] == list(range(40))
    assert all(trace.send_lag_s < 1.0 for trace in result.traces)
    assert not result.interrupted


def test_a_closed_loop_with_a_duration_ends() -> None:
    result = _run(BenchConfig("http://x", concurrency=2, duration_s=0.2), ScriptedSender(answer_s=0.01))
    assert result.traces
    assert result.arrival_window_s == 0.2
    assert all(trace.intended_s < result.started_s + 0.2 for trace in result.traces)


@pytest.mark.parametrize("options", [{"rate": 1e-3, "arrivals": "constant", "requests": 9}, {"concurrency": 3}])
def test_an_interrupted_run_cuts_off_what_is_open_and_returns(options: dict[str, Any]) -> None:
    config = BenchConfig("http://x", **options)

    async def run() -> RunResult:
        sender = ScriptedSender(hold=True)
        runner = Runner(config, sender, QuietObserver())
        task = asyncio.create_task(runner.run(_requests(config)))
        await asyncio.wait_for(sender.opened.wait(), 10.0)
        runner.interrupt()
        return await asyncio.wait_for(task, 10.0)

    result = asyncio.run(run())
    assert result.interrupted
    assert {trace.end for trace in result.traces} == {TraceEnd.CANCELLED}
    assert len(result.traces) == (config.concurrency or 1)


def test_a_bug_in_the_sender_ends_the_run_with_its_exception() -> None:
    class Broken:
        async def send(self, planned: PlannedRequest, intended_s: float) -> RequestTrace:
            raise ZeroDivisionError(planned.index)

    config = BenchConfig("http://x", rate=1000.0, requests=5)

    async def run() -> None:
        await asyncio.wait_for(Runner(config, Broken(), QuietObserver()).run(_requests(config)), 10.0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
