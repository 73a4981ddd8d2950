"""`headrace trace` merge, thin, scale, cut and validate, as they are typed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loadgen.traces.description import describe
from loadgen.traces.trace_file import read_trace, sidecar_path
from server.cli import app
from tests.trace_files import mooncake_line, write_azure_2023, write_lines


def trace_verb(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def azure(path: Path, num_rows: int, step_s: int = 1) -> Path:
    return write_azure_2023(
        path, [f"2023-11-16 18:{i * step_s // 60:02}:{i * step_s % 60:02},{100 + i},5" for i in range(num_rows)]
    )


def test_merge_labels_scales_and_aligns(tmp_path: Path) -> None:
    code, chat, out = azure(tmp_path / "a:b.csv", 41), azure(tmp_path / "chat.csv", 21, 4), tmp_path / "m.jsonl"
    done = trace_verb("merge", f"{code}:class=batch", f"{chat}:class=interactive:rate=2", "--shortest", "--out", out)
    assert done.exit_code == 0, done.output
    trace = read_trace(out)
    by_class = {name: [each for each in trace.requests if each.slo_class == name] for name in ("batch", "interactive")}
    assert [each.t_s for each in by_class["interactive"]] == [0.5 * i for i in range(21)]
    assert [each.t_s for each in by_class["batch"]] == [float(i) for i in range(11)]  # the other ends at 10 s
    assert trace.meta.num_dropped == {"past_the_shortest": 30} and trace.meta.format == "merged"
    meta = json.loads(sidecar_path(out).read_text())
    assert [part["rows"]["read"] for part in meta["parts"]] == [41, 21]
    assert [step["name"] for step in meta["parts"][1]["transforms"]] == ["shift_to_zero", "scale_time", "label"]
    assert trace_verb("validate", out).output == f"{out}: sound\n"
    described = trace_verb("describe", out).output
    assert "part       chat.csv: 21 read = 21 emitted + 0 dropped" in described
    assert "  batch    1 requests/s, CV of gaps 0" in described


def test_thin_then_scale_then_cut_go_on_in_the_sidecar(tmp_path: Path) -> None:
    source = azure(tmp_path / "a.csv", 400)
    thinned, scaled, piece = (tmp_path / name for name in ("t.jsonl", "s.jsonl", "p.jsonl"))
    assert trace_verb("thin", source, "--share", "0.5", "--seed", "7", "--out", thinned).exit_code == 0
    rng = random.Random(7)
    kept = [100 + i for i in range(400) if rng.random() < 0.5]
    assert [each.in_tokens for each in read_trace(thinned).requests] == kept
    assert trace_verb("scale", thinned, "--rate", "3", "--out", scaled).exit_code == 0
    assert describe(read_trace(scaled).requests).rate_per_s == pytest.approx(3.0)
    assert trace_verb("cut", scaled, "--rows", "10:15", "--out", piece).exit_code == 0
    trace = read_trace(piece)
    assert [each.in_tokens for each in trace.requests] == kept[10:15] and trace.requests[0].t_s == 0.0
    assert trace.meta.num_dropped == {"thinned": 400 - len(kept), "cut": len(kept) - 5}
    assert [each.name for each in trace.meta.transforms] == ["shift_to_zero", "thin", "scale_time", "cut"]
    assert (trace.meta.seed, trace.meta.num_rows_read) == (7, 400)


def test_the_same_options_write_the_same_bytes(tmp_path: Path) -> None:
    source = azure(tmp_path / "a.csv", 300)
    written = []
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        assert (
            trace_verb("thin", source, "--share", "0.3", "--seed", str(seed), "--out", tmp_path / name).exit_code == 0
        )
        written.append((tmp_path / name).read_bytes() + sidecar_path(tmp_path / name).read_bytes())
    assert written[0] == written[1] != written[2]


def test_describe_writes_a_picture(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "m.jsonl", [mooncake_line(1000 * i, 600, 5, [0, i]) for i in range(30)])
    assert trace_verb("describe", one, "--png", tmp_path / "one.png").exit_code == 0
    labelled = tmp_path / "l.jsonl"
    trace_verb("merge", f"{one}:class=a", f"{one}:class=b", "--out", labelled)
    for name in ("two.png", "again.png"):
        assert trace_verb("describe", labelled, "--png", tmp_path / name).exit_code == 0
    pictures = [(tmp_path / name).read_bytes() for name in ("one.png", "two.png", "again.png")]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1] == pictures[2]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["merge", "a.csv", "--out", "o"], 1, "one trace alone has nothing to merge with"),
        (["merge", "a.csv:rate=x", "a.csv", "--out", "o"], 1, "a rate of 'x' is no number"),
        (["merge", "a.csv:rate=2:rate=3", "a.csv", "--out", "o"], 1, "gives rate twice"),
        (["describe", "a.csv", "--png", "a.csv"], 2, "--png a.csv is the file that is read"),
        (["validate", "a.csv", "--adopt"], 1, "not a canonical one; import it first"),
        (["merge", "a.csv:class=", "a.csv", "--out", "o"], 1, "an option without a value"),
        (["merge", "a.csv:rate=0", "a.csv", "--out", "o"], 1, "the rate is 0.0 requests/s"),
        (["merge", "absent:class=a", "a.csv", "--out", "o"], 1, "absent: No such file"),
        (["merge", "a.csv:class=x", "a.csv", "--out", "a.csv"], 2, "--out a.csv is the file that is read"),
        (["thin", "a.csv", "--share", "0", "--out", "o"], 1, "the share to keep is 0.0"),
        (["thin", "a.csv", "--share", "1e-9", "--out", "o"], 1, "leaves none of 20 requests"),
        (["scale", "a.csv", "--out", "o"], 2, "give either --factor or --rate"),
        (["scale", "a.csv", "--factor", "2", "--rate", "1", "--out", "o"], 2, "give either --factor or --rate"),
        (["scale", "a.csv", "--factor", "nan", "--out", "o"], 1, "the factor of times is nan"),
        (["cut", "a.csv", "--out", "o"], 2, "give either --rows, or --from and --to"),
        (["cut", "a.csv", "--rows", "1:2", "--to", "1", "--out", "o"], 2, "give either --rows"),
        (["cut", "a.csv", "--rows", "-1", "--out", "o"], 2, "--rows is '-1', write A:B"),
        (["cut", "a.csv", "--rows", "20:", "--out", "o"], 1, "the trace has rows 0 to 19"),
        (["cut", "a.csv", "--from", "9", "--to", "9", "--out", "o"], 1, "a window from 9 to 9 s is empty"),
        (["cut", "a.csv", "--from", "99", "--out", "o"], 1, "leaves none of 20 requests"),
        (["validate", "a.csv"], 1, "this is a trace of azure, not a canonical one; import it first"),
        (["import", "a.csv", "--class", "", "--out", "o"], 1, "--class is empty: name a latency class"),
        (["import", "a.csv", "--class-of", "batch", "--out", "o"], 2, "--class-of 'batch' is not KIND=CLASS"),
        (["import", "a.csv", "--rate", "2", "--out", "o"], 1, "--rate says nothing about a trace of azure"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    azure(tmp_path / "a.csv", 20)
    done = trace_verb(*arguments)
    assert done.exit_code == status and message in done.stderr, done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.csv"]
