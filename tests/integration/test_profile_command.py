"""`headrace profile` on a tiny model, with small copies and little time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import engine.profile_run
from engine.config import EngineConfig
from engine.profile_run import ProfileError, obtain_record
from engine.profiler import ProfileTools
from engine.record_cache import make_fingerprint
from offload.record import PerformanceRecord
from offload.record_file import read_record, record_path, write_record
from scheduler.config import SchedulerConfig
from server.cli import app

OPTIONS = ("--kernels", "torch", "--dtype", "float32", "--kv-cache-memory", "1MiB", "--threads", "1")
ENGINE = EngineConfig("", dtype="float32", kv_cache_memory_bytes=2**20, threads=1, kernels="torch")
SMALL = (*OPTIONS, "--max-num-seqs", "4", "--max-num-batched-tokens", "32")
SCHEDULER = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own, a tenth of a second, threads of torch and the log left alone."""
    usual = engine.profile_run.cpu_tools()

    def quick_tools() -> ProfileTools:
        return dataclasses.replace(usual, budget_s=0.1, link_sizes_bytes=(4096, 2**20), paces_bytes_per_s=(2e9, None))

    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine.profile_run, "cpu_tools", quick_tools)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr("server.log_setup.set_up_logging", lambda _: None)


def test_a_record_is_measured_kept_shown_and_found_again(tiny_model_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    first = CliRunner().invoke(app, ["profile", str(tiny_model_path), *SMALL, "--json", str(copy)])
    assert first.exit_code == 0, first.output
    (stored,) = (tmp_path / "cache" / "records").iterdir()
    assert copy.read_bytes() == stored.read_bytes()
    expected = make_fingerprint(dataclasses.replace(ENGINE, model_path=str(tiny_model_path)), 1, None)
    record = read_record(stored, expected)
    assert record.measurements.num_layers == 2
    assert record.measurements.max_num_tokens == 32
    for shown in ("p50 us", "both ways at once", "layer takes", "Held out (*):", str(stored)):
        assert shown in first.stdout
    again = CliRunner().invoke(app, ["profile", str(tiny_model_path), *SMALL, "--reuse"])
    assert again.exit_code == 0
    assert "(from the cache)" in again.stdout
    assert copy.read_bytes() == stored.read_bytes()


def test_a_damaged_record_in_the_cache_is_measured_anew_and_the_log_says_why(
    tiny_model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(ENGINE, model_path=str(tiny_model_path))
    told: list[tuple[str, float]] = []
    first = obtain_record(config, SCHEDULER, lambda phase, fraction: told.append((phase, fraction)))
    assert first.is_fresh and told[-1] == ("measuring", 1.0)
    assert not obtain_record(config, SCHEDULER, lambda *_: None).is_fresh
    document = json.loads(first.path.read_text())
    document["measurements"]["head"] = []
    first.path.write_text(json.dumps(document))
    second = obtain_record(config, SCHEDULER, lambda *_: None)
    assert second.is_fresh
    assert "measuring anew: head is empty" in caplog.text


def test_a_record_of_something_else_in_its_place_is_measured_anew(
    tiny_model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(ENGINE, model_path=str(tiny_model_path))
    first = obtain_record(config, SCHEDULER, lambda *_: None)
    document = json.loads(first.path.read_text())
    document["fingerprint"]["num_cores"] = 4096
    first.path.write_text(json.dumps(document))
    second = obtain_record(config, SCHEDULER, lambda *_: None)
    assert second.is_fresh and second.path == first.path
    assert "is of something else: num_cores is 4096" in caplog.text


def test_another_type_of_numbers_has_another_record(tiny_model_path: Path) -> None:
    config = dataclasses.replace(ENGINE, model_path=str(tiny_model_path))
    first = obtain_record(config, SCHEDULER, lambda *_: None)
    second = obtain_record(dataclasses.replace(config, dtype="bfloat16"), SCHEDULER, lambda *_: None)
    assert second.is_fresh and second.path != first.path


def test_a_record_of_smaller_steps_is_measured_anew(tiny_model_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(ENGINE, model_path=str(tiny_model_path))
    first = obtain_record(config, SCHEDULER, lambda *_: None)
    smaller = dataclasses.replace(SCHEDULER, max_num_seqs=2, max_num_batched_tokens=16)
    assert not obtain_record(config, smaller, lambda *_: None).is_fresh
    larger = obtain_record(config, dataclasses.replace(SCHEDULER, max_num_batched_tokens=64), lambda *_: None)
    assert larger.is_fresh and larger.path == first.path
    assert larger.record.measurements.max_num_tokens == 64
    assert "up to 4 sequences and 32 tokens; 4 and 64 are allowed here" in caplog.text


def test_a_full_record_takes_the_place_of_the_brief_one(tiny_model_path: Path) -> None:
    config = dataclasses.replace(ENGINE, model_path=str(tiny_model_path))
    first = obtain_record(config, SCHEDULER, lambda *_: None)
    brief = dataclasses.replace(
        first.record.measurements, link=(), restart_samples_s=(), interference=(), is_brief=True
    )
    path = record_path(first.path.parent, first.record.fingerprint, is_brief=True)
    write_record(path, PerformanceRecord(first.record.fingerprint, brief))
    first.path.unlink()
    second = obtain_record(config, SCHEDULER, lambda *_: None)
    assert second.is_fresh and not second.record.measurements.is_brief
    assert list(first.path.parent.iterdir()) == [first.path]


def test_what_cannot_be_profiled_is_told_in_one_line(tmp_path: Path, tiny_model_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    damaged = CliRunner().invoke(app, ["profile", str(tmp_path / "model.gguf"), *SMALL])
    assert damaged.exit_code == 1
    assert damaged.stderr.startswith("headrace: ") and "model.gguf" in damaged.stderr
    wrong = CliRunner().invoke(app, ["profile", str(tiny_model_path), "--max-num-seqs", "0"])
    assert wrong.exit_code == 2
    assert "--max-num-seqs is 0, it must be at least 1" in wrong.stderr
    small = CliRunner().invoke(app, ["profile", str(tiny_model_path), *SMALL, "--kv-cache-memory", "1KiB"])
    assert small.exit_code == 1
    assert "hold no block" in small.stderr
    nowhere = CliRunner().invoke(
        app, ["profile", str(tiny_model_path), *SMALL, "--json", str(tmp_path / "absent" / "x")]
    )
    assert nowhere.exit_code == 1
    assert "absent/x: No such file or directory; the record itself is at" in nowhere.stderr


def test_a_cache_that_cannot_be_written_is_told(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    config = dataclasses.replace(ENGINE, model_path=str(tiny_model_path))
    with pytest.raises(ProfileError, match="set HEADRACE_CACHE to a folder that can"):
        obtain_record(config, SCHEDULER, lambda *_: None)
