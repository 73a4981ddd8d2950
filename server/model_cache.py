"""The files of known models on this machine: found, verified, replaced as a whole, one fetch at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from server.known_model import KnownModel
from server.model_error import FetchError, ModelError

_FETCH_PREFIX = ".fetch-"
_CHUNK_BYTES = 4 * 1024**2


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """$HEADRACE_CACHE, else $XDG_CACHE_HOME/headrace, else ~/.cache/headrace."""
    if own := environ.get("HEADRACE_CACHE"):
        return Path(own).expanduser()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "headrace"
    return Path.home() / ".cache" / "headrace"


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """Beside each file: what it was when its checksum was last computed."""

    size_bytes: int
    mtime_ns: int
    sha256: str


class ModelCache:
    """A directory with one folder a known model.

    A file appears under its final name only after its checksum matched; a file whose size and time of change are those
    of the record is not hashed again.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path_of(self, model: KnownModel) -> Path:
        """Where the model's file lies or would lie."""
        return self.directory / "models" / model.alias / model.file_name

    def find(self, model: KnownModel, *, full_check: bool = False) -> Path | None:
        """The model's file if it is there and undamaged.

        Args:
            full_check: hash the file even where the record says that it did not change.
        """
        path = self.path_of(model)
        try:
            stat = path.stat()
        except OSError:
            return None
        if stat.st_size != model.size_bytes:
            return None
        known = _read_record(_record_path(path))
        if not full_check and known == _Record(stat.st_size, stat.st_mtime_ns, model.sha256):
            return path
        if sha256_of(path) != model.sha256:
            return None
        with contextlib.suppress(OSError):  # a read-only cache works; it is hashed at each start
            _write_record(path, model.sha256)
        return path

    def install(self, model: KnownModel, fetched: Path) -> Path:
        """Move a fetched file into place.

        Raises:
            FetchError: it is not the file that was asked for; nothing was changed.
        """
        size_bytes = fetched.stat().st_size
        if size_bytes != model.size_bytes:
            raise FetchError(f"{fetched.name} has {size_bytes:,} bytes, {model.size_bytes:,} were expected")
        sha256 = sha256_of(fetched)
        if sha256 != model.sha256:
            raise FetchError(f"{fetched.name} has sha256 {sha256}, {model.sha256} was expected")
        with fetched.open("rb+") as file:
            os.fsync(file.fileno())
        path = self.path_of(model)
        fetched.replace(path)
        _write_record(path, model.sha256)
        return path

    @contextlib.contextmanager
    def exclusive(self, model: KnownModel, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """Hold the model's lock; yields a temporary folder on the cache's own file system.

        Args:
            on_wait: called if another process holds the lock, before waiting for it.

        Raises:
            ModelError: the cache cannot be written.
        """
        folder = self.path_of(model).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock_file = (folder / ".lock").open("w")
        except OSError as error:
            raise ModelError(
                f"the cache {self.directory} cannot be written ({error.strerror}): "
                "set HEADRACE_CACHE to a folder that can"
            ) from error
        with lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock_file, fcntl.LOCK_EX)
            for stale in folder.glob(_FETCH_PREFIX + "*"):  # of a process that was killed: nobody else holds the lock
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=_FETCH_PREFIX, dir=folder) as temporary:
                yield Path(temporary)


def sha256_of(path: Path) -> str:
    """Checksum of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _read_record(path: Path) -> _Record | None:
    try:
        return _Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # absent or damaged: the file is hashed again


def _write_record(path: Path, sha256: str) -> None:
    stat = path.stat()
    record = _Record(stat.st_size, stat.st_mtime_ns, sha256)
    target = _record_path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    temporary.write_text(json.dumps(dataclasses.asdict(record)) + "\n")
    temporary.replace(target)
