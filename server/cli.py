"""The command line, and the composition root: the one module that may import every folder, each verb only its own."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from server.known_model import DEFAULT_ALIAS

_MODEL_HELP = f"Directory, GGUF file, hub id or alias; default: {DEFAULT_ALIAS}."

app = typer.Typer(
    name="headrace",
    help="An OpenAI-compatible LLM server that keeps latency promises.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the console script `headrace` and of `python -m server`."""
    app()


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        from server.version import headrace_version

        typer.echo(f"headrace {headrace_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    del version


@app.command("pull")
def pull_command(
    model: Annotated[str, typer.Argument(help=_MODEL_HELP, show_default=False)] = DEFAULT_ALIAS,
) -> None:
    """Fetch a model into the cache ($HEADRACE_CACHE, else ~/.cache/headrace) and verify it."""
    from rich.console import Console

    from server.model_error import ModelError
    from server.model_source import pull
    from server.pull_progress import pull_progress

    try:
        with pull_progress(model, Console(stderr=True)) as events:
            paths = pull(model, events=events)
    except ModelError as error:
        _fail(str(error))
    typer.echo(str(paths.path))
