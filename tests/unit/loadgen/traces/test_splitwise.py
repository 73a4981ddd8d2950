"""SplitwiseSim's CSV."""

from __future__ import annotations

from pathlib import Path

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from tests.trace_files import real_slice, write_lines

HEADER = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"


def test_rows(tmp_path: Path) -> None:
    rows = ["0,2,0,0.25,1,4096,32", "1,1,0,0.5,1,9,9", "2,2,0,0.75,4,9,9", "3,2,0,x,1,9,9", "4,2,0,1.000000001,1,8,4"]
    trace = import_trace(write_lines(tmp_path / "s.csv", [HEADER, *rows]), ImportConfig())
    assert [(each.t_s, each.in_tokens, each.out_tokens) for each in trace.requests] == [
        (0.0, 4096, 32),
        (0.750000001, 8, 4),
    ]
    assert trace.meta.num_rows_read == 5
    assert trace.meta.num_dropped == {"malformed": 1, "no_language_model_request": 1, "several_sequences": 1}


def test_the_published_sample() -> None:
    trace = import_trace(real_slice("splitwise_sim_test_trace.csv"), ImportConfig())
    assert [(each.t_s, each.in_tokens, each.out_tokens) for each in trace.requests] == [
        (0.0, 4096, 32),
        (2.0, 2048, 8),
        (3.0, 2048, 16),
    ]
