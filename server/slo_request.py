"""Which latency class and which targets a request asks for.

Three places say so. The first that says anything about a value wins, value by value:

1. the body's `slo` object: `class`, `ttft_ms`, `tpot_ms`, `e2e_deadline_ms`, `degrade`;
2. the headers `x-slo-class`, `x-slo-ttft-ms`, `x-slo-tpot-ms`, `x-slo-degrade`;
3. the body's `service_tier`, for the class alone;

else the default class and the class's own targets. A value that is overridden is not looked at.

`service_tier` is looked up in the classes' own `service_tiers`. Of OpenAI's tiers, `auto`, `default` and `scale` leave
the choice to the server (`scale` is capacity bought beforehand, which this server does not sell): where no class claims
them they mean the default class. Any other tier that no class claims is a client's mistake. null counts as absent.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import cast

from scheduler.slo import SLO, SLOClass, SLOClasses

MIN_TARGET_MS = 0.001
"""The shortest target a request may ask for: a microsecond."""
MAX_TARGET_MS = 86_400_000.0
"""A day: the longest one."""
UNCLAIMED_TIERS = ("auto", "default", "scale")
"""Tiers that mean the default class where no class claims them."""
_KEYS = ("class", "ttft_ms", "tpot_ms", "e2e_deadline_ms", "degrade")
_MAX_ECHO_CHARS = 64
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
"""Python's `float` takes more: underscores, other scripts' digits, nan."""


class InvalidSLO(ValueError):
    """The request's latency wishes cannot be read: a 400. `param` names the body's field or the header."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


@dataclasses.dataclass(frozen=True, slots=True)
class SLOBody:
    """The body's `slo` object; None where a field is absent."""

    slo_class: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_deadline_ms: float | None = None
    degrade: bool | None = None

    @classmethod
    def parse(cls, value: object) -> SLOBody:
        """The `slo` object as parsed from JSON; null fields count as absent.

        Raises:
            InvalidSLO: not an object, or a field is unknown or of the wrong type.
        """
        if not isinstance(value, dict):
            raise InvalidSLO("slo", f"slo is {_echo(value)}, it must be an object with some of {', '.join(_KEYS)}")
        fields = cast("dict[str, object]", value)
        unknown = sorted(set(fields) - set(_KEYS))
        if unknown:
            raise InvalidSLO(
                f"slo.{unknown[0][:_MAX_ECHO_CHARS]}",
                f"slo has no field {_echo(unknown[0])}: the known ones are {', '.join(_KEYS)}",
            )
        name, degrade = fields.get("class"), fields.get("degrade")
        if name is not None and not isinstance(name, str):
            raise InvalidSLO("slo.class", f"slo.class is {_echo(name)}, it must be a string")
        if degrade is not None and not isinstance(degrade, bool):
            raise InvalidSLO("slo.degrade", f"slo.degrade is {_echo(degrade)}, it must be true or false")
        return cls(
            slo_class=name,
            ttft_ms=_number(fields.get("ttft_ms"), "slo.ttft_ms"),
            tpot_ms=_number(fields.get("tpot_ms"), "slo.tpot_ms"),
            e2e_deadline_ms=_number(fields.get("e2e_deadline_ms"), "slo.e2e_deadline_ms"),
            degrade=degrade,
        )


def resolve_slo(
    classes: SLOClasses, headers: Mapping[str, str], service_tier: str | None, slo_body: SLOBody | None
) -> SLO:
    """What the request asks for; `granted` is the class asked for until the engine says otherwise.

    `headers` is looked up by lower-case names.

    Raises:
        InvalidSLO: an unknown class or tier, or a target that is no number of milliseconds in
            `MIN_TARGET_MS`..`MAX_TARGET_MS`.
    """
    body = slo_body or SLOBody()
    name = _resolve_class(classes, headers, service_tier, body).name
    return SLO(
        requested=name,
        granted=name,
        ttft_s=_seconds(body.ttft_ms, "slo.ttft_ms", headers, "x-slo-ttft-ms"),
        tpot_s=_seconds(body.tpot_ms, "slo.tpot_ms", headers, "x-slo-tpot-ms"),
        e2e_deadline_s=_seconds(body.e2e_deadline_ms, "slo.e2e_deadline_ms", {}, ""),
        may_degrade=body.degrade if body.degrade is not None else _header_flag(headers, "x-slo-degrade"),
    )


def _resolve_class(
    classes: SLOClasses, headers: Mapping[str, str], service_tier: str | None, body: SLOBody
) -> SLOClass:
    for name, param in ((body.slo_class, "slo.class"), (headers.get("x-slo-class"), "x-slo-class")):
        if name is not None:
            if name not in classes.names:
                raise InvalidSLO(param, f"{param} is {_echo(name)}, it must be one of {', '.join(classes.names)}")
            return classes.get(name)
    if service_tier is None:
        return classes.default
    by_tier = classes.by_tier(service_tier)
    if by_tier is not None:
        return by_tier
    if service_tier in UNCLAIMED_TIERS:
        return classes.default
    known = dict.fromkeys([*(tier for c in classes for tier in c.service_tiers), *UNCLAIMED_TIERS])
    raise InvalidSLO("service_tier", f"service_tier is {_echo(service_tier)}, it must be one of {', '.join(known)}")


def _seconds(value_ms: float | None, param: str, headers: Mapping[str, str], header: str) -> float | None:
    """The target in seconds; the header counts where the body says nothing."""
    if value_ms is None:
        text = headers.get(header)
        if text is None:
            return None
        param = header
        if _NUMBER.fullmatch(text.strip(" \t")) is None:
            raise InvalidSLO(param, f"{param} is {_echo(text)}, it must be a number of milliseconds")
        value_ms = float(text)
    if not MIN_TARGET_MS <= value_ms <= MAX_TARGET_MS:
        raise InvalidSLO(
            param,
            f"{param} is {value_ms}, it must be at least {MIN_TARGET_MS} and at most {MAX_TARGET_MS:.0f} milliseconds",
        )
    return value_ms / 1000.0


def _number(value: object, param: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSLO(param, f"{param} is {_echo(value)}, it must be a number of milliseconds")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _header_flag(headers: Mapping[str, str], header: str) -> bool:
    text = headers.get(header)
    if text is None:
        return False
    flag = {"1": True, "true": True, "0": False, "false": False}.get(text.strip().lower())
    if flag is None:
        raise InvalidSLO(header, f"{header} is {_echo(text)}, it must be 1, 0, true or false")
    return flag


def _echo(value: object) -> str:
    """What the client sent, short enough to send back."""
    text = repr(value)
    return text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "..."
