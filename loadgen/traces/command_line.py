"""`headrace trace`: the verbs on recorded load. What computes is imported by the verb that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen.traces.change_commands import (
    trace_cut_command,
    trace_merge_command,
    trace_scale_command,
    trace_thin_command,
)
from loadgen.traces.command_output import EXIT_USAGE, OutPath, check_is_other, fail, reporting
from loadgen.traces.length_limit import TooLong
from loadgen.traces.source_format import SourceFormat

_MAX_PROBLEMS_SHOWN = 50

trace_app = typer.Typer(
    help="Recorded load: read published traces, say what a trace is like, and make others of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
trace_app.command("merge", short_help="Several traces as one load, each with its class.")(trace_merge_command)
trace_app.command("thin", short_help="Keep a share of the conversations.")(trace_thin_command)
trace_app.command("scale", short_help="Make a trace faster or slower.")(trace_scale_command)
trace_app.command("cut", short_help="Take a piece of a trace.")(trace_cut_command)


@trace_app.command("import", short_help="Bring a published trace into the canonical form.")
def trace_import_command(
    path: Annotated[
        Path,
        typer.Argument(
            help="Azure LLM 2023 or 2024, BurstGPT, Mooncake, Bailian, TraceLab, OpenTelemetry, ShareGPT or "
            "SplitwiseSim; or ServeGen's clients, a directory or one of them.",
            metavar="FILE",
        ),
    ],
    out_path: OutPath,
    source_format: Annotated[
        SourceFormat | None, typer.Option("--format", help="Refuse the file if it looks like another one.")
    ] = None,
    slo_class: Annotated[str | None, typer.Option("--class", help="Latency class of every request.")] = None,
    class_of: Annotated[
        list[str] | None,
        typer.Option(
            "--class-of",
            help="Latency class of one kind of request, as BurstGPT's log types, Bailian's types, TraceLab's providers "
            "or ServeGen's clients; may be given many times.",
            metavar="KIND=CLASS",
        ),
    ] = None,
    first_rows: Annotated[int | None, typer.Option("--first", help="Read only so many rows.", min=1)] = None,
    block: Annotated[
        int | None, typer.Option(help="Tokens of a block of ids; Mooncake's are 512, Bailian's 16, others 64.", min=1)
    ] = None,
    spread_ties: Annotated[
        bool, typer.Option("--spread-ties", help="Spread the times of a coarse clock at random inside its steps.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of what is drawn at random.")] = 0,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest request, prompt and answer together; see --too-long.", min=2)
    ] = None,
    too_long: Annotated[
        TooLong,
        typer.Option(help="Beyond --max-tokens: refuse the trace, drop or clip the request, or scale all requests."),
    ] = "fail",
    rate: Annotated[
        float | None,
        typer.Option(help="ServeGen: mean requests/s, else its clients' own; ShareGPT: conversations/s, else 1."),
    ] = None,
    start: Annotated[float, typer.Option(help="ServeGen: seconds into its windows where to begin.")] = 0.0,
    duration: Annotated[float | None, typer.Option(help="ServeGen: seconds to draw.")] = None,
    skip_incomplete: Annotated[
        bool, typer.Option("--skip-incomplete", help="ServeGen: leave out clients without lengths.")
    ] = False,
    think: Annotated[float, typer.Option(help="ShareGPT: mean seconds from an answer to the next turn.")] = 10.0,
    chars_per_token: Annotated[
        float, typer.Option(help="ShareGPT, OpenTelemetry: estimates lengths that are not counted.")
    ] = 4.0,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="ShareGPT, OpenTelemetry: keep the prompts themselves.")
    ] = False,
) -> None:
    """Bring a published trace into the canonical form, with a sidecar (PATH.meta.json): source, licence, checksums,
    rows read, emitted and dropped by reason, and what was changed. The same options write the same bytes."""
    from loadgen.traces.import_config import ImportConfig
    from loadgen.traces.importer import import_trace
    from loadgen.traces.summary_text import written_lines
    from loadgen.traces.trace_file import write_trace

    check_is_other(out_path, path)
    config = ImportConfig(
        block_tokens=block,
        first_rows=first_rows,
        slo_class=slo_class,
        class_of=_pairs(class_of or []),
        spread_ties=spread_ties,
        seed=seed,
        max_tokens=max_tokens,
        too_long=too_long,
        format=source_format,
        chars_per_token=chars_per_token,
        keep_text=keep_text,
        rate_per_s=rate,
        mean_think_s=think,
        start_s=start,
        duration_s=duration,
        skip_incomplete=skip_incomplete,
    )
    with reporting():
        trace = import_trace(path, config)
        write_trace(out_path, trace)
    typer.echo("\n".join(written_lines(trace, out_path)))


def _pairs(texts: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.rpartition("=") for text in texts]
    for text, (kind, _, name) in zip(texts, pairs, strict=True):
        if not (kind and name):
            fail(f"--class-of {text!r} is not KIND=CLASS", EXIT_USAGE)
    return tuple((kind, name) for kind, _, name in pairs)


@trace_app.command("describe", short_help="Rates, burstiness, lengths and shared prefixes of a trace.")
def trace_describe_command(
    path: Annotated[Path, typer.Argument(help="A canonical trace, or one that `import` reads.", metavar="FILE")],
    png_path: Annotated[
        Path | None,
        typer.Option("--png", help="Write a picture of arrivals over time and of lengths.", metavar="PATH"),
    ] = None,
) -> None:
    """Say what a trace is like: rates, burstiness, length quantiles, sessions, classes, and what share of its blocks
    an endless cache would hold."""
    from loadgen.traces.importer import load_trace
    from loadgen.traces.summary_text import describe_lines

    if png_path is not None:
        check_is_other(png_path, path, option="--png")
    with reporting():
        trace = load_trace(path)
        if png_path is not None:
            from loadgen.traces.picture import write_picture

            write_picture(trace, png_path)
    typer.echo("\n".join(describe_lines(trace)))


@trace_app.command("validate", short_help="Check a canonical trace and its sidecar.")
def trace_validate_command(
    path: Annotated[Path, typer.Argument(help="A canonical trace.", metavar="FILE")],
    adopts: Annotated[
        bool,
        typer.Option("--adopt", help="Write the sidecar of a sound trace that was made or edited by hand."),
    ] = False,
) -> None:
    """Check every line, the links between requests, and the sidecar's checksum and counts. Exits with 1 where anything
    is wrong."""
    from loadgen.traces.adoption import adopt
    from loadgen.traces.summary_text import written_lines
    from loadgen.traces.validation import find_problems

    if adopts:
        with reporting():
            trace = adopt(path)
        typer.echo("\n".join(written_lines(trace, path)))
    with reporting():
        problems = list(find_problems(path))
    for problem in problems[:_MAX_PROBLEMS_SHOWN]:
        typer.echo(f"{path}: {problem}")
    if problems:
        fail(f"{path}: {len(problems):,} problems")
    typer.echo(f"{path}: sound")
