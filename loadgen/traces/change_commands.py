"""The verbs of `headrace trace` that make a trace of others."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.traces.command_output import EXIT_USAGE, OutPath, check_is_other, fail, reporting

if TYPE_CHECKING:
    from loadgen.traces.trace_file import Trace

_TracePath = Annotated[Path, typer.Argument(help="A canonical trace, or one that `import` reads.", metavar="FILE")]


def _write(out_path: Path, trace: Trace) -> None:
    from loadgen.traces.summary_text import written_lines
    from loadgen.traces.trace_file import write_trace

    with reporting():
        write_trace(out_path, trace)
    typer.echo("\n".join(written_lines(trace, out_path)))


def trace_merge_command(
    specs: Annotated[
        list[str],
        typer.Argument(
            help="Two or more traces; class labels all requests of one, rate scales it to mean requests/s.",
            metavar="FILE[:class=NAME][:rate=R]...",
        ),
    ],
    out_path: OutPath,
    shortest: Annotated[
        bool, typer.Option("--shortest", help="End with the trace that ends first, so that each moment has all.")
    ] = False,
) -> None:
    """Merge traces into one load, all beginning at 0: `headrace trace merge code.jsonl:class=batch
    chat.jsonl:class=interactive:rate=2 --out mixed.jsonl`. Sessions and block ids of different traces stay apart."""
    from loadgen.traces.importer import load_trace
    from loadgen.traces.merging import merge, parse_merge_spec

    with reporting():
        parsed = [parse_merge_spec(text) for text in specs]
        check_is_other(out_path, *(spec.path for spec in parsed))
        trace = merge([(load_trace(spec.path), spec) for spec in parsed], shortest)
    _write(out_path, trace)


def trace_thin_command(
    path: _TracePath,
    share: Annotated[float, typer.Option(help="Of the conversations to keep, above 0 and at most 1.")],
    out_path: OutPath,
    seed: Annotated[int, typer.Option(help="Of which ones are kept.")] = 0,
) -> None:
    """Keep a share of the load with the pattern of the whole: conversations stay whole or go whole, times stay."""
    from loadgen.traces.importer import load_trace
    from loadgen.traces.thinning import thin

    check_is_other(out_path, path)
    with reporting():
        trace = thin(load_trace(path), share, seed)
    _write(out_path, trace)


def trace_scale_command(
    path: _TracePath,
    out_path: OutPath,
    factor: Annotated[float | None, typer.Option(help="Of all times: 2 makes the trace twice as long.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean requests/s that it shall have.")] = None,
) -> None:
    """Make a trace faster or slower, think times included: by a factor of its times, or to a mean rate."""
    from loadgen.traces.importer import load_trace
    from loadgen.traces.scaling import scale_time, scale_to_rate

    check_is_other(out_path, path)
    with reporting():
        if factor is not None and rate is None:
            trace = scale_time(load_trace(path), factor)
        elif rate is not None and factor is None:
            trace = scale_to_rate(load_trace(path), rate)
        else:
            fail("give either --factor or --rate", EXIT_USAGE)
    _write(out_path, trace)


def trace_cut_command(
    path: _TracePath,
    out_path: OutPath,
    start: Annotated[float | None, typer.Option("--from", help="Seconds into the trace.")] = None,
    end: Annotated[float | None, typer.Option("--to", help="Seconds into the trace, not included.")] = None,
    rows: Annotated[
        str | None, typer.Option(help="Instead: rows from the first to before the last.", metavar="A:B")
    ] = None,
) -> None:
    """Take a piece of a trace, by time or by rows; its beginning becomes 0."""
    from loadgen.traces.cutting import cut_rows, cut_time
    from loadgen.traces.importer import load_trace

    check_is_other(out_path, path)
    if (rows is None) == (start is None and end is None):
        fail("give either --rows, or --from and --to or one of them", EXIT_USAGE)
    first, last = (0, None) if rows is None else _rows(rows)
    with reporting():
        if rows is None:
            trace = cut_time(load_trace(path), start or 0.0, math.inf if end is None else end)
        else:
            trace = cut_rows(load_trace(path), first, last)
    _write(out_path, trace)


def _rows(text: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        fail(f"--rows is {text!r}, write A:B, A: or :B with whole numbers", EXIT_USAGE)
    first, last = match.groups()
    return int(first or 0), int(last) if last else None
