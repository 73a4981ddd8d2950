"""A directory that one process uses at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from offload.errors import OffloadError

LOCK_NAME = "lock"


class DirectoryLockedError(OffloadError):
    """Another process uses it."""


class DirectoryLock:
    """An flock on the file "lock" in the directory: it ends with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        """Take it; the directory exists.

        Raises:
            DirectoryLockedError: another process has it, or another lock of this one.
            OSError: the file cannot be opened, or the file system knows no locks.
        """
        path = directory / LOCK_NAME
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise DirectoryLockedError(f"{directory} is in use by process {owner or 'unknown'}") from error
            except OSError:
                os.close(descriptor)
                raise
            if _is_file_at(path, descriptor):
                break
            os.close(descriptor)  # who had it before has moved the directory away
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_file_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return False
