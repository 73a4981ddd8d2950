"""What a plain start predicts by: the record in the cache, or a brief one measured once; and what stops neither."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import pytest
import torch

import engine.serving_latency
from engine.brief_profiler import ServingParts, TooSlowError, measure_brief
from engine.config import EngineConfig
from engine.kv_cache import KVCache
from engine.latency_fit import fit_latency
from engine.process_config import ProcessConfig
from engine.record_cache import make_fingerprint
from engine.runner_factory import build_model_runner
from engine.serving_latency import find_or_measure_latency
from engine.weights import LoadedModel, load_model
from offload.measurements import Measurements
from offload.record import PerformanceRecord
from offload.record_check import ImplausibleRecordError
from offload.record_file import record_path, write_record
from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from tests.record_builders import make_measurements

SCHEDULER = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32)


@dataclasses.dataclass
class Start:
    """A plain start, as often as one likes."""

    engine: EngineConfig
    model: LoadedModel
    records: Path
    num_measured: int = 0
    told: list[tuple[str, float]] = dataclasses.field(default_factory=list)

    def again(self, scheduler: SchedulerConfig = SCHEDULER, threads: int = 1) -> LatencyCoefficients | None:
        kv_cache = KVCache(self.model.config, self.model.dtype, 8, scheduler.block_size)
        parts = ServingParts(self.model, kv_cache, None, scheduler, 128)
        return find_or_measure_latency(
            self.engine, parts, None, threads, lambda phase, fraction: self.told.append((phase, fraction))
        )

    def names(self) -> list[str]:
        return sorted(path.name for path in self.records.iterdir())


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests run beside others."""
    monkeypatch.setattr(engine.serving_latency, "run_delay_s", lambda: 0.0)


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> LoadedModel:
    return load_model(str(tiny_model_path), "float32", lambda _: None)


@pytest.fixture
def start(tiny_model_path: Path, model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    engine_config = EngineConfig(str(tiny_model_path), dtype="float32", kernels="torch")
    made = Start(engine_config, model, tmp_path / "records")

    def counted(*arguments: object) -> Measurements:
        made.num_measured += 1
        return measure_brief(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.serving_latency, "measure_brief", counted)
    return made


def test_the_first_start_measures_with_progress_and_the_next_one_finds(start: Start) -> None:
    first = start.again()
    assert first is not None and start.num_measured == 1
    assert {phase for phase, _ in start.told} == {"measuring steps"} and start.told[-1][1] == 1.0
    fingerprint = make_fingerprint(start.engine, 1, None)
    assert start.names() == [f"{fingerprint.digest}.brief.json"]
    assert start.again() == first
    assert start.num_measured == 1


def test_another_number_of_threads_has_another_record(start: Start) -> None:
    start.again(threads=1)
    start.again(threads=2)
    assert start.num_measured == len(start.names()) == 2


def test_larger_steps_are_measured_anew_and_smaller_ones_are_not(start: Start) -> None:
    start.again()
    start.again(dataclasses.replace(SCHEDULER, max_num_seqs=8))
    start.again(dataclasses.replace(SCHEDULER, max_num_batched_tokens=64, max_num_seqs=8))
    assert start.num_measured == 3 and len(start.names()) == 1
    start.again()
    assert start.num_measured == 3


def test_a_full_record_comes_first(start: Start) -> None:
    start.again()
    fingerprint = make_fingerprint(start.engine, 1, None)
    full = PerformanceRecord(fingerprint, make_measurements())
    write_record(record_path(start.records, fingerprint), full)
    assert start.again() == fit_latency(full)
    assert start.num_measured == 1


def test_a_damaged_record_is_told_and_replaced(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    start.again()
    (path,) = start.records.iterdir()
    document = json.loads(path.read_text())
    document["measurements"]["head"] = []
    path.write_text(json.dumps(document))
    assert start.again() is not None and start.num_measured == 2
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "performance records are not used: head is empty" in warning.getMessage()
    assert start.again() is not None and start.num_measured == 2


def test_an_older_builds_record_is_replaced_without_a_warning(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    start.again()
    (path,) = start.records.iterdir()
    path.write_text('{"format": "headrace-record", "version": 1}')
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert start.again() is not None and start.num_measured == 2
    assert {record.levelname for record in caplog.records} == {"INFO"}
    (told,) = [record.getMessage() for record in caplog.records if "older build" in record.getMessage()]
    assert str(path) in told
    assert start.again() is not None and start.num_measured == 2


def test_a_record_that_cannot_be_kept_holds_for_this_start(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start.records.write_text("a file where the folder of records should be")
    assert start.again() is not None
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and warnings[0].count("cannot be read") == 2
    assert "the next start measures again" in warnings[1] and "set HEADRACE_CACHE to a folder that can" in warnings[1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TooSlowError("a step of one token takes 3.0 s"), "a step of one token takes 3.0 s"),
        (
            ImplausibleRecordError("times must grow"),
            "something else was computing while they were measured: times must",
        ),
        (MemoryError("no memory for intermediate results"), "no memory for intermediate results"),
        (RuntimeError("can't allocate memory"), "can't allocate memory"),
        (OSError("the disk is gone"), "the disk is gone"),
    ],
)
def test_a_start_goes_on_without_predictions_and_says_why_once(
    start: Start, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Measurements:
        raise error

    monkeypatch.setattr(engine.serving_latency, "measure_brief", fail)
    assert start.again() is None
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"steps are not predicted ({reason}" in warning.getMessage()
    assert "--no-predict-steps" in warning.getMessage()


def test_a_fault_of_our_own_is_no_missing_record(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Measurements:
        raise AssertionError("a bug")

    monkeypatch.setattr(engine.serving_latency, "measure_brief", fail)
    with pytest.raises(AssertionError, match="a bug"):
        start.again()


@pytest.mark.parametrize("predicts", [True, False])
def test_the_runner_comes_with_predictions_unless_they_are_off(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predicts: bool
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    config = EngineConfig(
        str(tiny_model_path), "float32", kv_cache_memory_bytes=2**20, kernels="torch", threads=1, predict_steps=predicts
    )
    built = build_model_runner(ProcessConfig(config, SCHEDULER, "", "", 0), lambda phase, fraction: None)
    assert (built.latency is not None) is predicts
    assert (tmp_path / "records").exists() is predicts


def test_a_record_measured_beside_other_work_holds_for_one_start(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delays_s = iter([1.0, 9.0, 9.0, 9.001])
    monkeypatch.setattr(engine.serving_latency, "run_delay_s", lambda: next(delays_s))
    assert start.again() is not None
    assert "other processes held the processors for 8.0 of the" in caplog.text
    assert not start.records.exists() or start.names() == []
    assert start.again() is not None and start.num_measured == 2
    assert len(start.names()) == 1, "the second was not disturbed"
