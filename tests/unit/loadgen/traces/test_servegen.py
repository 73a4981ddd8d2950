"""ServeGen's clients as a generator."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from tests.trace_files import real_slice, write_lines

LENGTHS = {"input_tokens": "{10: 0.25, 20: 0.5, 400: 0.25}", "output_tokens": "{1: 0.5, 7: 0.5}"}


def write_client(directory: Path, name: str, rows: list[str], lengths: dict[str, dict[str, str]] | None) -> Path:
    if lengths is not None:
        (directory / f"chunk-{name}-dataset.json").write_text(json.dumps(lengths))
    return write_lines(directory / f"chunk-{name}-trace.csv", rows)


def gaps(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff([each.t_s for each in trace.requests])


def test_each_window_has_its_rate_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    rows = ["0,0.5,1,Gamma,1,1", "600,0,0,,0,0", "1200,0.105,1,Weibull,0.4,0.02", "1800,2,1,Gamma,0.1,9"]
    path = write_client(tmp_path, "3", rows, {"0": LENGTHS})
    trace = import_trace(path, ImportConfig(duration_s=2400.0))
    origin_s = (
        next(int(each.details["origin_ns"]) for each in trace.meta.transforms if each.name == "shift_to_zero") / 1e9
    )
    counts = np.histogram([each.t_s + origin_s for each in trace.requests], np.arange(0, 2401, 600))[0]
    assert counts.tolist() == [300, 0, 63, 1200]
    assert trace.meta.seed == 0 and trace.meta.num_rows_read == len(trace.requests) == 1563
    assert trace.meta.source.licence.startswith("Apache-2.0")


@pytest.mark.parametrize(
    ("family", "shape", "cv"),
    [
        ("Gamma", 0.25, 2.0),
        ("Gamma", 4.0, 0.5),
        ("Weibull", 1.0, 1.0),
        ("Weibull", 0.5, math.sqrt(math.gamma(5) / math.gamma(3) ** 2 - 1)),
    ],
)
def test_gaps_are_as_bursty_as_their_shape_says(tmp_path: Path, family: str, shape: float, cv: float) -> None:
    # The scale is of no effect: gaps are stretched to the window's rate.
    path = write_client(tmp_path, "3", [f"0,20,9,{family},{shape},123"], {"0": LENGTHS})
    between = gaps(import_trace(path, ImportConfig(duration_s=600.0)))
    assert between.mean() == pytest.approx(1 / 20, rel=0.01)
    assert between.std() / between.mean() == pytest.approx(cv, rel=0.08)


def test_lengths_are_those_of_their_six_hours(tmp_path: Path) -> None:
    rows = [f"{start},10,1,Gamma,1,1" for start in range(0, 2400, 600)]
    later = {"input_tokens": "{5: 1.0}", "output_tokens": "{2: 1.0}"}
    path = write_client(
        tmp_path, "3", rows, {"0": LENGTHS, "1200": later, "1800": {"input_tokens": "{}", "output_tokens": "{}"}}
    )
    trace = import_trace(path, ImportConfig(duration_s=2400.0))
    early = [each for each in trace.requests if each.in_tokens != 5]
    assert (len(early), len(trace.requests)) == (12_000, 18_000)
    assert trace.meta.num_dropped == {"no_lengths_in_this_window": 6000}
    assert trace.meta.num_rows_read == 24_000
    for tokens, share in ((10, 0.25), (20, 0.5), (400, 0.25)):
        assert sum(each.in_tokens == tokens for each in early) / 12_000 == pytest.approx(share, abs=0.02)
    # One number draws both: the long prompts have the long answers.
    assert {(each.in_tokens, each.out_tokens) for each in early} == {(10, 1), (20, 1), (20, 7), (400, 7)}


def test_clients_become_classes_and_do_not_disturb_each_other(tmp_path: Path) -> None:
    one = write_client(tmp_path, "1", ["0,1,1,Gamma,0.5,1"], {"0": LENGTHS})
    alone = import_trace(one, ImportConfig(duration_s=600.0, class_of=(("chunk-1", "batch"),)))
    write_client(tmp_path, "20", ["0,2,1,Weibull,0.5,1"], {"0": LENGTHS})
    config = ImportConfig(duration_s=600.0, class_of=(("chunk-1", "batch"), ("chunk-20", "interactive")))
    both = import_trace(tmp_path, config)
    assert [sum(each.slo_class == name for each in both.requests) for name in ("batch", "interactive")] == [600, 1200]
    mine = [each for each in both.requests if each.slo_class == "batch"]
    assert [each.in_tokens for each in mine] == [each.in_tokens for each in alone.requests]
    shift = mine[0].t_s - alone.requests[0].t_s
    assert [each.t_s - shift for each in mine] == pytest.approx([each.t_s for each in alone.requests], abs=1e-8)
    files = [tmp_path / f"chunk-{n}-{what}" for what in ("trace.csv", "dataset.json") for n in (1, 20)]
    listing = "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    assert both.meta.source_sha256 == hashlib.sha256(listing.encode()).hexdigest()
    assert both == import_trace(tmp_path, config)
    assert both.requests != import_trace(tmp_path, ImportConfig(duration_s=600.0, seed=1)).requests


def test_a_rate_is_shared_by_the_clients_as_they_have_it(tmp_path: Path) -> None:
    windows = ["0,3,1,Gamma,1,1", "600,1,1,Gamma,1,1"]
    write_client(tmp_path, "1", windows, {"0": LENGTHS})
    for number in range(2, 12):
        write_client(tmp_path, str(number), ["0,0.2,1,Gamma,1,1", "600,0.2,1,Gamma,1,1"], {"0": LENGTHS})
    trace = import_trace(tmp_path, ImportConfig(duration_s=1200.0, rate_per_s=0.1, class_of=(("chunk-1", "a"),)))
    # 120 requests: the native mean is 4/s, so factor 1/40: 45 + 15 of the first client, 6 of each other one.
    assert sum(each.slo_class == "a" for each in trace.requests) == 60
    assert len(trace.requests) == 120


def test_a_part_of_a_window(tmp_path: Path) -> None:
    path = write_client(tmp_path, "3", ["0,20,1,Gamma,1,1", "600,20,1,Gamma,1,1"], {"0": LENGTHS})
    trace = import_trace(path, ImportConfig(start_s=500.0, duration_s=200.0))
    assert trace.requests[-1].t_s < 200.0
    assert len(trace.requests) == pytest.approx(4000, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "lengths", "message"),
    [
        (["0,1,1,Gamma,1,1"], None, "chunk-3: no dataset.json beside the trace.csv"),
        (["0,0,0,,0,0"], {"0": LENGTHS}, "no client has requests from 0 to 600 s; none of their windows has any"),
        (
            ["0,0,0,,0,0", *(f"{600 * k},0.5,1,Gamma,1,1" for k in range(1, 6))],
            {"0": LENGTHS},
            "choose with --start one that has: 600-1200 s, 1200-1800 s, 1800-2400 s and 2 more",
        ),
        (["0,1,1,,1,1"], {"0": LENGTHS}, "line 1: requests need gaps of Gamma or Weibull"),
        (["0,1,1,Gamma,0,1"], {"0": LENGTHS}, "line 1: requests need gaps of Gamma or Weibull"),
        (["0,1,1,Gamma,1,1", "0,1,1,Gamma,1,1"], {"0": LENGTHS}, "windows do not follow each other"),
        (["0,1,1,Gamma,1,1", "x"], {"0": LENGTHS}, "line 2: 'x' is not start, rate, cv, family, shape, scale"),
        (["0,1,1,Gamma,1,1"], {"0": {"text_tokens": "{}"}}, "has no input_tokens, only text_tokens"),
        (["0,1,1,Gamma,1,1"], {"0": {**LENGTHS, "input_tokens": "__import__('os')"}}, "input_tokens is no dict"),
        (["0,1,1,Gamma,1,1"], {"0": {**LENGTHS, "input_tokens": "{4: -1.0}"}}, "input_tokens sum to -1.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, rows: list[str], lengths: dict[str, dict[str, str]] | None, message: str
) -> None:
    path = write_client(tmp_path, "3", rows, lengths)
    with pytest.raises(TraceError, match=message.replace("(", r"\(")):
        import_trace(path, ImportConfig(duration_s=600.0))


def test_a_client_without_lengths_is_left_out_by_name_where_asked(tmp_path: Path) -> None:
    write_client(tmp_path, "1", ["0,1,1,Gamma,0.5,1"], {"0": LENGTHS})
    path = write_client(tmp_path, "9", ["0,1,1,Gamma,0.5,1"], None)
    trace = import_trace(tmp_path, ImportConfig(duration_s=600.0, skip_incomplete=True))
    assert len(trace.requests) == 600
    skipped = next(each.details for each in trace.meta.transforms if each.name == "skip_incomplete")
    assert skipped == {"clients": "chunk-9"}
    with pytest.raises(TraceError, match="no client has lengths"):
        import_trace(path, ImportConfig(duration_s=600.0, skip_incomplete=True))


def test_a_model_is_no_trace_until_it_is_drawn(tmp_path: Path) -> None:
    path = write_client(tmp_path, "1", ["0,1,1,Gamma,0.5,1"], {"0": LENGTHS})
    with pytest.raises(TraceError, match="draw a trace with `headrace trace import --format servegen --duration"):
        load_trace(path)
    with pytest.raises(TraceError, match=r"a client's file is named chunk-N-trace\.csv"):
        import_trace(Path(shutil.copy(path, tmp_path / "other.csv")), ImportConfig(duration_s=600.0))


@pytest.mark.parametrize("name", ["language_m-small_chunk-35", "reason_deepseek-r1_chunk-1"])
def test_published_clients(name: str) -> None:
    path = real_slice(f"servegen_{name}-trace.csv")
    start_s, num_windows = 21_600, 6
    lengths = json.loads(real_slice(f"servegen_{name}-dataset.json").read_text())[str(start_s)]
    trace = import_trace(path, ImportConfig(start_s=start_s, duration_s=600.0 * num_windows))
    origin_s = (
        next(int(each.details["origin_ns"]) for each in trace.meta.transforms if each.name == "shift_to_zero") / 1e9
    )
    edges_s = start_s + 600.0 * np.arange(num_windows + 1)
    counts = np.histogram([each.t_s + origin_s for each in trace.requests], edges_s)[0]
    rows = np.loadtxt(path, delimiter=",", usecols=(0, 1))
    rates = rows[rows[:, 0] >= start_s][:num_windows, 1]
    assert counts.tolist() == np.rint(600 * rates).tolist()
    for field, tokens in (("input_tokens", "in_tokens"), ("output_tokens", "out_tokens")):
        table = ast.literal_eval(lengths[field])
        mean = sum(count * share for count, share in table.items())
        spread = math.sqrt(sum(count**2 * share for count, share in table.items()) - mean**2)
        drawn = [getattr(each, tokens) for each in trace.requests]
        assert set(drawn) <= set(table)
        assert np.mean(drawn) == pytest.approx(mean, abs=4 * spread / math.sqrt(len(drawn)))


def test_more_requests_than_memory_holds_are_refused(tmp_path: Path) -> None:
    path = write_client(tmp_path, "1", ["0,1,1,Gamma,0.5,1"], {"0": LENGTHS})
    with pytest.raises(TraceError, match="60,000,000 requests are more than 50,000,000; give a shorter --duration"):
        import_trace(path, ImportConfig(duration_s=600.0, rate_per_s=100_000.0))
