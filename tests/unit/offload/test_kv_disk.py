"""Files of KV blocks: what is found at a start, what is refused, and how each kind of damage and error ends."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offload.kv_directory import block_path
from offload.kv_disk import POSITION_S, DiskTier, DiskTierError
from offload.kv_file import HEADER_BYTES, KVFileFormat, checksum
from offload.kv_request import MoveOutcome
from tests.kv_tiers import BLOCK_BYTES, FINGERPRINT, FaultyFiles, block_of, key

DONE, FAILED, CORRUPT, ABSENT, FULL = MoveOutcome
DISK_BYTES = KVFileFormat(FINGERPRINT.digest, BLOCK_BYTES).disk_bytes
ROOM = 8 * DISK_BYTES
OTHER = dataclasses.replace(FINGERPRINT, dtype="float32")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def disk(tmp_path: Path, files: FaultyFiles) -> Iterator[DiskTier]:
    opened = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files)
    yield opened
    opened.close()


def content(number: int) -> memoryview:
    return memoryview(block_of(number).numpy().tobytes())


def write(disk: DiskTier, number: int) -> MoveOutcome:
    return disk.write(key(number), content(number), checksum(content(number)))


def read(disk: DiskTier, number: int) -> MoveOutcome:
    """Checks what arrives."""
    into = memoryview(bytearray(BLOCK_BYTES))
    outcome, block_checksum = disk.read(key(number), into)
    if outcome is DONE:
        assert into == content(number) and block_checksum == checksum(into)
    return outcome


def file_of(disk: DiskTier, number: int) -> Path:
    return block_path(disk.directory, key(number))


def names(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def reopened(disk: DiskTier, limit_bytes: int = ROOM) -> DiskTier:
    disk.close()
    return DiskTier(disk.directory.parents[1], FINGERPRINT, BLOCK_BYTES, limit_bytes)


def test_a_block_is_one_file_of_its_hash(disk: DiskTier, tmp_path: Path) -> None:
    assert write(disk, 1) is DONE and read(disk, 1) is DONE and read(disk, 2) is ABSENT
    name = key(1).hex()
    folder = f"headrace-kv/{FINGERPRINT.digest}"
    assert names(tmp_path) == [f"{folder}/{name[:2]}/{name}.kv", f"{folder}/lock", f"{folder}/manifest.json"]
    assert json.loads((tmp_path / folder / "manifest.json").read_text()) == dataclasses.asdict(FINGERPRINT)
    assert file_of(disk, 1).stat().st_size == HEADER_BYTES + BLOCK_BYTES
    assert disk.delete(key(1)) is DONE and read(disk, 1) is ABSENT and disk.delete(key(1)) is DONE


def test_what_was_written_outlives_the_server_in_the_order_of_use(disk: DiskTier) -> None:
    for number in (1, 2, 3):
        assert write(disk, number) is DONE
        os.utime(file_of(disk, number), (number, number))
    assert read(disk, 1) is DONE
    disk.touch(key(1), 0)
    after = reopened(disk)
    assert after.hashes == (key(2), key(3), key(1)) and after.num_blocks == 8
    assert [read(after, number) for number in (1, 2, 3)] == [DONE] * 3
    after.close()


def test_less_room_keeps_what_was_used_last(disk: DiskTier) -> None:
    for number in range(1, 6):
        write(disk, number)
        os.utime(file_of(disk, number), (number, number))
    after = reopened(disk, 2 * DISK_BYTES)
    assert after.hashes == (key(4), key(5)) and after.num_blocks == 2
    assert [number for number in range(1, 6) if file_of(disk, number).exists()] == [4, 5]
    assert write(after, 6) is FULL and write(after, 5) is DONE, "over the limit; one that is there may be replaced"
    assert after.delete(key(4)) is DONE and write(after, 6) is DONE
    after.check()
    after.close()


def test_leftovers_and_wrong_sizes_are_removed_at_the_start(disk: DiskTier) -> None:
    for number in range(1, 5):
        write(disk, number)
    file_of(disk, 1).with_suffix(".tmp").write_bytes(b"half")
    file_of(disk, 2).write_bytes(b"short")
    with file_of(disk, 3).open("ab") as longer:
        longer.write(b"x")
    (file_of(disk, 1).parent / "notes.txt").write_text("nobody's")
    file_of(disk, 4).rename(file_of(disk, 4).with_name("zz.kv"))
    after = reopened(disk)
    assert after.hashes == (key(1),)
    assert names(after.directory) == [str(file_of(disk, 1).relative_to(disk.directory)), "lock", "manifest.json"]
    after.close()


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES - 1])
def test_a_truncated_file_is_corrupt(disk: DiskTier, length: int) -> None:
    write(disk, 1)
    os.truncate(file_of(disk, 1), length)
    assert read(disk, 1) is CORRUPT
    assert write(disk, 1) is DONE and read(disk, 1) is DONE
    disk.check()


@pytest.mark.parametrize("offset", [0, 8, 20, 24, 40, 60, HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES - 1])
def test_a_flipped_byte_is_corrupt(disk: DiskTier, offset: int) -> None:
    write(disk, 1)
    with file_of(disk, 1).open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
    assert read(disk, 1) is CORRUPT


def test_a_file_of_another_block_or_another_fingerprint_is_corrupt(disk: DiskTier, tmp_path: Path) -> None:
    write(disk, 1)
    file_of(disk, 2).parent.mkdir(exist_ok=True)
    shutil.copy(file_of(disk, 1), file_of(disk, 2))
    assert read(disk, 2) is CORRUPT
    other = DiskTier(tmp_path, OTHER, BLOCK_BYTES, ROOM)
    assert other.hashes == () and read(other, 1) is ABSENT
    write(other, 1)
    shutil.copy(file_of(other, 1), file_of(disk, 1))
    assert read(disk, 1) is CORRUPT
    other.close()
    disk.delete(key(2))


def test_blocks_beside_another_manifest_are_not_used(disk: DiskTier) -> None:
    write(disk, 1)
    (disk.directory / "manifest.json").write_text(OTHER.manifest)
    after = reopened(disk)
    assert after.hashes == () and not file_of(disk, 1).exists()
    assert (disk.directory / "manifest.json").read_text() == FINGERPRINT.manifest
    after.close()


def test_a_file_that_is_deleted_under_us_is_absent_and_its_room_is_free(disk: DiskTier) -> None:
    for number in range(8):
        assert write(disk, number) is DONE
    file_of(disk, 3).unlink()
    assert read(disk, 3) is ABSENT and write(disk, 8) is DONE and write(disk, 9) is FULL


def test_a_directory_that_is_deleted_under_us_comes_back(disk: DiskTier) -> None:
    write(disk, 1)
    shutil.rmtree(disk.directory)
    assert read(disk, 1) is ABSENT and write(disk, 2) is DONE and read(disk, 2) is DONE


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_an_error_of_the_disk_is_no_damage(disk: DiskTier, files: FaultyFiles, number: int) -> None:
    write(disk, 1)
    files.errors = dict.fromkeys(("read", "write", "remove"), number)
    assert (read(disk, 1), write(disk, 2), disk.delete(key(1))) == (FAILED, FAILED, FAILED)
    files.errors = {"rename": number}
    assert write(disk, 2) is FAILED
    files.errors = {}
    assert read(disk, 1) is DONE and read(disk, 2) is ABSENT
    assert not list(disk.directory.rglob("*.tmp"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_is_full_and_leaves_nothing_behind(disk: DiskTier, files: FaultyFiles, number: int) -> None:
    write(disk, 1)
    before = names(disk.directory)
    files.errors = {"write": number}
    assert write(disk, 2) is FULL and names(disk.directory) == before
    assert write(disk, 1) is FULL and read(disk, 1) is DONE, "what was there stays"
    files.errors = {}
    assert write(disk, 2) is DONE
    disk.check()


def test_a_write_that_is_given_up_leaves_no_file(disk: DiskTier) -> None:
    assert disk.write(key(1), content(1), checksum(content(1)), claim=lambda: False) is FAILED
    assert read(disk, 1) is ABSENT and names(disk.directory) == ["lock", "manifest.json"]


def test_two_servers_do_not_share_a_directory(disk: DiskTier, tmp_path: Path) -> None:
    with pytest.raises(DiskTierError, match=rf"{tmp_path}: .*in use by process {os.getpid()}.*--disk-path of its own"):
        DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM)
    other = DiskTier(tmp_path, OTHER, BLOCK_BYTES, ROOM)  # of another model or dtype: a folder of its own
    other.close()
    reopened(disk).close()


def test_a_path_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskTierError, match=r"--disk-path .*file cannot be used: Not a directory; give a directory"):
        DiskTier(tmp_path / "file", FINGERPRINT, BLOCK_BYTES, ROOM)
    with pytest.raises(
        DiskTierError, match=rf"--disk-size is {DISK_BYTES - 1:,} bytes, one KV block needs {DISK_BYTES:,}"
    ):
        DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, DISK_BYTES - 1)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["write", "read"])
def test_a_disk_that_fails_at_the_start_is_refused_and_unlocked(tmp_path: Path, files: FaultyFiles, call: str) -> None:
    files.errors = {call: errno.EIO}
    with pytest.raises(DiskTierError, match=r"cannot be used: Input/output error"):
        DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files)
    DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM).close()
    assert names(tmp_path / "headrace-kv" / FINGERPRINT.digest) == ["lock", "manifest.json"]


def test_the_free_space_of_the_disk_bounds_the_blocks(tmp_path: Path, files: FaultyFiles) -> None:
    files.max_bytes = 3 * DISK_BYTES
    first = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files)
    assert first.num_blocks == 3
    write(first, 1)
    first.close()
    files.max_bytes = 2 * DISK_BYTES  # the third is in our hands
    second = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files)
    assert second.num_blocks == 3 and second.hashes == (key(1),)
    second.close()
    shutil.rmtree(tmp_path / "headrace-kv")
    files.max_bytes = DISK_BYTES - 1
    with pytest.raises(DiskTierError, match=rf"has {DISK_BYTES - 1:,} bytes free, one KV block needs {DISK_BYTES:,}"):
        DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files)


def test_on_a_disk_that_our_own_blocks_fill_the_oldest_gives_way(disk: DiskTier, files: FaultyFiles) -> None:
    for number in (1, 2, 3):
        write(disk, number)
        os.utime(file_of(disk, number), (number, number))
    disk.close()

    def full_until_one_is_gone() -> None:
        if file_of(disk, 1).exists():
            raise OSError(errno.ENOSPC, "full")

    files.max_bytes, files.before = 0, {"write": full_until_one_is_gone}
    after = DiskTier(disk.directory.parents[1], FINGERPRINT, BLOCK_BYTES, ROOM, files)
    assert after.hashes == (key(2), key(3))
    after.close()


def test_blocks_of_other_fingerprints_go_when_their_room_is_needed(tmp_path: Path) -> None:
    others = [dataclasses.replace(FINGERPRINT, tp_rank=rank) for rank in (1, 2, 3)]
    for age, fingerprint in enumerate(others):
        with_blocks = DiskTier(tmp_path, fingerprint, BLOCK_BYTES, 4 * ROOM)
        for number in range(3):
            write(with_blocks, number)
        os.utime(with_blocks.directory / "manifest.json", (age, age))
        with_blocks.close()
    running = DiskTier(tmp_path, others[1], BLOCK_BYTES, 4 * ROOM)
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM)

    def left(fingerprint: object) -> int:
        return len(list((tmp_path / "headrace-kv" / fingerprint.digest).rglob("*.kv")))  # type: ignore[attr-defined]

    assert [write(disk, number) for number in (1, 2)] == [DONE, DONE]
    assert [left(each) for each in others] == [3, 3, 3], "2 of ours and 6 that count: 8, there is room"
    assert write(disk, 3) is DONE
    assert [left(each) for each in others] == [0, 3, 3] and len(list(tmp_path.rglob("*.kv"))) == 3 + 3 + 3 + 2
    for number in range(4, 9):
        assert write(disk, number) is DONE
    assert [left(each) for each in others] == [0, 3, 0], "a running server's stay"
    assert len(list(tmp_path.rglob("*.kv"))) == 3 + 8 and not list(tmp_path.rglob("removed-*"))
    assert [read(running, number) for number in range(3)] == [DONE] * 3
    running.close()
    disk.close()


def test_a_full_disk_takes_the_room_of_other_fingerprints_first(tmp_path: Path, files: FaultyFiles) -> None:
    other = DiskTier(tmp_path, OTHER, BLOCK_BYTES, ROOM)
    write(other, 1)
    other.close()
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files)

    def full_until_it_is_gone() -> None:
        if list((tmp_path / "headrace-kv").rglob(f"{key(1).hex()}.kv")):
            raise OSError(errno.ENOSPC, "full")

    files.before = {"write": full_until_it_is_gone}
    assert write(disk, 2) is DONE and read(disk, 2) is DONE
    disk.close()


def test_speeds_are_known_from_the_start(tmp_path: Path) -> None:
    times = iter(float(second) for second in range(100))
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, clock=lambda: next(times))
    assert disk.reads.bytes_per_s == disk.writes.bytes_per_s == HEADER_BYTES + BLOCK_BYTES
    assert disk.reads.num_bytes == disk.writes.num_bytes == 0
    assert write(disk, 1) is DONE and disk.writes.num_bytes == HEADER_BYTES + BLOCK_BYTES and disk.writes.busy_s == 1
    disk.close()


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_no_descriptor_is_left_open(disk: DiskTier, files: FaultyFiles) -> None:
    before = num_open_files()
    for _ in range(20):
        write(disk, 1), read(disk, 1), read(disk, 2)
        files.errors = {"write": errno.ENOSPC, "read": errno.EIO}
        write(disk, 1), read(disk, 1)
        files.errors = {}
        with pytest.raises(DiskTierError):
            DiskTier(disk.directory.parents[1], FINGERPRINT, BLOCK_BYTES, ROOM)
    assert num_open_files() == before


PRELUDE = f"""
import itertools, sys
from pathlib import Path
from offload.kv_disk import DiskTier
from offload.kv_file import checksum
from offload.kv_fingerprint import KVFingerprint
FINGERPRINT = {FINGERPRINT!r}
def key(number):
    return number.to_bytes(16, "big")
