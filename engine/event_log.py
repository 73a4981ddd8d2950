"""A recording of everything the scheduler was told and decided: the input of a bit-identical replay.

A file is a magic number and frames; a frame is its length and CRC-32 (little-endian, 4 bytes each) and msgpack. Each
engine process appends a `Header`, then two frames a step: `ScheduleFrame` before the step is computed, so that the log
holds the inputs of a step that kills the process, and `UpdateFrame` after it. Each is one write to the page cache.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.errors import EventLogError
from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import NO_TIERS, TierConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.link import LinkSnapshot
from scheduler.output import FinishedRequest, SchedulerOutput, StepResult, Verdict
from scheduler.request import RequestSpec
from scheduler.slo import SLOClass

logger = logging.getLogger(__name__)

VERSION = 5
MAGIC = b"HRLOG\x00\x00" + bytes([VERSION])
"""At the start of a file."""
_FRAME_HEAD = struct.Struct("<II")


class AddAction(msgspec.Struct, frozen=True, tag="add"):
    """`Scheduler.add` and its verdict."""

    specs: tuple[RequestSpec, ...]
    now_s: float
    verdict: Verdict


class AbortAction(msgspec.Struct, frozen=True, tag="abort"):
    """`Scheduler.abort` and what it ended."""

    request_ids: tuple[str, ...]
    now_s: float
    finished: tuple[FinishedRequest, ...]


Action = AddAction | AbortAction


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """How the scheduler was made. Each engine process that appends to the file writes one."""

    scheduler: SchedulerConfig
    classes: tuple[SLOClass, ...]
    default_class: str
    num_blocks: int
    max_model_len: int
    latency: LatencyCoefficients | None = None
    """What the steps were predicted by at first; None: they were not."""
    tiers: TierConfig = NO_TIERS
    """What there was for blocks beside the device."""
    version: int = VERSION


class ScheduleFrame(msgspec.Struct, frozen=True, kw_only=True, tag="schedule"):
    """The inbox of a turn as the scheduler saw it, and a digest of what it decided."""

    actions: tuple[Action, ...]
    link: LinkSnapshot
    now_s: float
    step_id: int
    digest: bytes


class UpdateFrame(msgspec.Struct, frozen=True, kw_only=True, tag="update"):
    """What came of a step, and a digest of what it ended."""

    result: StepResult
    now_s: float
    digest: bytes


Frame = Header | ScheduleFrame | UpdateFrame

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def digest(value: SchedulerOutput | tuple[FinishedRequest, ...]) -> bytes:
    """BLAKE2b of the msgpack form, which is canonical: fields in order, floats as their 8 bytes."""
    return hashlib.blake2b(_ENCODER.encode(value), digest_size=16).digest()


class EventLog:
    """Appends frames to a file; what was appended survives a kill of the process.

    A disk that is full ends the recording, not the engine.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Open or make the file; a frame torn off by a kill is cut away first.

        Raises:
            EventLogError: it cannot be written, or exists and is not an event log.
        """
        self._has_failed = False
        self._file = _open_to_append(path)
        self._append(header)

    def scheduled(self, actions: tuple[Action, ...], link: LinkSnapshot, now_s: float, output: SchedulerOutput) -> None:
        """Record a turn's inputs and decision, before it is computed."""
        self._append(
            ScheduleFrame(actions=actions, link=link, now_s=now_s, step_id=output.step_id, digest=digest(output))
        )

    def updated(self, result: StepResult, now_s: float, finished: tuple[FinishedRequest, ...]) -> None:
        """Record what came of a step."""
        self._append(UpdateFrame(result=result, now_s=now_s, digest=digest(finished)))

    def close(self) -> None:
        self._file.close()

    def _append(self, frame: Frame) -> None:
        if self._has_failed:
            return
        payload = _ENCODER.encode(frame)
        data = _FRAME_HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            num_written: int | None = self._file.write(data)
        except OSError as error:
            num_written = None
            logger.error("the event log cannot be written: %s", error)
        if num_written != len(data):
            self._has_failed = True
            logger.error("the event log ends before a frame of %d bytes", len(data))


def check_event_log(path: Path) -> None:
    """Make the file if there is none; what an engine process would meet later is met now.

    Raises:
        EventLogError: it cannot be written, or exists and is not an event log.
    """
    _open_to_append(path).close()


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of a log, in order; a frame torn off at the end of the file is left out.

    Raises:
        EventLogError: not an event log, a damaged frame, or another version.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            _check_magic(file)
        except EventLogError as error:
            raise EventLogError(f"{path}: {error}") from error
        index = 0
        while (payload := _next_payload(file, path, index)) is not None:
            try:
                frame = _DECODER.decode(payload)
            except msgspec.DecodeError as error:
                raise EventLogError(f"{path}: frame {index}: {error}") from error
            if isinstance(frame, Header) and frame.version != VERSION:
                raise EventLogError(f"{path}: version {frame.version}; this engine replays version {VERSION}")
            yield frame
            index += 1


def _next_payload(file: BinaryIO, path: Path, index: int) -> bytes | None:
    head = file.read(_FRAME_HEAD.size)
    if len(head) < _FRAME_HEAD.size:
        return None
    length, crc = _FRAME_HEAD.unpack(head)
    payload = file.read(length)
    if len(payload) < length:
        return None
    if zlib.crc32(payload) != crc:
        raise EventLogError(f"{path}: frame {index} is damaged: its checksum is not {crc:#010x}")
    return payload


def _check_magic(file: BinaryIO) -> None:
    if file.read(len(MAGIC)) != MAGIC:
        raise EventLogError("it is not an event log of this engine")


def _open_to_append(path: Path) -> BinaryIO:
    """The file, made if there is none, open behind its last whole frame.

    Raises:
        EventLogError: see `check_event_log`.
    """
    way_out = "name a file that can be written, new or an event log, in a directory that exists"
    try:
        path.touch()
        file: BinaryIO = path.open("r+b", buffering=0)
    except OSError as error:
        raise EventLogError(f"--event-log {path}: {error.strerror}; {way_out}") from error
    try:
        _seek_to_append(file)
    except (OSError, EventLogError) as error:
        file.close()
        raise EventLogError(f"--event-log {path}: {error}; {way_out}") from error
    return file


def _seek_to_append(file: BinaryIO) -> None:
    """Leave the file at the end of its last whole frame, with nothing behind it."""
    size = file.seek(0, 2)
    file.seek(0)
    if size == 0:
        file.write(MAGIC)
        return
    _check_magic(file)
    end = file.tell()
    while end + _FRAME_HEAD.size <= size:
        length, _ = _FRAME_HEAD.unpack(file.read(_FRAME_HEAD.size))
        if end + _FRAME_HEAD.size + length > size:
            break
        end = file.seek(end + _FRAME_HEAD.size + length)
    file.truncate(end)
    file.seek(end)
