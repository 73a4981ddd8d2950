"""What befalls a directory of KV blocks from outside: damage, other versions, loss, files that are none, full disks."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

FOLDER = "headrace-kv"
HEADER_BYTES = 80
_VERSION_AT = 8
_BALLAST = "ballast"


def block_files(disk_path: Path) -> list[Path]:
    """Those there are now."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted((disk_path / FOLDER).glob("*/??")):
            with contextlib.suppress(OSError):
                found += [path for path in sorted(folder.iterdir()) if path.suffix == ".kv" and path.is_file()]
    return found


def used_bytes(disk_path: Path) -> int:
    """What the blocks below take of the disk, half-written ones included."""
    total = 0
    for folder, _, names in os.walk(disk_path / FOLDER):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_blocks * 512 * name.endswith((".kv", ".tmp"))
    return total


def flip_byte(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        at = rng.randrange(path.stat().st_size)
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ (1 << rng.randrange(8))]))


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def lengthen(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:  # no other mode: a file that has just been evicted must not come back
        file.seek(0, os.SEEK_END)
        file.write(bytes(rng.randrange(1, 64)))


def fill_with_zeros(path: Path, rng: random.Random) -> None:
    """As after a crash of the machine: the size is right."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


def other_version(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(_VERSION_AT)
        file.write(b"\x07")


def other_block(path: Path, rng: random.Random) -> None:
    """The content of another file, whole and with a checksum that is right."""
    others = [other for other in block_files(path.parents[3]) if other != path]
    if others:
        with path.open("r+b") as file:
            file.write(rng.choice(others).read_bytes())


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def make_unreadable(path: Path, rng: random.Random) -> None:
    """Not even for root: a link to itself."""
    path.chmod(0)
    if os.geteuid() == 0:
        path.unlink()
        path.symlink_to(path)


def replace_by_directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_folder_by_file(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path.parent)
    path.parent.touch()


def remove_folder(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path.parent)


FileFault = Callable[[Path, random.Random], None]
FILE_FAULTS: tuple[FileFault, ...] = (
    flip_byte, cut, lengthen, fill_with_zeros, other_version, other_block, remove, make_unreadable,
    replace_by_directory, replace_folder_by_file, remove_folder,
)  # fmt: skip


def strike(disk_path: Path, fault: FileFault, share: float, rng: random.Random) -> int:
    """Do it to a share of the files, while a server uses them; to how many."""
    num_struck = 0
    for path in block_files(disk_path):
        if rng.random() < share:
            with contextlib.suppress(OSError):  # it is gone meanwhile
                fault(path, rng)
                num_struck += 1
    return num_struck


def remove_everything(disk_path: Path) -> None:
    shutil.rmtree(disk_path, ignore_errors=True)


class HungFiles:
    """Files that block who opens them, as a dead network disk does: pipes without a writer."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths: list[Path] = []
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink()
                os.mkfifo(path)
                self._paths.append(path)

    def release(self) -> None:
        """Who hangs gets an empty file."""
        for path in self._paths:
            with contextlib.suppress(OSError):  # ENXIO: nobody hangs
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[bool]:
    """A file system of that size at `path`, where this user may mount one; False: it is an ordinary directory."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "none", str(path)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, timeout=10, check=True)


def fill(mounted: Path) -> None:
    """Not a block more fits the file system."""
    with contextlib.suppress(OSError), (mounted / _BALLAST).open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def empty(mounted: Path) -> None:
    """Take that back."""
    (mounted / _BALLAST).unlink(missing_ok=True)


def limit_files(process: psutil.Process, num_bytes: int | None) -> None:
    """No file that the process writes gets longer (EFBIG); needs no rights. None: without a limit again."""
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (hard if num_bytes is None else num_bytes, hard))
