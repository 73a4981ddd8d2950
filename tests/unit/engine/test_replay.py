"""The event log and its replay."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.errors import EventLogError, ReplayMismatch
from engine.event_log import EventLog, Frame, Header, ScheduleFrame, UpdateFrame, read_frames
from engine.messages import AbortChoices
from engine.replay import replay
from scheduler.link import ClassFloor, LinkSnapshot
from scheduler.ramp import Ramp
from tests.engine_harness import EngineHarness, add_group
from tests.latency_builders import make_coefficients
from tests.scripted_offload import ScriptedOffload

PROMPT = tuple(range(20, 33))


def _record(path: Path) -> int:
    """A run with everything in it: sharing, preemption, expiry, refusal, aborts, a failed step; its number of steps."""
    harness = EngineHarness(num_blocks=14, max_num_seqs=3, max_queued_requests=8, event_log_path=path)
    harness.runner.fail_steps = {9}
    num_steps = 1
    harness.turn(*[add_group(f"g{i}", PROMPT[i:], n=1 + i % 2, max_tokens=9) for i in range(4)])
    for i in range(12):
        harness.turn(
            add_group(f"later{i}", PROMPT, slo_class=("realtime", "batch")[i % 2], max_tokens=6),
            AbortChoices(group_id=f"later{i - 2}"),
        )
        num_steps += 1
    harness.turn(add_group("never", PROMPT, max_tokens=1000))
    harness.clock.advance(20.0)
    num_steps += 1
    while harness.core.num_live_choices:
        harness.turn()
        num_steps += 1
    assert harness.scheduler.stats().num_preemptions and harness.refused and "error" in harness.finish_reasons.values()
    assert harness.event_log is not None
    harness.event_log.close()
    return num_steps


def test_a_recorded_run_replays_with_equal_digests(tmp_path: Path) -> None:
    num_steps = _record(tmp_path / "log")
    report = replay(tmp_path / "log")
    assert report.num_processes == 1 and report.num_steps == num_steps and report.num_tokens > num_steps


def test_predictions_replay_bit_for_bit_from_the_coefficients_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "log"
    coefficients = make_coefficients(rows=Ramp(1e-4, (8.0,), (1e-5,)), sync_s=0.0)
    harness = EngineHarness(event_log_path=path, latency=coefficients)
    predicted = []
    harness.turn(*[add_group(f"g{i}", PROMPT[i:], max_tokens=40) for i in range(3)])
    while harness.core.num_live_choices:
        predicted.append(harness.turn().stats.predicted_s)
    assert len(set(predicted)) > 30, "the predictions followed what was measured"
    assert harness.event_log is not None
    harness.event_log.close()
    assert replay(path).num_steps == len(predicted) + 1
    frames = list(read_frames(path))
    path.unlink()
    assert isinstance(frames[0], Header) and frames[0].latency == coefficients
    log = EventLog(path, msgspec.structs.replace(frames[0], latency=dataclasses.replace(coefficients, sync_s=1e-9)))
    for frame in frames[1:]:
        log._append(frame)
    log.close()
    with pytest.raises(ReplayMismatch, match="what was scheduled"):
        replay(path)


def _record_streaming(path: Path) -> list[str]:
    """A run whose KV border moves and whose classes close and open in between; how its groups were refused."""
    closed = ClassFloor("realtime", is_open=False, ttft_s=2.0, tpot_s=0.09)
    late = ClassFloor("batch", is_best_effort=True, ttft_s=2.0, tpot_s=0.09)
    borders = (14, 9, 6, 6, 11, 14, 5, 14)
    snapshots = [
        LinkSnapshot(num_streamed_layers=border, num_blocks=border, classes=(closed, late) if border < 10 else (late,))
        for border in borders
    ]
    harness = EngineHarness(num_blocks=14, max_num_seqs=3, event_log_path=path, offload=ScriptedOffload(*snapshots))
    for i in range(len(borders)):
        harness.turn(add_group(f"g{i}", PROMPT[i:], slo_class=("realtime", "batch")[i % 2], max_tokens=9))
    harness.run()
    harness.assert_nothing_is_left()
    assert harness.event_log is not None
    harness.event_log.close()
    return [refused.reason for refused in harness.refused.values()]


def test_a_run_with_streamed_weights_replays_without_link_and_weights(tmp_path: Path) -> None:
    refused = _record_streaming(tmp_path / "log")
    assert refused == ["slo_infeasible", "slo_infeasible"]
    frames = [frame for frame in read_frames(tmp_path / "log") if isinstance(frame, ScheduleFrame)]
    assert len({frame.link.num_blocks for frame in frames}) > 3
    assert replay(tmp_path / "log").num_steps == len(frames)


@pytest.mark.parametrize(
    "change",
    [lambda link: dataclasses.replace(link, num_blocks=14), lambda link: dataclasses.replace(link, classes=())],
    ids=["border", "classes"],
)
def test_another_border_or_class_is_another_run(tmp_path: Path, change: Callable[[LinkSnapshot], LinkSnapshot]) -> None:
    """What the snapshot said is what was decided by."""
    path = tmp_path / "log"
    _record_streaming(path)
    _rewrite(path, lambda f: msgspec.structs.replace(f, link=change(f.link)) if isinstance(f, ScheduleFrame) else f)
    with pytest.raises(ReplayMismatch):
        replay(path)


def _rewrite(path: Path, change: Callable[[Frame], Frame]) -> None:
    """Write the log again with one frame changed, checksums and all."""
    frames = list(read_frames(path))
    path.unlink()
    assert isinstance(frames[0], Header)
    log = EventLog(path, frames[0])
    for frame in frames[1:]:
        log._append(change(frame))
    log.close()


def _change_now(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, now_s=frame.now_s + 30.0) if isinstance(frame, ScheduleFrame) else frame


def _change_digest(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, digest=bytes(16)) if isinstance(frame, ScheduleFrame) else frame


def _drop_actions(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, actions=()) if isinstance(frame, ScheduleFrame) else frame


def _change_finished(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, digest=bytes(16)) if isinstance(frame, UpdateFrame) else frame


@pytest.mark.parametrize("change", [_change_now, _change_digest, _drop_actions, _change_finished])
def test_a_log_that_was_changed_at_a_step_differs_there(change: Callable[[Frame], Frame], tmp_path: Path) -> None:
    path = tmp_path / "log"
    _record(path)
    changed_step = 5

    def at_step(frame: Frame) -> Frame:
        step = frame.step_id if isinstance(frame, ScheduleFrame) else getattr(frame, "result", None)
        number = step if isinstance(step, int) or step is None else step.step_id
        return change(frame) if number == changed_step else frame

    _rewrite(path, at_step)
    with pytest.raises(ReplayMismatch, match="process 1, step 5: ") as caught:
        replay(path)
    assert caught.value.step_id == changed_step


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _record(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(EventLogError):
        replay(path)


def test_a_tail_torn_off_by_a_kill_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    num_steps = _record(path)
    whole = path.read_bytes()
    seen = set()
    for end in range(len(whole) - 400, len(whole) + 1, 7):
        path.write_bytes(whole[:end])
        seen.add(replay(path).num_steps)
    assert len(seen) > 1 and max(seen) == num_steps


def test_a_new_process_appends_after_the_last_whole_frame(tmp_path: Path) -> None:
    path = tmp_path / "log"
    num_steps = _record(path)
    path.write_bytes(path.read_bytes()[:-3])
    assert _record(path) == num_steps
    report = replay(path)
    assert report.num_processes == 2 and report.num_steps == 2 * num_steps


def test_a_file_that_is_no_log_is_neither_read_nor_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("something else, longer than a magic number")
    with pytest.raises(EventLogError, match="not an event log"):
        replay(path)
    with pytest.raises(EventLogError, match=r"--event-log .*notes\.txt: it is not an event log"):
        EngineHarness(event_log_path=path)
    assert path.read_text().startswith("something else")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _record(path)
    _rewrite_header_version(path)
    with pytest.raises(EventLogError, match="version 999"):
        replay(path)


def _rewrite_header_version(path: Path) -> None:
    header = next(iter(read_frames(path)))
    assert isinstance(header, Header)
    path.unlink()
    EventLog(path, msgspec.structs.replace(header, version=999)).close()


def test_frames_are_length_and_checksum_prefixed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _record(path)
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    assert msgspec.msgpack.decode(data[16 : 16 + length])["type"] == "header"


def test_a_full_disk_ends_the_recording_and_not_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    harness = EngineHarness(event_log_path=path)
    harness.run(add_group("before", PROMPT))
    assert harness.event_log is not None
    harness.event_log._file.close()
    harness.event_log._file = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115 - the log closes it
    harness.run(add_group("after", PROMPT))
    harness.event_log.close()
    assert harness.finish_reasons["after", 0] == "length"
    assert caplog.text.count("the event log ends") == 1
    assert replay(path).num_steps == 4
