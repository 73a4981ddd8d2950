"""How the options that describe a class are written: `NAME:KEY=VALUE,...`."""

from __future__ import annotations

import math

from loadgen.config import BenchError


def split_option(text: str, option: str) -> tuple[str, dict[str, str]]:
    """NAME and the KEY=VALUE pairs of `NAME:KEY=VALUE,...`; a value without a key stands under "".

    Raises:
        BenchError: there is no name, or a key repeats.
    """
    name, _, rest = text.partition(":")
    if not name.strip():
        raise BenchError(f"{option} {text!r} names no class: write NAME:...")
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, has_value, value = part.partition("=")
        key, value = (key.strip(), value.strip()) if has_value else ("", part)
        if key in pairs:
            raise BenchError(f"{option} {text!r}: {key or 'the share'} is given twice")
        pairs[key] = value
    return name.strip(), pairs


def parse_above_zero(text: str, what: str) -> float:
    """Raises BenchError: `text` is no finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0.0 and math.isfinite(value)):
        raise BenchError(f"{what} is {text!r}, it must be a number above 0")
    return value


def parse_time_s(text: str, what: str) -> float:
    """Seconds of `300ms`, `2s`, or a plain number of milliseconds.

    Raises:
        BenchError: it is none of these, or not above 0.
    """
    number, unit_s = text, 1e-3
    if text.endswith("ms"):
        number = text[:-2]
    elif text.endswith("s"):
        number, unit_s = text[:-1], 1.0
    try:
        return parse_above_zero(number, what) * unit_s
    except BenchError:
        raise BenchError(f"{what} is {text!r}: write a time above 0, such as 300ms or 2s") from None


def parse_seconds_range(text: str, what: str) -> tuple[float, float]:
    """`SECONDS` or `LOW-HIGH`.

    Raises:
        BenchError: not one or two numbers of at least 0, in order.
    """
    low_text, _, high_text = text.partition("-")
    try:
        low, high = float(low_text), float(high_text or low_text)
    except ValueError:
        low = high = math.nan
    if not (0.0 <= low <= high < math.inf):
        raise BenchError(f"{what} is {text!r}: write a number of seconds of at least 0, or LOW-HIGH")
    return low, high
