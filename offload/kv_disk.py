"""Blocks of KV as files, one each, in a directory that outlives the server."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable
from pathlib import Path

from offload.block_files import BlockFiles
from offload.errors import OffloadError
from offload.io_speed import IoSpeed
from offload.kv_directory import TEMPORARY_SUFFIX, ForeignBlocks, FoundBlock, block_path, find_blocks
from offload.kv_directory_lock import DirectoryLock, DirectoryLockedError
from offload.kv_file import HEADER_BYTES, KVFileError, KVFileFormat, checksum
from offload.kv_fingerprint import KVFingerprint
from offload.kv_request import MoveOutcome

FOLDER = "headrace-kv"
"""Below `--disk-path`."""
MANIFEST = "manifest.json"
_PROBE = "probe"
POSITION_S = 1.0
"""A block looks so much longer unused than the one before it in its prefix. Without its head a tail is of no use, so it
must go first, although it is written later: by less than this a block."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskTierError(OffloadError):
    """The directory cannot be used; names it, what is wrong and the way out."""


class DiskTier:
    """`<path>/headrace-kv/<fingerprint>/<2 digits>/<hash>.kv`.

    Who asks decides what is kept: nothing is evicted here while the server runs, but what other fingerprints left goes
    when the room is needed. `read` is for one thread, `write`, `touch` and `delete` for one other.
    """

    def __init__(
        self,
        path: Path,
        fingerprint: KVFingerprint,
        block_bytes: int,
        limit_bytes: int,
        files: BlockFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Lock the directory, see what it holds, and try it with one block.

        Args:
            limit_bytes: of all blocks below `path` together (`--disk-size`).
            wall_clock: for the times of files, which outlive the server.

        Raises:
            DiskTierError: it is in use, cannot be written, or has no room for one block.
        """
        self._format = KVFileFormat(fingerprint.digest, block_bytes)
        self._files = files or BlockFiles()
        self._clock = clock
        self._wall_clock = wall_clock
        self.directory = path / FOLDER / fingerprint.digest
        self.reads = IoSpeed()
        self.writes = IoSpeed()
        self._limit_bytes = limit_bytes
        _require_size(limit_bytes, self._format)
        self._lock = self._take_lock(path)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._lock.release)
            self._open(path, fingerprint)
            on_failure.pop_all()

    @property
    def block_bytes(self) -> int:
        return self._format.block_bytes

    @property
    def num_blocks(self) -> int:
        """How many files there may be, by the limit and by what the disk had free at the start."""
        return self._num_blocks

    @property
    def file_bytes(self) -> int:
        """What one block takes of the disk."""
        return self._format.disk_bytes

    @property
    def num_foreign_bytes(self) -> int:
        """Of blocks that other fingerprints left: they go when room is needed."""
        return self._foreign.num_bytes

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Of the blocks that were there at the start, the longest unused first."""
        return self._recovered

    def write(
        self,
        block_hash: bytes,
        block: memoryview,
        block_checksum: int,
        claim: Callable[[], bool] = lambda: True,
        position: int = 0,
    ) -> MoveOutcome:
        """Make or replace the file of a block, of bytes that nobody changes meanwhile.

        The file appears under its name with all of its bytes or not at all.

        Args:
            claim: asked when it is there; False: it is not wanted any more and is removed again.
            position: in its prefix; what is behind looks older.
        """
        if block_hash not in self._held and len(self._held) >= self._num_blocks:
            return MoveOutcome.FULL
        path = block_path(self.directory, block_hash)
        header = self._format.header(block_hash, block_checksum)
        self._make_room()
        started_s = self._clock()
        try:
            self._write_file(path, header, block, position)
        except OSError as error:
            if error.errno not in _NO_SPACE or not self._foreign.make_room(self._format.disk_bytes):
                return _failure(error)
            return self._write_once_more(path, block_hash, header, block, claim, position)
        self.writes.add(self._format.file_bytes, self._clock() - started_s)
        return self._keep(block_hash, claim)

    def touch(self, block_hash: bytes, position: int) -> None:
        """The block was used: the next server is to keep it longer. That fails in silence, as where there is none."""
        with contextlib.suppress(OSError):
            self._mark_used(block_path(self.directory, block_hash), position)

    def read(self, block_hash: bytes, into: memoryview) -> tuple[MoveOutcome, int]:
        """Fill `into` with a block; how that ended, and its checksum. Unless it is DONE, `into` is undefined."""
        header = bytearray(HEADER_BYTES)
        started_s = self._clock()
        try:
            if not self._files.read(block_path(self.directory, block_hash), header, into):
                return MoveOutcome.CORRUPT, 0
            found = self._format.verify(header, into, block_hash)
        except (FileNotFoundError, NotADirectoryError):
            self._held.discard(block_hash)  # its room is free; one step under the interpreter's lock
            return MoveOutcome.ABSENT, 0
        except OSError:
            return MoveOutcome.FAILED, 0
        except KVFileError:
            return MoveOutcome.CORRUPT, 0
        self.reads.add(self._format.file_bytes, self._clock() - started_s)
        return MoveOutcome.DONE, found

    def delete(self, block_hash: bytes) -> MoveOutcome:
        """Remove the file of a block; DONE where there is none."""
        try:
            self._files.remove(block_path(self.directory, block_hash))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return MoveOutcome.FAILED
        self._held.discard(block_hash)
        return MoveOutcome.DONE

    def close(self) -> None:
        """Let others use the directory; idempotent. The blocks stay."""
        self._lock.release()

    def check(self) -> None:
        """Assert, while nothing is written, that the files are those that were kept, and within the limit."""
        found, strays = find_blocks(self.directory, self._format.file_bytes)
        assert not strays, strays
        assert {block.block_hash for block in found} <= self._held, "a file that nobody knows of"
        assert len(self._held) <= self._num_blocks

    def _take_lock(self, path: Path) -> DirectoryLock:
        try:
            self._files.make_directory(self.directory)
            return DirectoryLock(self.directory)
        except DirectoryLockedError as error:
            raise DiskTierError(
                f"--disk-path {path}: {error}, which serves the same model with the same settings; "
                "give each server a --disk-path of its own"
            ) from error
        except OSError as error:
            raise _unusable(path, error) from error

    def _open(self, path: Path, fingerprint: KVFingerprint) -> None:
        try:
            self._keep_manifest(fingerprint)
            found, strays = find_blocks(self.directory, self._format.file_bytes)
            for stray in strays:
                self._remove_stray(stray)
            self._foreign = ForeignBlocks(self.directory.parent, self.directory)
            self._num_blocks = self._capacity(len(found))
            while len(found) > self._num_blocks:
                self._files.remove(found.pop(0).path)
            self._held = {block.block_hash for block in found}
            self._probe(path, found)
        except OSError as error:
            raise _unusable(path, error) from error
        self._recovered = tuple(block.block_hash for block in found)
        self._held = set(self._recovered)

    def _keep_manifest(self, fingerprint: KVFingerprint) -> None:
        """Blocks beside another manifest are of somebody else, whatever the folder's name says."""
        manifest = self.directory / MANIFEST
        with contextlib.suppress(FileNotFoundError):
            if manifest.read_text(encoding="utf-8", errors="replace") == fingerprint.manifest:
                manifest.touch()  # not written again: on a full disk it would be lost, and with it all blocks
                return
            found, strays = find_blocks(self.directory, self._format.file_bytes)
            for stray in (*strays, *(block.path for block in found)):
                self._remove_stray(stray)
        manifest.write_text(fingerprint.manifest, encoding="utf-8")

    def _remove_stray(self, path: Path) -> None:
        """As far as that is allowed: nobody will ask for a directory, or for what is somebody else's."""
        with contextlib.suppress(OSError):
            self._files.remove(path)

    def _capacity(self, num_found: int) -> int:
        """Blocks that may lie on the disk, those that are there and the room of foreign ones included."""
        can_be_had = self._files.free_bytes(self.directory) + self._foreign.num_bytes
        return min(self._limit_bytes // self._format.disk_bytes, num_found + can_be_had // self._format.disk_bytes)

    def _probe(self, path: Path, found: list[FoundBlock]) -> None:
        """Write and read a block: whether that works is known before requests come, and how fast about.

        On a disk that is full the oldest of the blocks that were found give way.

        Raises:
            DiskTierError: there is no room for one block, or it does not come back.
            OSError: as the system says.
        """
        if self._num_blocks < 1:
            raise DiskTierError(
                f"--disk-path {path} has {self._files.free_bytes(self.directory):,} bytes free, one KV block needs "
                f"{self._format.disk_bytes:,}; free some, or give another path"
            )
        self._make_room()
        while True:
            try:
                is_whole = self._try_block()
                break
            except OSError as error:
                if error.errno not in _NO_SPACE or not found:
                    raise
                self._files.remove(found.pop(0).path)
        if not is_whole:
            raise DiskTierError(f"--disk-path {path} does not give back what was written to it; give another path")

    def _try_block(self) -> bool:
        """Whether a block comes back as it was written."""
        probe = self.directory / _PROBE
        block = memoryview(bytearray(self.block_bytes))
        header = bytearray(self._format.header(b"", checksum(block)))
        started_s = self._clock()
        try:
            self._files.write(probe, bytes(header), block)
            written_s = self._clock()
            self._files.forget(probe)  # blocks of the last server are mostly not in memory either
            forgotten_s = self._clock()
            is_whole = self._files.read(probe, header, block)
            read_s = self._clock()
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(probe)
        self.writes.add(self._format.file_bytes, written_s - started_s, is_counted=False)
        self.reads.add(self._format.file_bytes, read_s - forgotten_s, is_counted=False)
        return is_whole

    def _make_room(self) -> None:
        """Foreign blocks go before the limit of all is passed."""
        used = (len(self._held) + 1) * self._format.disk_bytes + self._foreign.num_bytes
        if used > self._limit_bytes and self._foreign.num_bytes:
            self._foreign.make_room(used - self._limit_bytes)

    def _mark_used(self, path: Path, position: int) -> None:
        self._files.mark_used(path, self._wall_clock() - position * POSITION_S)

    def _write_file(self, path: Path, header: bytes, block: memoryview, position: int) -> None:
        temporary = path.with_suffix(TEMPORARY_SUFFIX)
        try:
            try:
                self._files.write(temporary, header, block)
            except FileNotFoundError:
                self._files.make_directory(path.parent)
                self._files.write(temporary, header, block)
            with contextlib.suppress(OSError):  # the block is there all the same
                self._mark_used(temporary, position)
            self._files.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
            raise

    def _write_once_more(
        self, path: Path, block_hash: bytes, header: bytes, block: memoryview, claim: Callable[[], bool], position: int
    ) -> MoveOutcome:
        """The disk was full, and foreign blocks have made room."""
        try:
            self._write_file(path, header, block, position)
        except OSError as error:
            return _failure(error)
        return self._keep(block_hash, claim)

    def _keep(self, block_hash: bytes, claim: Callable[[], bool]) -> MoveOutcome:
        self._held.add(block_hash)
        if claim():
            return MoveOutcome.DONE
        self.delete(block_hash)
        return MoveOutcome.FAILED


def _failure(error: OSError) -> MoveOutcome:
    """Of a write."""
    return MoveOutcome.FULL if error.errno in _NO_SPACE else MoveOutcome.FAILED


def _require_size(limit_bytes: int, form: KVFileFormat) -> None:
    if limit_bytes < form.disk_bytes:
        raise DiskTierError(
            f"--disk-size is {limit_bytes:,} bytes, one KV block needs {form.disk_bytes:,}; raise it, or leave "
            "--disk-path away"
        )


def _unusable(path: Path, error: OSError) -> DiskTierError:
    return DiskTierError(
        f"--disk-path {path} cannot be used: {error.strerror or error}; give a directory that can be written, "
        "or leave it away"
    )
