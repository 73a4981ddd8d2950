"""What lies in the directory of the disk tier when a server starts: blocks of its own fingerprint and of others."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from offload.kv_directory_lock import DirectoryLock, DirectoryLockedError

SUFFIX = ".kv"
TEMPORARY_SUFFIX = ".tmp"
_REMOVED = "removed-"


@dataclasses.dataclass(frozen=True, slots=True)
class FoundBlock:
    """A file whose name and size are those of a block."""

    used_s: float
    """When it was written or used last, by its position in its prefix earlier (see `POSITION_S`)."""
    block_hash: bytes
    path: Path


def block_path(directory: Path, block_hash: bytes) -> Path:
    name = block_hash.hex()
    return directory / name[:2] / f"{name}{SUFFIX}"


def find_blocks(directory: Path, file_bytes: int) -> tuple[list[FoundBlock], list[Path]]:
    """Blocks, the longest unused first, and what is none: left by a process that ended as it wrote, or damaged."""
    found, strays = [], []
    for entry in _files(directory):
        path = Path(entry.path)
        with contextlib.suppress(FileNotFoundError):
            block_hash = _hash_of(path)
            status = entry.stat(follow_symlinks=False)
            if block_hash is None or status.st_size != file_bytes or not stat.S_ISREG(status.st_mode):
                strays.append(path)
            else:
                found.append(FoundBlock(status.st_mtime, block_hash, path))
    return sorted(found, key=lambda block: (block.used_s, block.block_hash)), strays


def _hash_of(path: Path) -> bytes | None:
    if path.suffix != SUFFIX or path.stem != path.stem.lower() or path.parent.name != path.stem[:2]:
        return None
    try:
        return bytes.fromhex(path.stem)
    except ValueError:
        return None


def _files(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Those in the folders of two hexadecimal digits."""
    for folder in sorted(directory.iterdir()):
        if len(folder.name) == 2 and folder.is_dir() and not folder.is_symlink():
            with os.scandir(folder) as entries:
                yield from list(entries)


class ForeignBlocks:
    """Blocks that other fingerprints left: they count against the limit until their room is needed.

    Those of a running server do not: it has a limit of its own. Used by one thread.
    """

    def __init__(self, root: Path, own: Path) -> None:
        """Finds them."""
        folders = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and path != own]
        aged = [(not path.name.startswith(_REMOVED), _used_s(path), path) for path in folders if not _is_in_use(path)]
        self._folders = [path for _, _, path in sorted(aged, reverse=True)]  # the next to go is the last
        self._files: list[tuple[Path, int]] = []  # of the one that is being removed
        self._removing: Path | None = None
        self._sizes = {path: sum(size for _, size in _sizes(path)) for path in self._folders}
        self.num_bytes = sum(self._sizes.values())

    def make_room(self, num_bytes: int) -> bool:
        """Remove files, those of the longest unused fingerprint first, until as many bytes are free; whether they are.

        It is done in small steps, because whoever writes a block waits for it.
        """
        freed = 0
        while freed < num_bytes and (self._files or self._take_folder()):
            if not self._files:
                continue
            path, size = self._files.pop()
            with contextlib.suppress(OSError):
                path.unlink()
            freed += size
            self.num_bytes -= size
            if not self._files and self._removing is not None:
                shutil.rmtree(self._removing, ignore_errors=True)
        return freed >= num_bytes

    def _take_folder(self) -> bool:
        """Move one out of the way, so that no server starts in it while it is being removed; False: none is left."""
        if not self._folders:
            return False
        folder = self._folders.pop()
        target = folder
        self.num_bytes -= self._sizes[folder]
        with contextlib.suppress(DirectoryLockedError, OSError):  # its server has started, or it is gone
            lock = DirectoryLock(folder)
            try:
                if not folder.name.startswith(_REMOVED):
                    target = folder.rename(folder.with_name(f"{_REMOVED}{folder.name}-{os.getpid()}"))
                self._files = _sizes(target)
            finally:
                lock.release()
            self._removing = target
            self.num_bytes += sum(size for _, size in self._files)
            if not self._files:
                shutil.rmtree(target, ignore_errors=True)
        return True


def _is_in_use(folder: Path) -> bool:
    try:
        DirectoryLock(folder).release()
    except DirectoryLockedError:
        return True
    except OSError:
        return True  # not ours to touch
    return False


def _used_s(folder: Path) -> float:
    """When its server was started last."""
    try:
        return (folder / "manifest.json").stat().st_mtime
    except OSError:
        return 0.0


def _sizes(folder: Path) -> list[tuple[Path, int]]:
    """Files of blocks, and what they take of the disk."""
    found = []
    with contextlib.suppress(OSError):
        for entry in _files(folder):
            with contextlib.suppress(OSError):
                found.append((Path(entry.path), entry.stat(follow_symlinks=False).st_blocks * 512))
    return found
