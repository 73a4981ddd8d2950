"""Where results go is checked before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadgen.config import BenchError
from loadgen.report_file import check_report_path, check_report_paths


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match="it is a directory; name a file in it"):
        check_report_path(str(tmp_path))
    with pytest.raises(BenchError, match="there is no such directory"):
        check_report_path(str(tmp_path / "no" / "x.json"))
    for path in (None, "-", str(tmp_path / "x.json"), os.devnull):
        check_report_path(path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    with pytest.raises(BenchError, match=r"x.json: permission denied; name a file that you may write"):
        check_report_path(str(tmp_path / "x.json"))


def test_two_options_have_two_files(tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path)
    one, same = str(tmp_path / "x"), str(tmp_path / "other" / "x")
    with pytest.raises(BenchError, match="--json and --html are the same file"):
        check_report_paths({"--json": one, "--html": same}, {})
    with pytest.raises(BenchError, match="--trace and --json are the same file"):
        check_report_paths({"--json": same}, {"--trace": one})
    check_report_paths({"--json": one, "--html": one + ".html"}, {"first": same + "2", "second": same + "2"})
    check_report_paths({"--json": os.devnull, "--html": os.devnull, "--requests-path": None}, {"--trace": None})
