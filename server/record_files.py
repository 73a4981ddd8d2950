"""The files that a server appends to as long as it lives, tried before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from engine.errors import EventLogError
from engine.event_log import check_event_log


class RecordFileError(Exception):
    """The message names the option, the file and what is wrong with it."""


def check_record_files(event_log_path: str | None, request_log_path: str | None) -> None:
    """Make each file if there is none.

    Raises:
        RecordFileError: one cannot be written, is not what it should be, or is both.
    """
    if request_log_path is not None:
        try:
            Path(request_log_path).open("a", encoding="utf-8").close()
        except OSError as error:
            raise RecordFileError(
                f"--request-log {request_log_path}: {error.strerror}; "
                f"name a file that can be written, in a directory that exists"
            ) from error
    if event_log_path is not None:
        try:
            if request_log_path is not None and Path(event_log_path).samefile(request_log_path):
                raise RecordFileError(f"--event-log and --request-log are both {event_log_path}; name two files")
        except FileNotFoundError:
            pass  # then it is not the request log, which was made above
        try:
            check_event_log(Path(event_log_path))
        except EventLogError as error:
            raise RecordFileError(str(error)) from error
