"""All that is wrong with a canonical trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.trace_file import sidecar_path, write_trace
from loadgen.traces.validation import find_problems
from tests.trace_files import mooncake_line, write_lines

FIRST = '{"t": 1, "in": 16, "out": 2, "session": "s", "turn": 1, "prefix": [4], "block": 16}'
MISSING = (
    "t.jsonl.meta.json is missing: source, licence and counts are not told; `headrace trace import` writes it with "
    "what it imports, and `headrace trace validate FILE --adopt` for a file made by hand"
)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: this is nested too deeply"),
        ('{"t": 1' + "0" * 400 + ', "in": 1, "out": 1}', "line 2: t has 401 digits, a finite number is needed"),
        ('{"t": 1, "in": 1' + "0" * 400 + ', "out": 1}', "line 2: in has 401 digits, it must be at most 100000000"),
        ('{"t": 0, "in": 1, "out": 1}', "line 2: t is 0.0, before the 1.0 of the line above"),
        ('{"t": 1, "in": 1, "out": 1, "after": 1}', "line 2: after is 1, it must be the id"),
        ('{"t": 1, "in": 1, "out": 1, "think_s": 1}', "line 2: think_s is 1.0, but without after"),
        ('{"t": 1, "in": 1, "out": 1, "after": 0}', "line 2: after is 0, of session 's', but this one is of None"),
        (
            '{"t": 1, "in": 1, "out": 1, "session": "s", "turn": 1, "after": 0}',
            "line 2: turn is 1, not later than 1 of request 0, which it waits for",
        ),
        (
            '{"t": 1, "in": 64, "out": 1, "prefix": [4], "block": 64}',
            "line 2: block id 4 has 64 tokens here and 16 in a line above",
        ),
    ],
)
def test_each_invariant(tmp_path: Path, line: str, problem: str) -> None:
    path = write_lines(tmp_path / "t.jsonl", [FIRST, line, FIRST.replace('"t": 1', '"t": 2')])
    found = list(find_problems(path))
    assert len(found) == 2 and found[0].startswith(problem) and found[1] == MISSING


def test_a_line_that_cannot_be_read_keeps_its_id(tmp_path: Path) -> None:
    turn = '{"t": 3, "in": 1, "out": 1, "session": "s", "turn": 2, "after": %d}'
    path = write_lines(tmp_path / "t.jsonl", [FIRST, "[]", turn % 0, turn % 1, turn % 2])
    assert [each.split(":")[0] for each in find_problems(path)] == ["line 2", "line 5", MISSING.split(":")[0]]


def test_the_sidecar_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(
        path, import_trace(write_lines(tmp_path / "m.jsonl", [mooncake_line(0, 9, 5, [1])] * 3), ImportConfig())
    )
    assert list(find_problems(path)) == []
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    (problem,) = find_problems(path)
    assert "with 4 requests, but t.jsonl.meta.json tells of" in problem
    sidecar_path(path).write_text("{}")
    (problem,) = find_problems(path)
    assert "this is no sidecar of a trace" in problem
