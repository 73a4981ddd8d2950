"""Files of blocks, as the system reads and writes them."""

from __future__ import annotations

import os
from pathlib import Path


class BlockFiles:
    """Calls of the system; the tests put errors and delays here. All of them may raise `OSError`."""

    def write(self, path: Path, header: bytes, block: memoryview) -> None:
        """A new file, or another content of this one.

        Without fsync: these are copies of what can be computed again. After a crash of the machine a file may be short
        or hold zeros; size and checksum tell. An fsync a block would hold the thread for milliseconds each.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, [memoryview(header), block])
        finally:
            os.close(descriptor)

    def read(self, path: Path, header: bytearray, block: memoryview) -> bool:
        """Fill both; whether the file has exactly as many bytes."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != len(header) + len(block):
                return False
            return _read_all(descriptor, [memoryview(header), block])
        finally:
            os.close(descriptor)

    def mark_used(self, path: Path, used_s: float) -> None:
        """Note on a file when it was used; seconds of the wall clock."""
        os.utime(path, (used_s, used_s))

    def forget(self, path: Path) -> None:
        """Have the next read come from the disk, where the system lets one ask for that."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def free_bytes(self, path: Path) -> int:
        """Of the file system, for this user."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def _write_all(descriptor: int, parts: list[memoryview]) -> None:
    while parts:
        parts = _rest(parts, os.writev(descriptor, parts))


def _read_all(descriptor: int, parts: list[memoryview]) -> bool:
    """Whether there was enough."""
    while parts:
        num_bytes = os.readv(descriptor, parts)
        if num_bytes == 0:
            return False
        parts = _rest(parts, num_bytes)
    return True


def _rest(parts: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of `parts` behind the first bytes: the system may stop anywhere."""
    rest = []
    for part in parts:
        if num_bytes < len(part):
            rest.append(part[num_bytes:])
        num_bytes = max(0, num_bytes - len(part))
    return rest
