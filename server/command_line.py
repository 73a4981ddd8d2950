"""A typer command made from options: what was typed is handed on as text, and checked where all sources are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from server.option import Option, OptionKind

_METAVARS: dict[OptionKind, str] = {
    OptionKind.INTEGER: "INTEGER",
    OptionKind.NUMBER: "NUMBER",
    OptionKind.SIZE: "SIZE",
    OptionKind.TEXT: "TEXT",
    OptionKind.LIST: "TEXT",
}

Typed = Mapping[str, Any]
"""Option key → what was typed; only what was."""


class SectionedCommand(TyperCommand):
    """Its help in plain text, a section for each config dataclass: no name is cut, however narrow the terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The sections in the order of the parameters; typer's own Context and HelpFormatter."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def command_of(
    options: tuple[Option, ...],
    run: Callable[[str | None, Path | None, Typed], None],
    argument: str,
    argument_help: str,
    *,
    is_required: bool = False,
    takes_config: bool = False,
) -> Callable[..., None]:
    """A function that typer turns into a command with one positional argument and one option for each of `options`.

    Args:
        run: called with the argument, the file of `--config` and what was typed.
        argument: the positional argument's name, such as MODEL.
        takes_config: there is an option `--config FILE`.
    """

    def command(**given: Any) -> None:
        positional, config = given.pop("positional"), given.pop("config", None)
        run(positional, config, {key: value for key, value in given.items() if value is not None and value != []})

    shown = typer.Argument(help=argument_help, metavar=argument, show_default=False)
    kind = str if is_required else str | None
    parameters = [_parameter("positional", Annotated[kind, shown], is_required=is_required)]
    if takes_config:
        file = typer.Option("--config", help="TOML file of options: `name = value`.", metavar="FILE", dir_okay=False)
        parameters.append(_parameter("config", Annotated[Path | None, file]))
    parameters += [_parameter(option.key, _annotation(option)) for option in options]
    cast(Any, command).__signature__ = inspect.Signature(parameters)
    return command


def _parameter(name: str, annotation: Any, *, is_required: bool = False) -> inspect.Parameter:
    default = inspect.Parameter.empty if is_required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(option: Option) -> Any:
    flag = f"--{option.name}"
    default = option.default_text
    text = option.help if default is None else f"{option.help} (default: {default})"
    shown: dict[str, Any] = {
        "help": text,
        "show_default": False,
        "rich_help_panel": option.owner.__name__.removesuffix("Config"),
    }
    if option.kind is OptionKind.SWITCH:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{option.name}", **shown)]
    metavar = "|".join(option.choices) if option.kind is OptionKind.CHOICE else _METAVARS[option.kind]
    if option.kind is OptionKind.LIST:
        return Annotated[list[str] | None, typer.Option(flag, metavar=metavar, **shown)]
    names = (flag,) if option.alias is None else (flag, f"--{option.alias}")
    return Annotated[str | None, typer.Option(*names, metavar=metavar, **shown)]
