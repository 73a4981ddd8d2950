"""The canonical form and its sidecar."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace, load_trace
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace, read_trace, sidecar_path, write_trace
from loadgen.traces.trace_meta import TraceMeta, TraceSource
from loadgen.traces.trace_request import TraceRequest, decode_request, encode_request
from tests.trace_files import mooncake_line, write_lines

LINES = [mooncake_line(1000 * (index // 2), 600, 5, [0, index]) for index in range(8)]
KEYS = ["t", "in", "out", "class", "session", "turn", "after", "think_s", "prefix", "block", "text"]


def imported(directory: Path, config: ImportConfig) -> Trace:
    return import_trace(write_lines(directory / "m.jsonl", LINES), config)


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    trace = imported(tmp_path, ImportConfig(spread_ties=True, seed=4, slo_class="batch"))
    path = tmp_path / "trace.jsonl"
    write_trace(path, trace)
    assert read_trace(path) == load_trace(path) == trace
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.jsonl", "trace.jsonl", "trace.jsonl.meta.json"]
    assert b"\r" not in path.read_bytes()
    assert [list(json.loads(line)) for line in path.read_text().splitlines()] == [KEYS] * len(LINES)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_trace(tmp_path / name, imported(tmp_path, ImportConfig(spread_ties=True, seed=seed)))
        written.append((tmp_path / name).read_bytes() + sidecar_path(tmp_path / name).read_bytes())
    assert written[0] == written[1] != written[2]


def test_the_sidecar_says_where_it_comes_from_and_what_was_done(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, imported(tmp_path, ImportConfig(spread_ties=True, seed=4, first_rows=6)))
    meta = json.loads(sidecar_path(path).read_text())
    assert meta["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert meta["source"]["sha256"] == hashlib.sha256((tmp_path / "m.jsonl").read_bytes()).hexdigest()
    assert meta["source"]["file"] == "m.jsonl" and meta["source"]["licence"].startswith("Apache-2.0")
    assert meta["rows"] == {"read": 6, "emitted": 6, "dropped": {}}
    assert (meta["format"], meta["seed"]) == ("mooncake", 4)
    assert [entry["name"] for entry in meta["transforms"]] == ["first_rows", "shift_to_zero", "spread_ties"]


def test_nothing_drawn_has_no_seed(tmp_path: Path) -> None:
    assert imported(tmp_path, ImportConfig(seed=4)).meta.seed is None


def test_a_trace_changed_since_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, imported(tmp_path, ImportConfig()))
    path.write_text(path.read_text().replace('"out":5', '"out":6', 1))
    with pytest.raises(TraceError, match=r"it was changed since; import it again, or let .* --adopt` write"):
        read_trace(path)
    sidecar_path(path).unlink()
    trace = read_trace(path)
    assert trace.requests[0].out_tokens == 6 and trace.meta.source.licence == "not told"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"headrace_trace": 1, "source": []}', '{"headrace_trace": 2}'])
def test_a_broken_sidecar_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, imported(tmp_path, ImportConfig()))
    sidecar_path(path).write_text(text)
    with pytest.raises(TraceError, match=r"trace\.jsonl\.meta\.json: "):
        read_trace(path)


def test_counts_that_do_not_add_up_are_not_written(tmp_path: Path) -> None:
    source = TraceSource("made", "none")
    lost = Trace((TraceRequest(0.0, 1, 1),), TraceMeta("canonical", source, "x", "0", 3, 1, {"malformed": 1}))
    with pytest.raises(TraceError, match="3 rows were read, 1 emitted and 1 dropped"):
        write_trace(tmp_path / "trace.jsonl", lost)
    made = Trace((), TraceMeta("canonical", source, "x", "0", 1, 1, {}))
    with pytest.raises(TraceError, match="0 requests, but the sidecar tells of 1"):
        write_trace(tmp_path / "trace.jsonl", made)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_put_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    trace = imported(tmp_path, ImportConfig())
    (tmp_path / "taken").mkdir()
    with pytest.raises(TraceError, match="taken: Is a directory"):
        write_trace(tmp_path / "taken", trace)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.jsonl", "taken"]


def test_text_of_half_a_surrogate_is_written(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ['{"t": 0, "in": 1, "out": 1, "text": "\\ud800"}'])
    trace = read_trace(path)
    write_trace(tmp_path / "copy.jsonl", trace)
    assert read_trace(tmp_path / "copy.jsonl").requests == trace.requests


def test_a_trace_written_by_hand_may_leave_out_what_is_null(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t.jsonl", ['{"t": 0, "in": 3, "out": 2}', '{"t": 1.5, "in": 4, "out": 2, "after": 0}']
    )
    assert load_trace(path).requests == (TraceRequest(0.0, 3, 2), TraceRequest(1.5, 4, 2, after=0))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object is needed"),
        ('{"in": 3, "out": 2}', "t is None, a number is needed"),
        ('{"t": NaN, "in": 3, "out": 2}', "t is nan, it must be finite"),
        ('{"t": Infinity, "in": 3, "out": 2}', "t is inf, it must be finite"),
        ('{"t": -1, "in": 3, "out": 2}', "t is -1.0, it must be finite and at least 0"),
        ('{"t": 9, "in": 0, "out": 2}', "in is 0, it must be at least 1"),
        ('{"t": 9, "in": true, "out": 2}', "in is True, a whole number is needed"),
        ('{"t": 9, "in": 3, "out": 2, "class": 5}', "class is 5, a text or null is needed"),
        ('{"t": 9, "in": 3, "out": 2, "think_s": -1}', "think_s is -1.0"),
        ('{"t": 9, "in": 3, "out": 2, "slo_class": "batch"}', "unknown key 'slo_class'"),
        ('{"t": 9, "in": 3, "out": 2, "prefix": [1]}', "prefix and block go together"),
        ('{"t": 9, "in": 3, "out": 2, "prefix": [1.5], "block": 4}', "prefix must be a list of whole numbers"),
        ('{"t": 9, "in": 3, "out": 2, "prefix": [], "block": 0}', "block is 0"),
        ('{"t": 9, "in": 33, "out": 2, "prefix": [1, 2], "block": 16}', "2 block ids of 16 tokens are not a prompt"),
        ('{"t": 9, "in": 3, "out": 2, "after": 1}', "after is 1, it must be the id"),
        ('{"t": 1, "in": 3, "out": 2}', "t is 1.0, before the 2.0 of the line above"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "t.jsonl", ['{"t": 2, "in": 3, "out": 2}', line])
    with pytest.raises(TraceError, match=r"t\.jsonl: line 2: " + message.replace("(", r"\(")):
        load_trace(path)


REQUESTS = st.builds(
    lambda t_s, in_tokens, out_tokens, slo_class, turn, think_s, ids, text: TraceRequest(
        t_s,
        in_tokens,
        out_tokens,
        slo_class=slo_class,
        session=slo_class,
        turn=turn,
        think_s=think_s,
        prefix=None if ids is None else tuple(range(ids, ids - (-in_tokens // 16))),
        block=None if ids is None else 16,
        text=text,
    ),
    st.floats(0, 1e7),
    st.integers(1, 2000),
    st.integers(1, 10**8),
    st.none() | st.text(max_size=5),
    st.integers(0, 99),
    st.none() | st.floats(0, 1e4),
    st.none() | st.integers(0, 2**62),
    st.none() | st.text(max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_any_request_survives_its_line(request: TraceRequest) -> None:
    request.check()
    line = encode_request(request)
    assert "\n" not in line
    assert decode_request(line) == request
