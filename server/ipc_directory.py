"""The directory of the sockets between the HTTP process and its engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

import zmq

from engine.errors import EngineStartError

_PREFIX = "headrace-"
_LOCK_NAME = "owner.lock"
_LONGEST_NAME = "/1000000000.out"


class IpcDirectory:
    """A fresh directory of mode 0700 in the system's place for temporary files; `remove` when done.

    As long as it is in use its owner holds a lock on a file in it. The kernel lets go of it with the owner, however
    that ends, so that `sweep_dead_directories` can tell what is left over; a number of a process could be another's.
    """

    def __init__(self) -> None:
        """Raises EngineStartError: its path is too long for a Unix socket, or it cannot be made."""
        try:
            self.path, self._lock = _make_locked()
        except OSError as error:
            raise EngineStartError(
                f"no directory for sockets can be made in {tempfile.gettempdir()}: {error.strerror}; "
                f"set TMPDIR to one that can be written"
            ) from error
        length = len(os.fsencode(self.path)) + len(_LONGEST_NAME)
        if length > zmq.IPC_PATH_MAX_LEN:
            self.remove()
            raise EngineStartError(
                f"a socket in {self.path} would have a path of {length} bytes, the system allows "
                f"{zmq.IPC_PATH_MAX_LEN}; set TMPDIR to a directory with a shorter path"
            )

    def unlink_sockets(self, generation: int) -> None:
        """Remove what the `generation`-th engine process and this one talked over."""
        for path in self.path.glob(f"{generation}.*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it with everything in it; nothing the second time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _make_locked() -> tuple[Path, int | None]:
    """A directory and the descriptor that holds its lock; made anew if a sweep came between file and lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), (path / _LOCK_NAME).stat()):
                return path, lock
        os.close(lock)


def sweep_dead_directories() -> None:
    """Remove this user's directories whose owner was killed before it could."""
    for path in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # somebody else's, in use, or swept by another at this moment
            if _is_private(path):
                _remove_if_dead(path)


def _is_private(path: Path) -> bool:
    """A directory, not a link to one, that only this user may enter."""
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


def _remove_if_dead(path: Path) -> None:
    """Removes sockets and lock only: a directory that holds anything else is not of our making.

    Raises:
        OSError: no lock file, a lock that is held, or other files.
    """
    lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        entries = [entry for entry in path.iterdir() if entry.name != _LOCK_NAME]
        if all(stat.S_ISSOCK(entry.lstat().st_mode) for entry in entries):
            for entry in (*entries, path / _LOCK_NAME):
                entry.unlink()
            path.rmdir()
    finally:
        os.close(lock)
