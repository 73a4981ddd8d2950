"""A simulated run is recorded like a served one, and replays with the same decisions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from engine.errors import ReplayMismatch
from engine.event_log import EventLog, Header, read_frames
from engine.replay import replay
from engine.simulation.simulator import Simulator
from engine.simulation.step_times import StepVariation
from engine.simulation.traffic import draw_traffic
from scheduler.config import PolicyName, SchedulerConfig
from scheduler.slo import SLOClasses
from tests.simulations import make_machine, mix_of

MIX = (mix_of("realtime", 40, 20), mix_of("interactive", 90, 30), mix_of("standard", 150, 40), mix_of("batch", 200, 60))


def record(path: Path, policy: PolicyName = "deadline") -> int:
    """An overload with noise, cancellations, preemptions and a link; the number of its turns."""
    machine = make_machine(num_blocks=60, max_model_len=400, num_streamed_layers=1)
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=12, scheduler_policy=policy)
    traffic = draw_traffic(MIX, 60, 40.0, 2, machine.max_model_len).with_cancellations(0.2, 2)
    assert traffic.cancellations
    simulator = Simulator(machine, config, SLOClasses(), StepVariation(1.1, 1.2, seed=3), event_log_path=path)
    num_turns = sum(1 for _ in simulator.run(traffic.requests, traffic.cancellations))
    simulator.close()
    assert simulator.scheduler.stats().num_preemptions
    return num_turns


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_simulated_run_replays_with_equal_digests(tmp_path: Path, policy: PolicyName) -> None:
    num_turns = record(tmp_path / "log", policy)
    report = replay(tmp_path / "log")
    assert (report.num_processes, report.num_steps) == (1, num_turns)
    assert report.num_tokens > num_turns


def test_two_runs_write_the_same_log(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_another_latency_model_is_another_run(tmp_path: Path) -> None:
    record(tmp_path / "log")
    header, *frames = read_frames(tmp_path / "log")
    assert isinstance(header, Header) and header.latency is not None
    slower = dataclasses.replace(header.latency, sync_s=header.latency.sync_s * 1.001)
    log = EventLog(tmp_path / "changed", msgspec.structs.replace(header, latency=slower))
    for frame in frames:
        log._append(frame)
    log.close()
    with pytest.raises(ReplayMismatch, match="what was scheduled"):
        replay(tmp_path / "changed")
