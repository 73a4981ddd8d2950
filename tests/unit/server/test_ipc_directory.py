"""The directory of the sockets: who may enter, when it goes, and what is left of killed owners."""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import EngineStartError
from server.ipc_directory import IpcDirectory, sweep_dead_directories


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _dead(temporary: Path, name: str = "headrace-dead") -> Path:
    """As a killed owner leaves it: the lock file is there, the lock is not."""
    path = temporary / name
    path.mkdir(mode=0o700)
    (path / "owner.lock").touch()
    return path


def test_only_the_user_may_enter_and_it_is_gone_in_the_end() -> None:
    directory = IpcDirectory()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    (directory.path / "0.in").touch()
    directory.remove()
    directory.remove()
    assert not directory.path.exists()


def test_the_sockets_of_one_generation_go_with_it() -> None:
    directory = IpcDirectory()
    for name in ("1.in", "1.out", "11.in"):
        (directory.path / name).touch()
    directory.unlink_sockets(1)
    assert {path.name for path in directory.path.iterdir()} == {"11.in", "owner.lock"}
    directory.remove()


def test_what_a_killed_owner_left_is_swept(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _dead(temporary)
    monkeypatch.chdir(path)  # a path relative to here is short enough for a socket
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("0.in")
    sweep_dead_directories()
    assert not path.exists()


def test_a_directory_in_use_is_not_swept(temporary: Path) -> None:
    directory = IpcDirectory()
    sweep_dead_directories()
    assert (directory.path / "owner.lock").exists()
    directory.remove()


def _with_other_files(path: Path) -> None:
    (path / "notes").write_text("mine")


def _readable(path: Path) -> None:
    path.chmod(0o755)


def _without_lock(path: Path) -> None:
    (path / "owner.lock").unlink()


def _link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("change", [_with_other_files, _readable, _without_lock, _link])
def test_what_is_not_ours_stays(temporary: Path, change: Callable[[Path], None]) -> None:
    path = _dead(temporary)
    change(path)
    before = sorted(path.iterdir())
    sweep_dead_directories()
    assert path.is_dir() and sorted(path.iterdir()) == before


def test_a_path_too_long_for_a_socket_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(EngineStartError, match="set TMPDIR"):
        IpcDirectory()
    assert list(long.iterdir()) == []


def test_no_place_for_sockets_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(EngineStartError, match="set TMPDIR"):
        IpcDirectory()
