"""Sidecars of traces that were made or edited by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.adoption import adopt
from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import read_trace, sidecar_path, write_trace
from loadgen.traces.validation import find_problems
from tests.trace_files import write_azure_2023, write_lines
from tests.unit.loadgen.traces.test_command_line import trace_verb

LINES = ['{"t":0,"in":1,"out":1}', '{"t":1,"in":5,"out":2}', '{"t":2,"in":7,"out":3}']
ROWS = [f"2023-11-16 18:17:0{second}.0000000,{10 + second},5" for second in range(6)]


def _imported(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    write_trace(path, import_trace(write_azure_2023(tmp_path / "a.csv", ROWS), ImportConfig()))
    return path


def test_the_advice_of_the_messages_works(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", LINES)
    content = path.read_bytes()
    for arguments in (("validate", path), ("import", path, "--out", tmp_path / "o.jsonl")):
        done = trace_verb(*arguments)
        assert done.exit_code == 1 and "trace validate FILE --adopt" in done.output
    done = trace_verb("validate", path, "--adopt")
    assert done.exit_code == 0 and "made by hand" in done.output and done.output.endswith(": sound\n"), done.output
    assert trace_verb("validate", path).exit_code == 0
    assert path.read_bytes() == content
    assert read_trace(path).meta.source.name == "made by hand"


@pytest.mark.parametrize("num_kept", [2, 6, 8])
def test_an_edited_trace_keeps_source_and_licence_and_tells_of_the_edit(tmp_path: Path, num_kept: int) -> None:
    path = _imported(tmp_path)
    before = read_trace(path).meta
    lines = path.read_text().replace('"out":5', '"out":6').splitlines()
    write_lines(path, [*lines, *lines[-1:] * 2][:num_kept])
    with pytest.raises(TraceError, match="--adopt"):
        read_trace(path)
    meta = adopt(path).meta
    assert meta == read_trace(path).meta and list(find_problems(path)) == []
    assert meta.source == before.source and meta.source_sha256 == before.source_sha256
    assert (meta.num_rows_emitted, meta.num_rows_read) == (num_kept, max(num_kept, 6))
    assert meta.num_dropped == ({"removed by hand": 4} if num_kept == 2 else {})
    assert meta.transforms[:-1] == before.transforms
    assert (meta.transforms[-1].name, meta.transforms[-1].details["rows_more"]) == ("edited_by_hand", num_kept - 6)


def test_a_sidecar_that_fits_stays_as_it_is(tmp_path: Path) -> None:
    path = _imported(tmp_path)
    told = sidecar_path(path).read_bytes()
    adopt(path)
    assert sidecar_path(path).read_bytes() == told


def test_what_is_wrong_is_not_adopted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [*LINES, LINES[0]])
    with pytest.raises(TraceError, match=r"t.jsonl: line 4: t is 0.0, before the 2.0 .*correct its lines first"):
        adopt(path)
    assert not sidecar_path(path).exists()
    path = write_lines(tmp_path / "u.jsonl", LINES)
    sidecar_path(path).write_text("{}")
    with pytest.raises(TraceError, match="this is no sidecar of a trace"):
        adopt(path)
    assert sidecar_path(path).read_text() == "{}"


def test_a_source_nested_too_deeply_is_told(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.json", ["[" * 100_000])
    done = trace_verb("describe", path)
    assert done.exit_code == 1 and "JSON that is nested too deeply" in done.stderr
