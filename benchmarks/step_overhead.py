"""The engine's own Python per step: schedule, update, messages. The runner is a fake whose time does not count.

    python -m benchmarks.step_overhead [--running 32] [--steps 2000] [--event-log PATH]

Every step decodes one token for each running request; one request finishes and another arrives every tenth step, as a
server at a constant load sees it.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import sys
import time
from pathlib import Path

from engine.clock import MonotonicClock
from engine.core import EngineCore
from engine.event_log import EventLog, Header
from engine.messages import AddGroup, SLORequest, encode
from engine.model_runner_output import ModelRunnerOutput
from engine.sampling_params import SamplingParams
from scheduler.config import SchedulerConfig
from scheduler.link import LinkSnapshot
from scheduler.output import FinishedRequest, SchedulerOutput, StepResult
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLOClasses
from tests.fakes import FakeRunner

NUM_BLOCKS = 8192
MAX_MODEL_LEN = 8192
PROMPT_TOKENS = 200


class TimedScheduler(Scheduler):
    """Notes how long its last `schedule` and `update` took."""

    schedule_s = 0.0
    update_s = 0.0

    def schedule(self, now_s: float, link: LinkSnapshot) -> SchedulerOutput:
        started_s = time.perf_counter()
        output = super().schedule(now_s, link)
        self.schedule_s = time.perf_counter() - started_s
        return output

    def update(self, output: SchedulerOutput, result: StepResult, now_s: float) -> tuple[FinishedRequest, ...]:
        started_s = time.perf_counter()
        finished = super().update(output, result, now_s)
        self.update_s = time.perf_counter() - started_s
        return finished


class TimedRunner(FakeRunner):
    """Notes how long its last step took."""

    execute_s = 0.0

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        started_s = time.perf_counter()
        result = super().execute(output)
        self.execute_s = time.perf_counter() - started_s
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--event-log", type=Path)
    options = parser.parse_args()
    config = SchedulerConfig(max_num_seqs=max(64, options.running), max_num_batched_tokens=4096)
    scheduler = TimedScheduler(config, SLOClasses(), NUM_BLOCKS, MAX_MODEL_LEN)
    runner = TimedRunner(NUM_BLOCKS, config.block_size, config.max_num_seqs, check_kv=False)
    core = EngineCore(
        scheduler,
        runner,
        MonotonicClock(),
        block_size=config.block_size,
        eos_token_ids=frozenset(),
        event_log=_event_log(options.event_log, config),
    )
    rows = _measure(core, scheduler, runner, options.running, options.steps)
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}: {' '.join(sys.argv)}")
    print(f"{options.running} running requests, {len(rows)} steps, milliseconds a step")
    print(f"{'part':<10} {'median':>8} {'p95':>8} {'max':>8}")
    for index, part in enumerate(("schedule", "update", "tokens", "encode", "all")):
        values = sorted(row[index] * 1e3 for row in rows)
        print(f"{part:<10} {statistics.median(values):8.3f} {values[int(len(values) * 0.95)]:8.3f} {values[-1]:8.3f}")


def _measure(
    core: EngineCore, scheduler: TimedScheduler, runner: TimedRunner, num_running: int, num_steps: int
) -> list[tuple[float, ...]]:
    """Seconds of each part in each step that decodes for all requests."""
    core.turn([_group(i, 10 * (i + 1)) for i in range(num_running)])
    while scheduler.stats().num_running < num_running:
        core.turn([])
    gc.collect()
    gc.freeze()
    rows = []
    for step in range(num_steps):
        messages = [_group(num_running + step, 10 * num_running)] if step % 10 == 0 else []
        started_s = time.perf_counter()
        outputs = core.turn(messages)
        turned_s = time.perf_counter()
        encode(outputs)
        ended_s = time.perf_counter()
        turn_s = turned_s - started_s - runner.execute_s
        rows.append(
            (
                scheduler.schedule_s,
                scheduler.update_s,
                turn_s - scheduler.schedule_s - scheduler.update_s,
                ended_s - turned_s,
                ended_s - started_s - runner.execute_s,
            )
        )
    return rows


def _group(index: int, max_tokens: int) -> AddGroup:
    return AddGroup(
        group_id=f"request-{index}",
        prompts=(tuple(range(10 + index % 700, 10 + index % 700 + PROMPT_TOKENS)),),
        n=1,
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        slo=SLORequest(requested="standard", granted="standard"),
        arrival_s=time.monotonic(),
    )


def _event_log(path: Path | None, config: SchedulerConfig) -> EventLog | None:
    if path is None:
        return None
    header = Header(
        scheduler=config,
        classes=DEFAULT_CLASSES,
        default_class="standard",
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
    )
    return EventLog(path, header)


if __name__ == "__main__":
    main()
