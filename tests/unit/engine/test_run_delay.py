"""Waiting for a processor is seen."""

import pathlib

import pytest

import engine.run_delay
from engine.run_delay import run_delay_s


def test_the_delays_of_all_threads_add_up(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.run_delay, "_TASKS", tmp_path)
    assert run_delay_s() is None, "nothing is known"
    for thread, text in (("1", "500 2000000000 7"), ("2", "9 500000000 1"), ("3", "")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert run_delay_s() == 2.5, "that of a thread without figures is left out"
