"""Azure's CSV, with what is odd about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.importer import import_trace
from loadgen.traces.timestamps import parse_time_ns
from loadgen.traces.trace_error import TraceError
from tests.trace_files import write_azure_2023, write_azure_2024, write_lines

ROWS_2023 = ["2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:03.9799601,3180,8", "2023-11-16 18:17:05,110,27"]


def test_rows_of_2023_keep_every_digit_of_their_times(tmp_path: Path) -> None:
    trace = import_trace(write_azure_2023(tmp_path / "a.csv", ROWS_2023), ImportConfig())
    assert [request.t_s for request in trace.requests] == [0.0, 1e-7, 1.02004]
    assert [(request.in_tokens, request.out_tokens) for request in trace.requests] == [(4808, 10), (3180, 8), (110, 27)]
    assert all(request.prefix is None and request.slo_class is None for request in trace.requests)
    assert "2023" in trace.meta.source.name and "Splitwise" in (trace.meta.source.attribution or "")
    assert trace.meta.source.licence.startswith("CC BY 4.0")


def test_rows_of_2024_have_a_zone(tmp_path: Path) -> None:
    rows = ["2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:00.017335+00:00,2399,6"]
    trace = import_trace(write_azure_2024(tmp_path / "a.csv", rows), ImportConfig())
    assert [request.t_s for request in trace.requests] == [0.0, 0.007405]
    assert "2024" in trace.meta.source.name and "DynamoLLM" in (trace.meta.source.attribution or "")


def test_columns_are_found_by_name_behind_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", ["\ufeffGeneratedTokens,TIMESTAMP,ContextTokens", "7,2023-11-16 00:00:00,9"])
    (request,) = import_trace(path, ImportConfig()).requests
    assert (request.in_tokens, request.out_tokens) == (9, 7)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01 00:00:01", 10**9),
        ("1970-01-01T00:00:00.5Z", 5 * 10**8),
        ("1970-01-01 00:00:00.0000001", 100),
        ("1970-01-01 02:00:00.000001+02:00", 1000),
        ("1969-12-31 23:59:59.75", -25 * 10**7),
    ],
)
def test_times(text: str, nanoseconds: int) -> None:
    assert parse_time_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "16/11/2023 18:17", "2023-13-01 00:00:00", "2023-11-16 00:00:00.1234567890"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time_ns(text)


def test_every_row_is_emitted_or_dropped_for_a_reason(tmp_path: Path) -> None:
    time = "2023-11-16 18:17:06"
    bad = [f"{time},0,5", f"{time},5,0", f"{time},x,5", f"{time},5,5,5", time]
    trace = import_trace(write_azure_2023(tmp_path / "a.csv", [*ROWS_2023, *bad]), ImportConfig())
    assert (trace.meta.num_rows_read, trace.meta.num_rows_emitted, len(trace.requests)) == (8, 3, 3)
    assert trace.meta.num_dropped == {"malformed": 3, "no_input_tokens": 1, "no_output_tokens": 1}


def test_rows_out_of_order_are_sorted_and_told(tmp_path: Path) -> None:
    trace = import_trace(write_azure_2023(tmp_path / "a.csv", reversed(ROWS_2023)), ImportConfig())
    assert [request.in_tokens for request in trace.requests] == [4808, 3180, 110]
    assert next((t.name, t.details.get("steps_back")) for t in trace.meta.transforms) == ("sort_by_time", 2)


def test_only_the_first_rows_are_read_where_asked(tmp_path: Path) -> None:
    trace = import_trace(write_azure_2023(tmp_path / "a.csv", ROWS_2023), ImportConfig(first_rows=2, slo_class="batch"))
    assert trace.meta.num_rows_read == 2
    assert [request.slo_class for request in trace.requests] == ["batch", "batch"]
    assert [transform.name for transform in trace.meta.transforms] == ["first_rows", "shift_to_zero", "label"]


def test_a_file_without_usable_rows_is_refused(tmp_path: Path) -> None:
    path = write_azure_2023(tmp_path / "a.csv", ["2023-11-16 18:17:06,5,0"])
    with pytest.raises(TraceError, match=r"a\.csv: none of 1 rows can be used \(1 no_output_tokens\)"):
        import_trace(path, ImportConfig())
