"""A typer command made from options: what was typed is handed on as text, and checked where all sources are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from server.option import Option, OptionKind

_METAVARS: dict[OptionKind, str] = {
    OptionKind.INTEGER: "INTEGER",
    OptionKind.NUMBER: "NUMBER",
    OptionKind.SIZE: "SIZE",
    OptionKind.TEXT: "TEXT",
    OptionKind.LIST: "TEXT",
}

Run = Callable[[str | None, Path | None, Mapping[str, Any]], None]
"""Called with the MODEL, the --config file and option key → what was typed (only what was)."""


def command_of(options: tuple[Option, ...], run: Run, model_help: str) -> Callable[..., None]:
    """A function that typer turns into a command with `MODEL`, `--config` and one option for each of `options`."""

    def command(model: str | None, config: Path | None, **typed: Any) -> None:
        run(model, config, {key: value for key, value in typed.items() if value is not None and value != []})

    config_option = typer.Option("--config", help="TOML file of options: `name = value`.", dir_okay=False)
    parameters = [
        _parameter("model", Annotated[str | None, typer.Argument(help=model_help, show_default=False)]),
        _parameter("config", Annotated[Path | None, config_option]),
        *(_parameter(option.key, _annotation(option)) for option in options),
    ]
    cast(Any, command).__signature__ = inspect.Signature(parameters)
    return command


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(option: Option) -> Any:
    flag = f"--{option.name}"
    default = option.default_text
    shown: dict[str, Any] = {
        "help": option.help if default is None else f"{option.help} (default: {default})",
        "show_default": False,
        "rich_help_panel": option.owner.__name__.removesuffix("Config"),
    }
    if option.kind is OptionKind.SWITCH:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{option.name}", **shown)]
    metavar = "|".join(option.choices) if option.kind is OptionKind.CHOICE else _METAVARS[option.kind]
    if option.kind is OptionKind.LIST:
        return Annotated[list[str] | None, typer.Option(flag, metavar=metavar, **shown)]
    return Annotated[str | None, typer.Option(flag, metavar=metavar, **shown)]
