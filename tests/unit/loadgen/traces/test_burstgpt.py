"""BurstGPT's two layouts, with what is odd about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.trace_error import TraceError
from tests.trace_files import write_lines

HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
SESSION_HEADER = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
ROWS = ["5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,1087,230,1317,API log", "45,ChatGPT,417,0,417,API log"]


def test_rows_without_tokens_are_failures_and_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "b.csv", [HEADER, *ROWS, "50,ChatGPT,0,7,7,API log", "5x,ChatGPT,1,1,2,API log", "9"])
    trace = import_trace(path, ImportConfig())
    assert [(each.t_s, each.in_tokens, each.out_tokens) for each in trace.requests] == [
        (0.0, 472, 18),
        (40.0, 1087, 230),
    ]
    assert trace.meta.num_dropped == {"malformed": 2, "no_input_tokens": 1, "no_output_tokens": 1}
    assert (trace.meta.num_rows_read, trace.meta.num_rows_emitted) == (6, 2)
    assert trace.meta.source.licence.startswith("CC BY 4.0")


def test_the_layout_with_sessions_is_read_by_name(tmp_path: Path) -> None:
    rows = [
        "19440110.0,a,43,GPT-4,906,446,1352,Conversation log",
        "19440111.25,,,GPT-4,10,5,15,API log",
        "19440160.0,a,2,GPT-4,1400,29,1429,Conversation log",
        "19440161.0,b,9,ChatGPT,36,0,36,Conversation log",
        "19440170.5,b,2,ChatGPT,36,8,44,Conversation log",
    ]
    trace = import_trace(write_lines(tmp_path / "b.csv", [SESSION_HEADER, *rows]), ImportConfig())
    told = [(each.t_s, each.session, each.turn, each.after, each.think_s) for each in trace.requests]
    # The empty id is an API call and no failure. Session b's first row has failed, so its second one waits for nothing.
    assert told == [
        (0.0, "a", 0, None, None),
        (1.25, None, 0, None, None),
        (50.0, "a", 1, 0, 7.0),
        (60.5, "b", 0, None, None),
    ]
    assert trace.meta.num_dropped == {"no_output_tokens": 1}


def test_a_row_before_the_end_of_the_last_one_did_not_wait(tmp_path: Path) -> None:
    rows = [
        "100,a,30,GPT-4,9,4,13,Conversation log",
        "110,a,5,GPT-4,9,4,13,Conversation log",  # 20 s early
        "114,a,5,GPT-4,9,4,13,Conversation log",  # 1 s early: the clock's step
    ]
    trace = import_trace(write_lines(tmp_path / "b.csv", [SESSION_HEADER, *rows]), ImportConfig())
    assert [(each.turn, each.after, each.think_s) for each in trace.requests] == [
        (0, None, None),
        (1, None, None),
        (2, 1, 0.0),
    ]


def test_log_types_become_classes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "b.csv", [HEADER, *ROWS[:2]])
    config = ImportConfig(class_of=(("API log", "batch"),), slo_class="interactive")
    trace = import_trace(path, config)
    assert [each.slo_class for each in trace.requests] == ["interactive", "batch"]
    assert [t.details for t in trace.meta.transforms if t.name == "label"] == [
        {"kind": "API log", "class": "batch"},
        {"class": "interactive"},
    ]
    with pytest.raises(TraceError, match="kind 'api' that --class-of names; this source has API log, Conversation log"):
        import_trace(path, ImportConfig(class_of=(("api", "batch"),)))
