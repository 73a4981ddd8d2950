"""Sizes as people write them: 512MiB, 2GiB, 1.5GB, 4096."""

from __future__ import annotations

import re

_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    # Single letters as in java, docker and ulimit: powers of two.
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def parse_byte_size(text: str) -> int:
    """Bytes of a size such as `512MiB`, `1.5GB` or `4096`.

    Raises:
        ValueError: not a number followed by a known unit.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 512MiB, 2GiB or 1.5GB")
    whole, _, fraction = match[1].partition(".")
    # In integers: a float would round sizes of 2**53 and more.
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def format_byte_size(num_bytes: int) -> str:
    """The shortest exact form where there is one in KiB..TiB, else one decimal of the largest unit that fits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % _UNITS[unit.lower()] == 0:
            return f"{num_bytes // _UNITS[unit.lower()]}{unit}"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes >= _UNITS[unit.lower()]:
            return f"{num_bytes / _UNITS[unit.lower()]:.1f}{unit}"
    return f"{num_bytes}B"
