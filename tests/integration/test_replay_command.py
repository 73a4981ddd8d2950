"""`headrace replay` on recordings of the real scheduler."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from engine.event_log import MAGIC, EventLog, Header, ScheduleFrame, read_frames
from server.cli import app
from tests.engine_harness import EngineHarness, add_group

NUM_STEPS = 8
"""The prompt, then one token a step, in each of two processes of four steps."""


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "events.log"
    for _ in range(2):
        harness = EngineHarness(event_log_path=path)
        harness.run(add_group("g", (20, 21, 22), max_tokens=4))
        assert harness.event_log is not None
        harness.event_log.close()
    return path


def test_an_equal_run_is_told_with_its_size(recording: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(recording)])
    assert (result.exit_code, result.output) == (0, f"identical: {NUM_STEPS} steps, 12 tokens, engine processes: 2\n")


def test_the_first_step_that_differs_is_named(recording: Path, tmp_path: Path) -> None:
    frames = list(read_frames(recording))
    last_header = max(index for index, frame in enumerate(frames) if isinstance(frame, Header))
    steps = [index for index, frame in enumerate(frames) if isinstance(frame, ScheduleFrame) and index > last_header]
    frame = frames[steps[1]]
    assert isinstance(frame, ScheduleFrame)
    frames[steps[1]] = msgspec.structs.replace(frame, digest=bytes(16))
    changed = tmp_path / "changed.log"
    header = frames[0]
    assert isinstance(header, Header)
    log = EventLog(changed, header)
    for other in frames[1:]:
        log._append(other)
    log.close()
    result = CliRunner().invoke(app, ["replay", str(changed)])
    assert result.exit_code == 1
    message = f"headrace: process 2, step {frame.step_id}: what was scheduled differs from the recording\n"
    assert result.stderr == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; name a file"),
        (b"something else", "it is not an event log of this engine"),
        (MAGIC, "no engine process that became ready has written to it"),
    ],
)
def test_what_is_no_recording_is_told_in_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert result.exit_code == 1
    assert message in result.stderr and result.stderr.count("\n") == 1
