"""The table of latency classes: the built-in one, or the TOML file that replaces it.

    default_class = "chat"          # optional; the class of requests that name none

    [classes.chat]
    ttft_base_s = 1.0
    tpot_s = 0.05

A class takes the fields of `scheduler.slo.SLOClass` by their names, in seconds. Only `ttft_base_s` and `tpot_s` must be
given. `rank` follows the order in the file, `max_stall_s` and `degrade_to` are off, `protected` is false,
`when_infeasible` is "queue", `objective` 0.95, `share` 0.1, `queue_cap_tokens` 128000, `max_wait_s` 600, and
`service_tiers` is empty: the built-in classes' tiers are not those of the file's.

`when_infeasible` "refuse" and "degrade" turn away what would be late, with consent into `degrade_to`, which "degrade"
must name; with "queue" it waits and may be late, and only a full queue turns it away.
"""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any, cast

from scheduler.slo import DEFAULT_CLASSES, SLOClass, SLOClasses

MAX_CLASSES = 16
"""Each class is a label value of every metric, so their number is bounded."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
_TIER = re.compile(r"[a-z][a-z0-9_.-]{0,31}\Z")
_REQUIRED = ("ttft_base_s", "tpot_s")
_SECONDS = ("ttft_base_s", "ttft_per_1k_tokens_s", "tpot_s", "max_stall_s", "max_wait_s")
_DEFAULTS: dict[str, Any] = {
    "service_tiers": (),
    "ttft_per_1k_tokens_s": 0.0,
    "max_stall_s": None,
    "protected": False,
    "when_infeasible": "queue",
    "degrade_to": None,
    "objective": 0.95,
    "share": 0.1,
    "queue_cap_tokens": 128_000,
    "max_wait_s": 600.0,
}
_KEYS = ("rank", *_REQUIRED, *_DEFAULTS)
_WHEN_INFEASIBLE = ("refuse", "degrade", "queue")


class SLOTableError(ValueError):
    """The class file cannot be used; the message names the file, the key, the value and the limit."""


def load_slo_classes(path: str | None, default_class: str | None) -> SLOClasses:
    """The classes of the file at `path`, or the built-in ones where it is None.

    `default_class` names the class of requests that name none; None: the file's `default_class`, else "standard".

    Raises:
        SLOTableError: the file is missing or not TOML, a key is unknown or its value is out of bounds, or the
            default class is not in the table.
    """
    source = "the built-in classes" if path is None else path
    classes, default = (DEFAULT_CLASSES, "standard") if path is None else _read(path)
    try:
        return SLOClasses(classes, default_class or default)
    except ValueError as error:
        raise SLOTableError(f"{source}: {error}") from error


def _read(path: str) -> tuple[tuple[SLOClass, ...], str]:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SLOTableError(f"{path}: cannot read the file of latency classes: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SLOTableError(f"{path}: not TOML: {error}") from error
    unknown = sorted(set(table) - {"classes", "default_class"})
    if unknown:
        raise SLOTableError(f"{path}: unknown key {unknown[0]!r}: the known ones are 'classes' and 'default_class'")
    classes = table.get("classes")
    if not isinstance(classes, dict) or not classes:
        raise SLOTableError(f"{path}: no class: write at least one [classes.NAME] table")
    if len(classes) > MAX_CLASSES:
        raise SLOTableError(f"{path}: {len(classes)} classes, the limit is {MAX_CLASSES}")
    default = table.get("default_class", "standard")
    if not isinstance(default, str):
        raise SLOTableError(f"{path}: default_class is {default!r}, it must be the name of a class")
    try:
        parsed = tuple(_parse_class(name, value, rank) for rank, (name, value) in enumerate(classes.items()))
        _check_degrades(parsed)
    except SLOTableError as error:
        raise SLOTableError(f"{path}: {error}") from error
    return parsed, default


def _parse_class(name: str, given: object, rank: int) -> SLOClass:
    if not _NAME.match(name):
        raise SLOTableError(f"class {name!r}: a name is 1 to 32 of a-z, 0-9, '_' and '-', and begins with a letter")
    if not isinstance(given, dict):
        raise SLOTableError(f"class {name!r} is {given!r}: write it as a table [classes.{name}]")
    unknown = sorted(set(given) - set(_KEYS))
    if unknown:
        raise SLOTableError(f"class {name!r}: unknown key {unknown[0]!r}: the known ones are {', '.join(_KEYS)}")
    missing = [key for key in _REQUIRED if key not in given]
    if missing:
        raise SLOTableError(f"class {name!r}: {missing[0]} is missing")
    values = {"rank": rank, **_DEFAULTS, **given}
    for key in values:
        values[key] = _parse_value(name, key, values[key])
    if values["max_stall_s"] is not None and values["max_stall_s"] < values["tpot_s"]:
        raise SLOTableError(
            f"class {name!r}: max_stall_s is {values['max_stall_s']}, it must be at least tpot_s ({values['tpot_s']})"
        )
    try:
        return SLOClass(name=name, **values)
    except ValueError as error:
        raise SLOTableError(str(error)) from error


def _parse_value(name: str, key: str, value: object) -> object:
    """The value of one key with its type and bounds checked; bounds that `SLOClass` checks itself are left to it."""
    if key in ("max_stall_s", "degrade_to") and value is None:
        return None
    if key in _SECONDS or key in ("objective", "share"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SLOTableError(f"class {name!r}: {key} is {value!r}, it must be a finite number")
        if key in ("max_stall_s", "ttft_per_1k_tokens_s") and value < 0:
            raise SLOTableError(f"class {name!r}: {key} is {value}, it must be at least 0")
        return float(value)
    if key in ("rank", "queue_cap_tokens"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SLOTableError(f"class {name!r}: {key} is {value!r}, it must be a whole number of at least 0")
        return value
    if key == "protected" and not isinstance(value, bool):
        raise SLOTableError(f"class {name!r}: protected is {value!r}, it must be true or false")
    if key == "when_infeasible" and value not in _WHEN_INFEASIBLE:
        raise SLOTableError(f"class {name!r}: when_infeasible is {value!r}, it must be one of {_WHEN_INFEASIBLE}")
    if key == "degrade_to" and not isinstance(value, str):
        raise SLOTableError(f"class {name!r}: degrade_to is {value!r}, it must be the name of a class")
    return _parse_tiers(name, value) if key == "service_tiers" else value


def _parse_tiers(name: str, value: object) -> tuple[str, ...]:
    tiers = tuple(cast("list[object] | tuple[object, ...]", value)) if isinstance(value, list | tuple) else None
    if tiers is None or not all(isinstance(tier, str) and _TIER.match(tier) for tier in tiers):
        raise SLOTableError(
            f"class {name!r}: service_tiers is {value!r}, it must be a list of names of a-z, 0-9, '_', '.' and '-'"
        )
    return cast("tuple[str, ...]", tiers)


def _check_degrades(classes: tuple[SLOClass, ...]) -> None:
    ranks = {c.name: c.rank for c in classes}
    for c in classes:
        if c.when_infeasible == "degrade" and c.degrade_to is None:
            raise SLOTableError(f"class {c.name!r}: when_infeasible is 'degrade', so degrade_to must name a class")
        if c.degrade_to is not None and ranks.get(c.degrade_to, c.rank + 1) <= c.rank:
            raise SLOTableError(
                f"class {c.name!r}: degrade_to {c.degrade_to!r} has rank {ranks[c.degrade_to]}, "
                f"it must be a class of a rank above {c.rank}"
            )
