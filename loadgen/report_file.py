"""Where a verb's JSON goes: a file, or stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from loadgen.config import BenchError

STDOUT = "-"


def check_report_path(path: str | None) -> None:
    """Before the work, so that no result is lost to a wrong path.

    Raises:
        BenchError: there is no such directory, it is a directory itself, or it cannot be written.
    """
    if path in (None, STDOUT):
        return
    file = Path(path)
    if file.is_dir():
        raise BenchError(f"cannot write the result to {path}: it is a directory; name a file in it")
    if not file.resolve().parent.is_dir():
        raise BenchError(f"cannot write the result to {path}: there is no such directory")
    if not os.access(file if file.exists() else file.resolve().parent, os.W_OK):
        raise BenchError(f"cannot write the result to {path}: permission denied; name a file that you may write")


def check_report_paths(paths: Mapping[str, str | None], read: Mapping[str, str | None]) -> None:
    """`check_report_path` of each, and that none is written over another one, or over what is read.

    Args:
        paths: by option, what is written.
        read: by option, what is read.

    Raises:
        BenchError: one cannot be written, or two are the same file.
    """
    options = {Path(path).resolve(): option for option, path in read.items() if path is not None}
    for option, path in paths.items():
        check_report_path(path)
        if path in (None, STDOUT) or (Path(path).exists() and not Path(path).is_file()):  # as /dev/null
            continue
        other = options.setdefault(Path(path).resolve(), option)
        if other != option:
            raise BenchError(f"{other} and {option} are the same file, {path}: give each one of its own")


def write_report(path: str | None, text: str) -> None:
    """Write `text` and the end of its line; None: nothing is written.

    Raises:
        BenchError: the file cannot be written.
    """
    if path is None:
        return
    if path == STDOUT:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write the result to {path}: {error.strerror}") from error