"""
WRITER = """
size = 1 << 20
disk = DiskTier(Path(sys.argv[1]), FINGERPRINT, size, 1 << 27)
print("open", flush=True)
for number in itertools.count():
    block = memoryview(bytes([number % 251]) * size)
    disk.write(key(number % 40), block, checksum(block))
    if number == 60:
        print("some", flush=True)
"""


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRELUDE + code, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_server_that_is_killed_as_it_writes_leaves_whole_blocks_and_no_lock(tmp_path: Path) -> None:
    with run_python(WRITER, str(tmp_path)) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(DiskTierError, match=f"in use by process {writer.pid}"):
            DiskTier(tmp_path, FINGERPRINT, 1 << 20, 1 << 27)
        assert writer.stdout.readline() == "some\n"
        writer.send_signal(signal.SIGKILL)
    half = block_path(tmp_path / "headrace-kv" / FINGERPRINT.digest, key(77)).with_suffix(".tmp")
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"as if it had been killed between the temporary file and its name")
    disk = DiskTier(tmp_path, FINGERPRINT, 1 << 20, 1 << 27)
    assert set(disk.hashes) == {key(number) for number in range(40)}
    into = memoryview(bytearray(1 << 20))
    for block_hash in disk.hashes:
        assert disk.read(block_hash, into)[0] is DONE
        assert len(set(into)) == 1 and any(
            number % 251 == into[0] and key(number % 40) == block_hash for number in range(10_000)
        )
    disk.check()
    disk.close()


SMALL_DISK = """
size = 100_000
disk = DiskTier(Path(sys.argv[1]), FINGERPRINT, size, 1 << 40)
blocks = [memoryview(bytes([number]) * size) for number in range(30)]
if sys.argv[2] == "limit":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
else:
    (Path(sys.argv[1]) / "of another tenant").write_bytes(bytes(1_000_000))
