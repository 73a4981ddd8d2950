"""`headrace trace import` and `describe`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loadgen.traces.trace_file import read_trace
from server.cli import app
from tests.trace_files import mooncake_line, write_azure_2023, write_lines

LINES = [mooncake_line(1000 * (index // 2), 600, 5, [0, index]) for index in range(8)]


def trace_verb(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def test_import_then_describe(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "m.jsonl", [*LINES, "{"]), tmp_path / "t.jsonl"
    done = trace_verb("import", source, "--out", out, "--spread-ties", "--seed", "3", "--class", "batch")
    assert done.exit_code == 0, done.output
    assert f"{out}: 9 read = 8 emitted + 1 dropped (1 malformed)" in done.output
    assert "transform  spread_ties step_s=1.0 tied=8 seed=3" in done.output
    trace = read_trace(out)
    assert len(trace.requests) == 8 and trace.meta.seed == 3
    done = trace_verb("describe", out)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "rows       9 read = 8 emitted + 1 dropped (1 malformed)" in lines
    assert "input      tokens mean 600, p50 600, p90 600, p99 600, max 600" in lines
    # The first prompt is (0, 0): its second block came with it, not before it. Each later one has block 0.
    assert "prefixes   43.8 % of 16 blocks are hits of an endless cache" in lines
    assert "classes    batch 100.0%" in lines
    assert "spread-ties" not in done.output


def test_describe_reads_raw_files_and_warns_of_steps(tmp_path: Path) -> None:
    done = trace_verb("describe", write_lines(tmp_path / "m.jsonl", LINES))
    assert "note: 8 requests at 4 distinct times" in done.output and "--spread-ties" in done.output
    done = trace_verb("describe", write_azure_2023(tmp_path / "a.csv", ["2023-11-16 18:17:03.9799600,4808,10"]))
    assert done.exit_code == 0 and "rate       - requests/s: 1 in 0.0 s" in done.output
    assert "CC BY 4.0" in done.output and "Splitwise" in done.output


def test_options_of_import_reach_the_trace(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "m.jsonl", [mooncake_line(0, 40, 5, [1, 2, 3])] * 3), tmp_path / "t.jsonl"
    options = ["--block", "16", "--first", "2", "--max-tokens", "20", "--too-long", "clip"]
    done = trace_verb("import", source, "--out", out, *options)
    assert done.exit_code == 0, done.output
    assert [(each.in_tokens, each.out_tokens, each.prefix) for each in read_trace(out).requests] == [(15, 5, (1,))] * 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["describe", "absent"], 1, "headrace: absent: No such file or directory; name a file"),
        (["import", "m.jsonl", "--out", "m.jsonl"], 2, "--out m.jsonl is the file that is read"),
        (["import", "m.jsonl", "--out", "no/t.jsonl"], 1, "headrace: no/t.jsonl: No such file or directory"),
        (["import", "m.jsonl", "--out", "t.jsonl", "--block", "16"], 1, "m.jsonl: line 1: 2 block ids of 16 tokens"),
        (["import", "m.jsonl", "--out", "t.jsonl", "--max-tokens", "50"], 1, "8 of 8 requests are longer than 50"),
        (["import", "m.jsonl"], 2, "--out"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "m.jsonl", LINES)
    done = trace_verb(*arguments)
    assert done.exit_code == status and message in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.jsonl"]


def test_the_verbs_are_light_until_they_run() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from server.cli import app\n"
        "for verb in ([], *([each] for each in ('import', 'describe', 'merge', 'thin', 'scale', 'cut', 'validate'))):\n"
        "    assert CliRunner().invoke(app, ['trace', *verb, '--help']).exit_code == 0\n"
        "print([name for name in ('numpy', 'torch', 'httpx', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30.0)
    assert done.stdout == "[]\n"
