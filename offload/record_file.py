"""Performance records as files: JSON, one file a fingerprint, replaced as a whole."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from kernels.native_library import cache_directory
from offload.errors import OffloadError
from offload.fingerprint import Fingerprint
from offload.measurements import Measurements
from offload.record import PerformanceRecord
from offload.record_check import check_measurements

VERSION = 2
"""Of the file's form and of how its numbers are measured."""


class RecordFileError(OffloadError):
    """A file that is no record, of a newer version, damaged, or cannot be written; names it and the way out."""


class OutdatedRecordError(RecordFileError):
    """An older build's record: as good as none. The next one of its fingerprint replaces it."""


class RecordMismatchError(OffloadError):
    """A record of another machine, model or build; names what differs."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Header:
    """What is read first: whether the rest can be."""

    format: Literal["headrace-record"]
    version: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Document:
    """The whole file. Units are in the names: _s, _bytes, _tokens, _bytes_per_s."""

    format: Literal["headrace-record"]
    version: int
    fingerprint: Fingerprint
    measurements: Measurements


def records_directory(environment: Mapping[str, str]) -> Path:
    """In the cache, beside models and kernels."""
    return cache_directory(environment).parent / "records"


def record_path(directory: Path, fingerprint: Fingerprint, *, is_brief: bool = False) -> Path:
    """Where the record of this fingerprint lies or would lie; the brief one has a place of its own."""
    return directory / f"{fingerprint.digest}{'.brief' if is_brief else ''}.json"


def make_directory(path: Path) -> None:
    """Make the folder of a record that is to be written.

    Raises:
        RecordFileError: it cannot be, or nothing can be written into it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise RecordFileError(_cannot_be_written(path, error)) from error


def _cannot_be_written(path: Path, error: OSError) -> str:
    return f"the record {path} cannot be written ({error.strerror}): set HEADRACE_CACHE to a folder that can"


def write_record(path: Path, record: PerformanceRecord) -> None:
    """Replace `path` as a whole: a reader sees the old record or the new one. Emulation caps are not part of it.

    Raises:
        ImplausibleRecordError: it could not be read again.
        RecordFileError: the file cannot be written.
    """
    check_measurements(record.measurements)
    document = _Document("headrace-record", VERSION, record.fingerprint, record.measurements)
    make_directory(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RecordFileError(_cannot_be_written(path, error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_record(path: Path, expected: Fingerprint | None = None, *, may_be_brief: bool = False) -> PerformanceRecord:
    """Read a record and check that its numbers are possible.

    Args:
        expected: of what is to be planned; None: of anything.
        may_be_brief: it may lack the link, of which nothing is planned then.

    Raises:
        FileNotFoundError: nothing lies there.
        OutdatedRecordError: what lies there is of an older version.
        RecordFileError: no record, of a newer version, damaged, or brief.
        ImplausibleRecordError: see `offload.record_check`.
        RecordMismatchError: the record is of something else than `expected`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordFileError(f"the record {path} cannot be read ({error.strerror})") from error
    again = "delete it and measure again with `headrace profile`"
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordFileError(f"{path} is not a performance record ({error}); {again}") from error
    if header.version < VERSION:
        raise OutdatedRecordError(
            f"the record {path} is of version {header.version}, from an older build: this one reads {VERSION} and goes "
            "on as if there were none"
        )
    if header.version != VERSION:
        raise RecordFileError(f"{path} is a record of version {header.version}, this build reads {VERSION}; {again}")
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.DecodeError as error:
        raise RecordFileError(f"the record {path} is damaged ({error}); {again}") from error
    if expected is not None:
        check_fingerprint(path, document.fingerprint, expected)
    if document.measurements.is_brief and not may_be_brief:
        raise RecordFileError(f"the record {path} is a brief one, which holds nothing of the link; {again}")
    check_measurements(document.measurements)
    return PerformanceRecord(document.fingerprint, document.measurements)


def check_fingerprint(path: Path, found: Fingerprint, expected: Fingerprint) -> None:
    """
    Raises:
        RecordMismatchError: they differ.
    """
    differences = [f"{name} is {mine!r}, here it is {here!r}" for name, mine, here in found.differences(expected)]
    if differences:
        raise RecordMismatchError(
            f"the record {path} is of something else: {'; '.join(differences)}. Measure again with `headrace profile`"
        )