outcomes = [disk.write(key(number), block, checksum(block)) for number, block in enumerate(blocks)]
num_done = outcomes.count("done")
assert outcomes == ["done"] * num_done + ["full"] * (30 - num_done), outcomes
assert not list(Path(sys.argv[1]).rglob("*.tmp"))
if num_done:
    into = memoryview(bytearray(size))
    assert all(disk.read(key(number), into)[0] == "done" and into == blocks[number] for number in range(num_done))
    assert disk.delete(key(0)) == "done" and disk.write(key(29), blocks[29], checksum(blocks[29])) == "done"
disk.check()
print(num_done, disk.num_blocks)
"""


def test_a_limit_of_the_system_on_files_is_full(tmp_path: Path) -> None:
    with run_python(SMALL_DISK, str(tmp_path), "limit") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and output.split()[0] == "0"


def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=3m none "$0" && exec "$@"']
    if (
        not shutil.which("unshare")
        or subprocess.run([*mount, str(tmp_path), "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this system lets no user mount a small file system")
    command = [*mount, str(tmp_path), sys.executable, "-c", PRELUDE + SMALL_DISK, str(tmp_path), "tmpfs"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    num_done, num_blocks = map(int, ended.stdout.split())
    assert 15 <= num_done <= 21 and num_blocks == 30, "3 MiB less 1 MB of somebody else's, in blocks of 102,400 bytes"


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(DiskTierError, match="cannot be used: No locks available"):
        DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM)


def test_what_is_no_file_of_a_block_stops_neither_a_start_nor_a_block(disk: DiskTier) -> None:
    """A directory where a block was, and a file where its folder was."""
    first, second = 1, 1 << 120  # in folders of their own
    for number in (first, second):
        assert disk.write(key(number), content(1), checksum(content(1))) is DONE
        shutil.rmtree(file_of(disk, number).parent)
    file_of(disk, first).mkdir(parents=True)
    file_of(disk, second).parent.touch()
    assert read(disk, first) is CORRUPT and read(disk, second) is ABSENT
    assert disk.delete(key(first)) is FAILED and disk.delete(key(second)) is DONE
    again = reopened(disk)
    try:
        assert again.hashes == ()
        assert write(again, 3) is DONE and read(again, 3) is DONE
    finally:
        again.close()


def test_a_start_on_a_full_disk_leaves_the_manifest_as_it_is(disk: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written anew it would be cut to nothing first, and blocks beside another manifest are somebody else's."""
    assert write(disk, 1) is DONE
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: pytest.fail("the manifest was written"))
    again = reopened(disk)
    again.close()
    assert again.hashes == (key(1),)


