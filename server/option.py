"""The command line's options, read from the fields of the config dataclasses: one truth for name, default and bound."""

from __future__ import annotations

import dataclasses
import enum
import keyword
import types
import typing
from collections.abc import Iterable
from typing import Any

from server.byte_size import format_byte_size

_HIDDEN_SUFFIXES = ("_bytes", "_path")
"""Units that the form of the value shows: `kv_cache_memory_bytes` is `--kv-cache-memory 2GiB`."""


class OptionKind(enum.Enum):
    SWITCH = "switch"
    INTEGER = "integer"
    NUMBER = "number"
    SIZE = "size"
    TEXT = "text"
    CHOICE = "choice"
    LIST = "list"


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One field of one config dataclass, as a user sets it."""

    name: str
    """With dashes: `--NAME` on the command line, NAME as a TOML key."""
    field: str
    owner: type
    """The config dataclass."""
    kind: OptionKind
    default: Any
    is_optional: bool
    """None is a value: it is the default, and stands for "derive it"."""
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    alias: str | None = None
    """A second name on the command line."""
    is_secret: bool = False
    """Its value is never shown."""

    @property
    def key(self) -> str:
        """The name as a Python identifier."""
        key = self.name.replace("-", "_")
        return key + "_" if keyword.iskeyword(key) else key

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "HEADRACE_" + self.name.replace("-", "_").upper()

    @property
    def default_text(self) -> str | None:
        """The default as a user would write it; None: there is nothing to show."""
        if self.default is None or self.default == ():
            return None
        if self.kind is OptionKind.SWITCH:
            return "on" if self.default else "off"
        if self.kind is OptionKind.SIZE:
            return format_byte_size(self.default)
        if self.kind is OptionKind.NUMBER:
            return f"{self.default:g}"
        return str(self.default)


def options_of(*config_types: type, without: Iterable[str] = ()) -> tuple[Option, ...]:
    """The options of some config dataclasses, in the order of their fields.

    Args:
        without: fields that are no options, since the program fills them.

    Raises:
        TypeError: a field's type has no form on a command line.
        ValueError: two fields yield the same option.
    """
    hidden = frozenset(without)
    options = tuple(
        _option(config_type, field, hint)
        for config_type in config_types
        for field, hint in _fields(config_type)
        if field.name not in hidden
    )
    names = [option.name for option in options]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"options named twice: {repeated}")
    return options


def _fields(config_type: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(config_type)
    return [(field, hints[field.name]) for field in dataclasses.fields(config_type)]


def _option(owner: type, field: dataclasses.Field[Any], hint: Any) -> Option:
    plain, is_optional = _without_none(hint)
    metadata = field.metadata
    return Option(
        name=metadata.get("option") or _option_name(field.name),
        field=field.name,
        owner=owner,
        kind=_kind(field.name, plain),
        default=_default(field),
        is_optional=is_optional,
        help=metadata.get("help", ""),
        low=metadata.get("min"),
        high=metadata.get("max"),
        choices=typing.get_args(plain) if typing.get_origin(plain) is typing.Literal else (),
        is_secret=not field.repr,
    )


def _option_name(field_name: str) -> str:
    for suffix in _HIDDEN_SUFFIXES:
        field_name = field_name.removesuffix(suffix)
    return field_name.replace("_", "-")


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    rest = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    if len(rest) != 1:
        raise TypeError(f"{hint} has no form on a command line")
    return rest[0], len(rest) < len(typing.get_args(hint))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise TypeError(f"{field.name} has no default: it cannot be an option")


def _kind(field_name: str, hint: Any) -> OptionKind:
    if typing.get_origin(hint) is typing.Literal:
        return OptionKind.CHOICE
    if hint == tuple[str, ...]:
        return OptionKind.LIST
    if hint is int and field_name.endswith("_bytes"):
        return OptionKind.SIZE
    kinds = {
        bool: OptionKind.SWITCH,
        int: OptionKind.INTEGER,
        float: OptionKind.NUMBER,
        str: OptionKind.TEXT,
    }
    if hint not in kinds:
        raise TypeError(f"{field_name}: {hint} has no form on a command line")
    return kinds[hint]
