"""Times as traces write them."""

from __future__ import annotations

import datetime
import decimal
import re

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MAX_NS = 2**63
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
"""Azure's of 2023 has seven fractional digits and no zone, 2024 six and +00:00; a whole second may have no fraction."""


def parse_time_ns(text: str) -> int:
    """Nanoseconds since 1970, a time without a zone taken as UTC.

    All digits count: requests of one burst lie less than 10 ms apart.

    Raises:
        ValueError: this is no such time.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time of this trace")
    whole, fraction, zone = match.groups()
    moment = datetime.datetime.fromisoformat(whole + (zone or "+00:00"))
    return (moment - _EPOCH) // datetime.timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))


def parse_decimal_ns(text: str, unit_ns: int) -> int:
    """Nanoseconds of a decimal number of units, without the rounding of a float.

    Raises:
        ValueError: this is no number, or further from 0 than 292 years.
    """
    try:
        value = decimal.Decimal(text) * unit_ns
    except decimal.InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    if not value.is_finite() or abs(value) > _MAX_NS:
        raise ValueError(f"{text!r} is no time of this trace")
    return int(value.to_integral_value())


def number_ns(value: object, unit_ns: int) -> int:
    """Nanoseconds of a JSON number of units.

    Raises:
        ValueError: this is no number, or further from 0 than 292 years.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if not abs(value) <= _MAX_NS / unit_ns:
        raise ValueError(f"{value!r} is no time of this trace")
    return round(value * unit_ns)


def year_of(time_ns: int) -> int:
    """The year in UTC."""
    return (_EPOCH + datetime.timedelta(microseconds=time_ns // 1000)).year