def test_of_a_prefix_the_tail_is_older_than_the_head_though_it_is_written_later(tmp_path: Path) -> None:
    now_s = 1_000_000.0
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, wall_clock=lambda: now_s)
    for number in range(4):
        disk.write(key(number), content(number), checksum(content(number)), position=number)
        now_s += 0.5
    times = [file_of(disk, number).stat().st_mtime for number in range(4)]
    assert times == [1_000_000.0 + number * (0.5 - POSITION_S) for number in range(4)]
    after = reopened(disk, 3 * DISK_BYTES)
    assert after.hashes == (key(2), key(1), key(0)), "the tail gave way"
    after.close()


def test_a_touched_block_counts_as_used_and_a_missing_one_as_nothing(tmp_path: Path, files: FaultyFiles) -> None:
    now_s = 1_000_000.0
    disk = DiskTier(tmp_path, FINGERPRINT, BLOCK_BYTES, ROOM, files, wall_clock=lambda: now_s)
    for number in (1, 2, 3):
        disk.write(key(number), content(number), checksum(content(number)))
    now_s += 100.0
    disk.touch(key(1), 30)
    disk.touch(key(2), 10)
    disk.touch(key(7), 0)
    assert [file_of(disk, number).stat().st_mtime - now_s for number in (1, 2, 3)] == [-30.0, -10.0, -100.0]
    assert not file_of(disk, 7).exists()
    files.errors["mark_used"] = errno.EPERM
    disk.touch(key(3), 0)
    disk.write(key(4), content(4), checksum(content(4)), position=2)
    assert read(disk, 4) is DONE, "where times may not be set blocks are kept all the same"
    after = reopened(disk)
    assert after.hashes[:3] == (key(3), key(1), key(2))
    after.close()
