"""Records on disk: what is written is read, and what cannot be true is refused with its name."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offload.record import PerformanceRecord
from offload.record_check import ImplausibleRecordError, check_measurements
from offload.record_file import (
    OutdatedRecordError,
    RecordFileError,
    RecordMismatchError,
    read_record,
    record_path,
    records_directory,
    write_record,
)
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from tests.record_builders import make_fingerprint, make_measurements, make_record

Document = dict[str, Any]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = record_path(tmp_path / "records", make_fingerprint())
    write_record(path, make_record(noise=0.03))
    return path


def test_a_record_is_read_as_it_was_written(written: Path) -> None:
    record, read = make_record(noise=0.03), read_record(written, make_fingerprint())
    assert read == record
    load = StepLoad.decode(5, 77)
    assert read.layer_s(load, Quantile.P95) == record.layer_s(load, Quantile.P95)
    assert [path.name for path in written.parent.iterdir()] == [written.name]  # nothing temporary is left


def test_an_interrupted_write_leaves_the_old_record_and_nothing_else(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_record(written, make_record())
    assert read_record(written) == make_record(noise=0.03)
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_an_emulation_cap_is_not_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, make_record().capped(1e9, 1e9))
    assert read_record(path) == make_record()


def test_a_brief_record_has_a_place_of_its_own_and_is_read_only_where_it_will_do(tmp_path: Path) -> None:
    path = record_path(tmp_path, make_fingerprint(), is_brief=True)
    assert path != record_path(tmp_path, make_fingerprint())
    brief = dataclasses.replace(
        make_measurements(), link=(), restart_samples_s=(), interference=(), held_out=(), is_brief=True
    )
    write_record(path, PerformanceRecord(make_fingerprint(), brief))
    assert read_record(path, make_fingerprint(), may_be_brief=True).measurements == brief
    with pytest.raises(RecordFileError, match="is a brief one, which holds nothing of the link; delete it and measure"):
        read_record(path, make_fingerprint())
    with pytest.raises(ImplausibleRecordError, match="both directions must have been measured"):
        check_measurements(dataclasses.replace(brief, is_brief=False))


def test_records_lie_in_the_cache_beside_the_models(tmp_path: Path) -> None:
    assert records_directory({"HEADRACE_CACHE": str(tmp_path)}) == tmp_path / "records"
    assert records_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "headrace" / "records"


def test_units_are_in_the_names(written: Path) -> None:
    measurements = json.loads(written.read_text())["measurements"]
    assert {"layer_bytes", "max_context_tokens", "restart_samples_s", "wall_s"} <= set(measurements)
    assert {"samples_s", "together_samples_s", "num_bytes"} <= set(measurements["link"][0])


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("device", "Another Processor"),
        ("processor_features", "0" * 16),
        ("driver", "570.1"),
        ("num_cores", 4),
        ("num_threads", 2),
        ("model", "0" * 16),
        ("dtype", "float32"),
        ("weights", "int8"),
        ("kernels", "torch"),
        ("torch_version", "2.12.0"),
        ("is_batch_invariant", True),
    ],
)
def test_a_record_of_something_else_is_refused_by_the_name_of_what_differs(
    written: Path, field: str, other: object
) -> None:
    expected = make_fingerprint(**{field: other})
    assert expected.digest != make_fingerprint().digest
    with pytest.raises(
        RecordMismatchError, match=rf"something else: {field} is .*here it is {other!r}\. Measure again"
    ):
        read_record(written, expected)
    assert read_record(written).fingerprint == make_fingerprint()  # of anything


def test_every_difference_is_named(written: Path) -> None:
    with pytest.raises(RecordMismatchError, match="num_threads is 1, here it is 2; dtype is 'bfloat16'"):
        read_record(written, make_fingerprint(num_threads=2, dtype="float16"))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(written: Path, share: float) -> None:
    data = written.read_bytes()
    written.write_bytes(data[: int(share * (len(data) - 3))])
    with pytest.raises(RecordFileError, match="is not a performance record"):
        read_record(written)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"format": "other", "version": 1}', '{"format": 3}', "\xff\xfe"])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordFileError, match=r"foreign.json is not a performance record .* `headrace profile`"):
        read_record(path)


def _changed(path: Path, change: Callable[[Document], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_another_version_is_refused(written: Path) -> None:
    _changed(written, lambda document: document.update(version=99, measurements={}))
    with pytest.raises(RecordFileError, match="is a record of version 99, this build reads 2"):
        read_record(written)


def test_an_older_version_is_told_apart_and_asks_for_nothing(written: Path) -> None:
    _changed(written, lambda document: document.update(version=1, measurements={}))
    with pytest.raises(OutdatedRecordError, match="is of version 1, from an older build: this one reads 2") as raised:
        read_record(written)
    assert "delete" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["measurements"].pop("link"),
        lambda document: document["fingerprint"].pop("device"),
        lambda document: document["measurements"].update(num_layers="thirty"),
        lambda document: document["measurements"]["layers"][0].update(samples_s=[None]),
    ],
)
def test_a_damaged_record_is_refused(written: Path, change: Callable[[Document], None]) -> None:
    _changed(written, change)
    with pytest.raises(RecordFileError, match="is damaged"):
        read_record(written)


def test_a_record_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "absent.json")
    with pytest.raises(RecordFileError, match="cannot be read"):
        read_record(tmp_path)


def test_a_failed_write_leaves_the_old_record(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(RecordFileError, match=r"cannot be written \(No space left on device\): set HEADRACE_CACHE"):
        write_record(written, make_record(noise=0.2))
    assert read_record(written) == make_record(noise=0.03)
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def _scaled(key: str, factor: float, part: str = "layers", index: int | None = None) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        points = document["measurements"][part]
        for point in points if index is None else [points[index]]:
            point[key] = [factor * sample for sample in point[key]]

    return change


def _set(path: tuple[str | int, ...], value: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        inner: Any = document["measurements"]
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


IMPLAUSIBLE: dict[str, tuple[Callable[[Document], None], str]] = {
    "milliseconds for seconds": (_scaled("samples_s", 1e3), "layers: .* at most 10 s"),
    "layers in kiloseconds": (_scaled("samples_s", 1e-4), "more than 20,000 GB/s"),
    "one point ten times too small": (_scaled("samples_s", 0.1, index=-1), "times must grow with the load"),
    "one point ten times too large": (_scaled("samples_s", 10.0, index=0), "times must grow with the load"),
    "one held-out point of 0": (_scaled("samples_s", 0.0, "held_out", 0), "a time must be above 0"),
    "one negative": (_set(("layers", 3, "samples_s", 2), -1e-6), "layers: .*: -1e-06 s, a time must be above 0"),
    "head of a minute": (_set(("head", 0, "samples_s", 0), 60.0), "head: 1 rows: 60.0 s"),
    "no overhead": (_set(("overhead",), []), "overhead is empty"),
    "no samples": (_set(("layers", 0, "samples_s"), []), "no samples"),
    "no layers": (_set(("layers",), []), "layers is empty"),
    "rows of 0": (_set(("head", 0, "num_rows"), 0), "num_rows is 0"),
    "more sequences than tokens": (_set(("layers", 0, "num_sequences"), 9), "layers: 1 tokens of 9 sequences"),
    "link in milliseconds": (_scaled("samples_s", 1e3, "link"), r"GB/s h2d .* must be between 0\.01 and 2,000"),
    "link in kiloseconds": (_scaled("together_samples_s", 1e-3, "link"), r"must be between 0\.01 and 2,000"),
    "one direction": (
        lambda document: document["measurements"].update(
            link=[point for point in document["measurements"]["link"] if point["direction"] == "h2d"]
        ),
        "both directions",
    ),
    "a copy of nothing": (_set(("link", 0, "num_bytes"), 0), "num_bytes must be at least 1"),
    "an endless restart": (_set(("restart_samples_s", 0), 1e3), r"restart_samples_s has 1000\.0"),
    "no restart": (_set(("restart_samples_s",), []), "restart_samples_s is empty"),
    "copies of nothing": (_set(("interference", 0, "copied_bytes_per_s"), 0.0), "interference at 0 GB/s"),
    "unpaired samples": (_set(("interference", 0, "busy_samples_s"), [1e-3]), "7 quiet samples and 1 busy ones"),
    "no layer": (_set(("num_layers",), 0), "num_layers is 0"),
}


@pytest.mark.parametrize("name", IMPLAUSIBLE)
def test_what_cannot_be_true_is_refused(written: Path, name: str) -> None:
    change, message = IMPLAUSIBLE[name]
    _changed(written, change)
    with pytest.raises(ImplausibleRecordError, match=rf"{message}.*; a unit is wrong or the file is damaged"):
        read_record(written)


def test_not_a_number_is_refused(written: Path) -> None:
    _changed(written, _set(("layers", 0, "samples_s", 0), float("nan")))  # which json writes as NaN
    with pytest.raises(RecordFileError, match="is not a performance record"):
        read_record(written)
    points = make_measurements().layers
    broken = (dataclasses.replace(points[0], samples_s=(float("nan"),)), *points[1:])
    with pytest.raises(ImplausibleRecordError, match="nan s, a time must be above 0"):
        check_measurements(dataclasses.replace(make_measurements(), layers=broken))


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    record = make_record()
    impossible = dataclasses.replace(record, measurements=dataclasses.replace(record.measurements, head=()))
    with pytest.raises(ImplausibleRecordError, match="head is empty"):
        write_record(tmp_path / "record.json", impossible)
    assert not list(tmp_path.iterdir())
