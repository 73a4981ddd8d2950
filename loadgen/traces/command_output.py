"""What the verbs of `headrace trace` share: where they write, and how they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from loadgen.traces.trace_error import TraceError

EXIT_USAGE = 2
OutPath = Annotated[Path, typer.Option("--out", help="Where the canonical JSONL goes.", metavar="PATH")]


def fail(message: str, code: int = 1) -> NoReturn:
    """Say why on stderr, and leave."""
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Errors of traces end the program with their message."""
    try:
        yield
    except TraceError as error:
        fail(str(error))


def check_is_other(out_path: Path, *paths: Path, option: str = "--out") -> None:
    """Leave if what is to be written is what is read."""
    for path in paths:
        if out_path.exists() and path.exists() and out_path.samefile(path):
            fail(f"{option} {out_path} is the file that is read; name another one", EXIT_USAGE)
