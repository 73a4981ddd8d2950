"""Values of the options from command line, environment and a TOML file, in that order of precedence."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from server.byte_size import format_byte_size, parse_byte_size
from server.option import Option, OptionKind

Config = TypeVar("Config")
_PREFIX = "HEADRACE_"
_FIELD = "option_"
"""Before each field's name: an option may be called like a method of pydantic's models, such as `json`."""
_NOT_OPTIONS = frozenset({"HEADRACE_CACHE", "HEADRACE_CONFIG", "HEADRACE_KERNELS_ISA"})
"""Variables that are read elsewhere."""


class SettingsError(Exception):
    """The message names each option, where its value came from, the value, and the limit."""


class Settings:
    """The value of every option, checked one by one."""

    def __init__(self, options: tuple[Option, ...], values: Mapping[str, Any]) -> None:
        self._options = options
        self._values = dict(values)

    def value(self, name: str) -> Any:
        """Value of the option with that name (with dashes)."""
        return self._values[name]

    def build(self, config_type: type[Config], **filled: Any) -> Config:
        """A config dataclass from its options and from the fields that the program fills.

        Raises:
            SettingsError: the values do not fit together.
        """
        own = {o.field: self._values[o.name] for o in self._options if o.owner is config_type}
        try:
            return config_type(**own, **filled)
        except ValueError as error:
            raise SettingsError(self._in_option_names(str(error))) from error

    def _in_option_names(self, message: str) -> str:
        names = {option.field: f"--{option.name}" for option in self._options}
        return re.sub(r"\b\w+\b", lambda word: names.get(word[0], word[0]), message)


def load_settings(
    options: tuple[Option, ...], command_line: Mapping[str, Any], environ: Mapping[str, str], toml_path: Path | None
) -> Settings:
    """Gather and check the values.

    Args:
        command_line: option key (underscores) → what was typed; absent: not given.
        toml_path: a file of `name = value` lines; None: none.

    Raises:
        SettingsError: an unknown TOML key, or a value that is none or out of bounds.
    """
    toml = read_toml(toml_path, options) if toml_path else {}
    settings_type = _settings_type(options, environ, toml)
    try:
        settings = settings_type(**{_FIELD + key: value for key, value in command_line.items()})
    except ValidationError as error:
        by_field = {_FIELD + option.key: option for option in options}
        lines = [
            _explain(by_field[str(e["loc"][0])], e, _Origin(command_line, environ, toml_path)) for e in error.errors()
        ]
        raise SettingsError("\n".join(dict.fromkeys(lines))) from error
    return Settings(options, {option.name: getattr(settings, _FIELD + option.key) for option in options})


def unknown_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[str]:
    """A line for each HEADRACE_ variable that sets nothing. No error: other programs may have made them."""
    known = {option.variable for option in options} | _NOT_OPTIONS
    strangers = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    return [f"{name} sets nothing{_did_you_mean(name, known)}" for name in strangers]


def read_toml(path: Path, options: Iterable[Option]) -> dict[str, Any]:
    """Option key → value of a TOML file; dashes and underscores are the same.

    Raises:
        SettingsError: unreadable, no TOML, or a key that is no option.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {path} is not valid TOML: {error}") from error
    keys = {option.name: option.key for option in options}
    values = {name.replace("_", "-"): value for name, value in table.items()}
    unknown = [
        f"{path}: unknown key {name!r}{_did_you_mean(name.replace('_', '-'), keys)}"
        for name in table
        if name.replace("_", "-") not in keys
    ]
    if unknown:
        raise SettingsError("\n".join(unknown))
    return {keys[name]: value for name, value in values.items()}


def _settings_type(options: tuple[Option, ...], environ: Mapping[str, str], toml: dict[str, Any]) -> type[BaseSettings]:
    given = {_FIELD + o.key: environ[o.variable] for o in options if environ.get(o.variable, "") != ""}
    written = {_FIELD + key: value for key, value in toml.items()}

    class Sources(BaseSettings):
        model_config = SettingsConfigDict(extra="forbid")

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del env_settings, dotenv_settings, file_secret_settings
            # The environment comes as a mapping, so that whoever calls decides which one is read.
            variables = InitSettingsSource(settings_cls, init_kwargs=given)
            return init_settings, variables, InitSettingsSource(settings_cls, init_kwargs=written)

    fields: dict[str, Any] = {_FIELD + o.key: (_annotation(o), o.default) for o in options}
    return create_model("Options", __base__=Sources, **fields)


def _annotation(option: Option) -> Any:
    bounds = Field(ge=option.low, le=option.high) if option.low is not None or option.high is not None else None
    kinds: dict[OptionKind, Any] = {
        OptionKind.SWITCH: bool,
        OptionKind.INTEGER: int,
        OptionKind.NUMBER: Annotated[float, Field(allow_inf_nan=False)],
        OptionKind.TEXT: str,
        OptionKind.SIZE: Annotated[int, BeforeValidator(_size)],
        OptionKind.LIST: Annotated[tuple[str, ...], BeforeValidator(_list)],
    }
    kind = Literal[option.choices] if option.kind is OptionKind.CHOICE else kinds[option.kind]
    bounded = Annotated[kind, bounds] if bounds is not None else kind
    if option.kind is OptionKind.SIZE and option.is_optional:
        return Annotated[bounded | None, BeforeValidator(_none_if_auto)]
    return bounded | None if option.is_optional else bounded


def _none_if_auto(value: Any) -> Any:
    return None if value == "auto" else value


def _size(value: Any) -> Any:
    return parse_byte_size(value) if isinstance(value, str) else value


def _list(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True, slots=True)
class _Origin:
    command_line: Mapping[str, Any]
    environ: Mapping[str, str]
    toml_path: Path | None

    def of(self, option: Option) -> str:
        if option.key in self.command_line:
            return f"--{option.name}"
        if option.variable in self.environ:
            return option.variable
        return f"{option.name} in {self.toml_path}"


def _explain(option: Option, error: ErrorDetails, origin: _Origin) -> str:
    kind, context = error["type"], error.get("ctx", {})
    value = "(not shown)" if option.is_secret else repr(error["input"])
    if kind == "value_error":
        return f"{origin.of(option)}: {context['error']}"
    if kind in ("greater_than_equal", "less_than_equal"):
        side, limit = ("least", context["ge"]) if "ge" in context else ("most", context["le"])
        text = format_byte_size(int(limit)) if option.kind is OptionKind.SIZE else f"{limit:g}"
        return f"{origin.of(option)} is {str(error['input']).strip()}, it must be at {side} {text}"
    needs = {
        OptionKind.SWITCH: "true or false",
        OptionKind.INTEGER: "a whole number",
        OptionKind.NUMBER: "a finite number",
        OptionKind.SIZE: "a size, such as 512MiB" + (", or auto" if option.is_optional else ""),
        OptionKind.TEXT: "text",
        OptionKind.LIST: "a list of texts",
        OptionKind.CHOICE: "one of " + ", ".join(option.choices),
    }[option.kind]
    return f"{origin.of(option)} is {value}, it must be {needs}"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
