"""`headrace trace`: the verbs on recorded load. What computes is imported by the verb that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from loadgen.traces.length_limit import TooLong
from loadgen.traces.mooncake import BLOCK_TOKENS

EXIT_USAGE = 2

trace_app = typer.Typer(
    help="Recorded load: read published traces, and say what a trace is like.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


@trace_app.command("import", short_help="Bring a published trace into the canonical form.")
def trace_import_command(
    path: Annotated[Path, typer.Argument(help="Azure LLM 2023 or 2024 (CSV), or Mooncake (JSONL).", metavar="FILE")],
    out_path: Annotated[Path, typer.Option("--out", help="Where the canonical JSONL goes.", metavar="PATH")],
    slo_class: Annotated[str | None, typer.Option("--class", help="Latency class of every request.")] = None,
    first_rows: Annotated[int | None, typer.Option("--first", help="Read only so many rows.", min=1)] = None,
    block: Annotated[int, typer.Option(help="Tokens of a block of Mooncake's block ids.", min=1)] = BLOCK_TOKENS,
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
) -> None:
    """Bring a published trace into the canonical form, with a sidecar (PATH.meta.json): source, licence, checksums,
    rows read, emitted and dropped by reason, and what was changed. The same options write the same bytes."""
    from loadgen.traces.importer import ImportConfig, import_trace
    from loadgen.traces.summary_text import import_lines
    from loadgen.traces.trace_error import TraceError
    from loadgen.traces.trace_file import write_trace

    if out_path.exists() and path.exists() and out_path.samefile(path):
        _fail(f"--out {out_path} is the file that is read; name another one", EXIT_USAGE)
    config = ImportConfig(block, first_rows, slo_class, spread_ties, seed, max_tokens, too_long)
    try:
        trace = import_trace(path, config)
        write_trace(out_path, trace)
    except TraceError as error:
        _fail(str(error))
    typer.echo("\n".join(import_lines(trace, out_path)))


@trace_app.command("describe", short_help="Rates, burstiness, lengths and shared prefixes of a trace.")
def trace_describe_command(
    path: Annotated[Path, typer.Argument(help="A canonical trace, or one that `import` reads.", metavar="FILE")],
) -> None:
    """Say what a trace is like: rates, burstiness, length quantiles, classes, and what share of its blocks an endless
    cache would hold."""
    from loadgen.traces.importer import load_trace
    from loadgen.traces.summary_text import describe_lines
    from loadgen.traces.trace_error import TraceError

    try:
        trace = load_trace(path)
    except TraceError as error:
        _fail(str(error))
    typer.echo("\n".join(describe_lines(trace)))
