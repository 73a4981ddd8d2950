"""Where a verb's JSON goes: a file, or stdout."""

from __future__ import annotations

import sys
from pathlib import Path

from loadgen.config import BenchError

STDOUT = "-"


def check_report_path(path: str | None) -> None:
    """Before the work, so that no result is lost to a wrong path.

    Raises:
        BenchError: there is no such directory.
    """
    if path not in (None, STDOUT) and not Path(path).resolve().parent.is_dir():
        raise BenchError(f"cannot write the result to {path}: there is no such directory")


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
