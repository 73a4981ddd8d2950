import stat
import tempfile
from pathlib import Path

import pytest

from engine.errors import EngineStartError
from server.ipc_directory import IpcDirectory


def test_only_the_user_may_enter_and_it_is_gone_in_the_end() -> None:
    directory = IpcDirectory()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    (directory.path / "0.in").touch()
    directory.remove()
    directory.remove()
    assert not directory.path.exists()


def test_a_path_too_long_for_a_socket_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(EngineStartError, match="set TMPDIR"):
        IpcDirectory()
    assert list(long.iterdir()) == []
